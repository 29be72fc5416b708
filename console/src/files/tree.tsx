// The names of KV files as a tree of folders.
import { useMemo, useState } from "preact/hooks";

import { type KvFile } from "../api";
import { time } from "../format";
import { Status } from "../parts";
import { href } from "../router";
import { many } from "./shown";

interface Folder {
  name: string;
  folders: Folder[];
  files: { name: string; file: KvFile }[];
  count: number;
  pages: number;
}

const OPEN_MAX = 40; // names in folders that are open at first

function folder(name: string): Folder {
  return { name, folders: [], files: [], count: 0, pages: 0 };
}

/** The tree of files that are in the order of their paths. */
export function treeOf(files: KvFile[]): Folder {
  const root = folder("");
  const known = new Map<string, Folder>([["", root]]);
  const find = (path: string): Folder => {
    let found = known.get(path);
    if (!found) {
      const cut = path.lastIndexOf("/");
      found = folder(path.slice(cut + 1));
      known.set(path, found);
      find(path.slice(0, Math.max(cut, 0))).folders.push(found);
    }
    return found;
  };
  for (const file of files) {
    const cut = file.path.lastIndexOf("/");
    find(file.path.slice(0, Math.max(cut, 0))).files.push({ name: file.path.slice(cut + 1), file });
  }
  const sum = (each: Folder): Folder => {
    each.folders.forEach(sum);
    const add = (of: (item: Folder) => number) => each.folders.reduce((all, item) => all + of(item), 0);
    each.count = each.files.length + add((item) => item.count);
    each.pages = each.files.reduce((all, { file }) => all + file.pages, 0) + add((item) => item.pages);
    return each;
  };
  return sum(root);
}

function kept(file: KvFile): string {
  return [file.durable && "durable", file.public && "public",
    file.expires_ms && `until ${time(file.expires_ms)}`].filter(Boolean).join(", ");
}

function Inside({ of, open }: { of: Folder; open: boolean }) {
  return (
    <ul class="names">
      {of.folders.map((each) => <Branch of={each} open={open} key={each.name} />)}
      {of.files.map(({ name, file }) => (
        <li class="name" key={name}>
          <a href={href("files", file.path)}>{name}</a>
          <span>{many(file.len, "token")}, {many(file.pages, "page")}</span>
          <Status value={file.tier} />
          <span>{kept(file)}</span>
        </li>
      ))}
    </ul>
  );
}

function Branch({ of, open: first }: { of: Folder; open: boolean }) {
  const [open, setOpen] = useState(first);
  return (
    <li>
      <details open={first} onToggle={(event) => setOpen(event.currentTarget.open)}>
        <summary>
          {of.name}/ <span class="hint">{many(of.count, "file")}, {many(of.pages, "page")}</span>
        </summary>
        {open ? <Inside of={of} open={first} /> : null}
      </details>
    </li>
  );
}

export function NameTree({ files }: { files: KvFile[] }) {
  const tree = useMemo(() => treeOf(files), [files]);
  if (!files.length) return <p class="empty">No program has named such a KV file yet.</p>;
  return <Inside of={tree} open={files.length <= OPEN_MAX} />;
}
