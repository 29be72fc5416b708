// The tenant's KV files: their names as a tree, one file's pages and tokens, cached prefixes.
import { useRef, useState } from "preact/hooks";

import { ask, send } from "../api";
import { PrefixTree } from "../files/prefixes";
import { download, type KvPages, type Lineage, many, names, pagesOf, url } from "../files/shown";
import { Strip } from "../files/strip";
import { Tokens } from "../files/tokens";
import { NameTree } from "../files/tree";
import { bytes, count, time } from "../format";
import { Action, Panel, useLoaded, Words } from "../parts";
import { go, href } from "../router";
import "../files/files.css";

function LineageWords({ of }: { of: Lineage }) {
  const rest = of.spans - of.parts.length;
  return (
    <Panel title="Lineage">
      <p class="hint">
        Its first {count(of.len)} tokens come from {many(of.spans, "computation")} of {count(of.computed)} tokens.
        {of.lost
          ? " How some were computed is not known any more: only copies can bring them back."
          : ` To compute them again takes up to ${count(of.scratch_pages)} scratch pages.`}
      </p>
      <ol>
        {of.parts.map((part) => (
          <li key={part.first}>
            tokens {count(part.first)} to {count(part.first + part.len - 1)}: {part.lost
              ? "not known any more"
              : `${count(part.len)} of the ${count(part.of)} tokens of ${
                part.tree ? "a tree" : "one computation"}`}
          </li>
        ))}
      </ol>
      {rest > 0 ? <p class="hint">And {count(rest)} that these need.</p> : null}
    </Panel>
  );
}

function Facts({ file }: { file: KvPages }) {
  return (
    <p class="hint">
      {file.durable ? `On disk: ${bytes(file.disk_bytes ?? 0)}. ` : "Not durable. "}
      {file.public ? "Other tenants may read it. " : ""}
      {file.expires_ms ? `It is deleted at ${time(file.expires_ms)}. ` : "It does not expire. "}
      {file.lineage ? "" : "Each token was computed from those before it. "}
      {file.recomputable ? "" : "It cannot be recomputed from its tokens. "}
    </p>
  );
}

function FileView({ path }: { path: string }) {
  const [chosen, setChosen] = useState(0);
  const loaded = useLoaded((signal) => pagesOf(path, signal), [path], 5);
  const file = loaded.value;
  return (
    <>
      <p><a href={href("files")}>KV files</a></p>
      <h1>{path}</h1>
      <Words error={loaded.error} />
      {file
        ? (
          <>
            <Panel title={`${many(file.len, "token")} in ${many(file.pages, "page")}`}
              actions={
                <span class="actions">
                  <Action label="Download" run={() => download(path)} />
                  <Action label="Remove" sure={`Remove the name ${path}?`} run={async () => {
                    await send("DELETE", url("kv", path));
                    go("files");
                  }} />
                </span>
              }>
              <Facts file={file} />
              {file.pages ? <Strip file={file} chosen={chosen} choose={setChosen} /> : null}
            </Panel>
            {file.lineage ? <LineageWords of={file.lineage} /> : null}
            {file.len ? <Tokens file={file} chosen={chosen} /> : null}
          </>
        )
        : null}
    </>
  );
}

function Upload({ done }: { done: () => void }) {
  const input = useRef<HTMLInputElement>(null);
  const [path, setPath] = useState("");
  const [rebuild, setRebuild] = useState(false);
  return (
    <div class="filters">
      <label>
        Name
        <input id="upload-name" value={path} onInput={(event) => setPath(event.currentTarget.value)} />
      </label>
      <label>File <input id="upload-file" ref={input} type="file" /></label>
      <label class="check">
        <input type="checkbox" checked={rebuild}
          onChange={(event) => setRebuild(event.currentTarget.checked)} />
        Compute K and V again from its tokens
      </label>
      <Action label="Upload" run={async () => {
        const file = input.current?.files?.[0];
        if (!file || !path) throw new Error("choose a file and a name");
        await ask(`${url("kv", path)}?rebuild=${Number(rebuild)}`, { method: "PUT", body: file });
        done();
      }} />
    </div>
  );
}

function Names() {
  const [prefix, setPrefix] = useState("");
  const loaded = useLoaded((signal) => names(prefix, signal), [prefix], 10);
  const shown = loaded.value;
  return (
    <>
      <h1>KV files</h1>
      <div class="filters">
        <label>
          Names that begin with
          <input id="prefix" value={prefix} placeholder="public/TENANT/ for another's public files"
            size={40} onInput={(event) => setPrefix(event.currentTarget.value)} />
        </label>
      </div>
      <Words error={loaded.error} />
      {shown
        ? (
          <Panel title={many(shown.files.length, "name")}>
            <NameTree files={shown.files} />
            {shown.more ? <p class="hint">There are more: choose how they begin.</p> : null}
          </Panel>
        )
        : null}
      <Panel title="Upload"><Upload done={loaded.reload} /></Panel>
      <PrefixTree />
    </>
  );
}

export function Files({ path }: { path: string }) {
  return path ? <FileView path={path} key={path} /> : <Names />;
}
