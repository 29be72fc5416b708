// The tenant's named KV files: which tier holds their pages, and which they share.
import { useRef, useState } from "preact/hooks";

import { ask, get, send, type KvFile, type Page } from "../api";
import { bytes, count, time } from "../format";
import { Action, Bar, Panel, Status, Table, useLoaded, Words } from "../parts";
import { go, href } from "../router";

async function download(path: string): Promise<void> {
  const answer = await ask(`v1/kv/${path}?download=1`);
  const link = document.createElement("a");
  link.href = URL.createObjectURL(await answer.blob());
  link.download = `${path.replaceAll("/", "_")}.safetensors`;
  link.click();
  URL.revokeObjectURL(link.href);
}

function FileView({ path }: { path: string }) {
  const loaded = useLoaded((signal) => get<KvFile>(`v1/kv/${path}`, signal), [path], 5);
  const file = loaded.value;
  return (
    <>
      <p><a href={href("files")}>KV files</a></p>
      <h1>{path}</h1>
      <Words error={loaded.error} />
      {file
        ? (
          <Panel title={`${count(file.len)} tokens in ${count(file.pages)} pages`}
            actions={
              <span class="actions">
                <Action label="Download" run={() => download(path)} />
                <Action label="Remove" sure={`Remove the name ${path}?`} run={async () => {
                  await send("DELETE", `v1/kv/${path}`);
                  go("files");
                }} />
              </span>
            }>
            {Object.entries(file.tiers ?? {}).map(([tier, pages]) => (
              <Bar label={tier} value={pages} of={file.pages} text={`${count(pages)} pages`} />
            ))}
            <Bar label="shared" value={file.shared ?? 0} of={file.pages}
              text={`${count(file.shared ?? 0)} pages that others have, too`} />
            <p class="hint">
              {file.durable ? `On disk: ${bytes(file.disk_bytes ?? 0)}. ` : "Not durable. "}
              {file.public ? "Other tenants may read it. " : ""}
              {file.expires_ms ? `It is deleted at ${time(file.expires_ms)}.` : ""}
            </p>
          </Panel>
        )
        : null}
    </>
  );
}

function Upload({ done }: { done: () => void }) {
  const input = useRef<HTMLInputElement>(null);
  const [path, setPath] = useState("");
  return (
    <div class="filters">
      <label>
        Name
        <input value={path} onInput={(event) => setPath(event.currentTarget.value)} />
      </label>
      <label>File <input ref={input} type="file" /></label>
      <Action label="Upload" run={async () => {
        const file = input.current?.files?.[0];
        if (!file || !path) throw new Error("choose a file and a name");
        await ask(`v1/kv/${path}`, { method: "PUT", body: file });
        done();
      }} />
    </div>
  );
}

export function Files({ path }: { path: string }) {
  const loaded = useLoaded((signal) => get<Page<KvFile>>("v1/kv?limit=200", signal), [], 5);
  if (path) return <FileView path={path} key={path} />;
  return (
    <>
      <h1>KV files</h1>
      <Words error={loaded.error} />
      <Table empty="No program has named a KV file yet."
        columns={["Name", "Tokens", "Pages", "Tier", "Kept"]}>
        {(loaded.value?.data ?? []).map((file) => (
          <tr key={file.path}>
            <td><a href={href("files", file.path)}>{file.path}</a></td>
            <td>{count(file.len)}</td>
            <td>{count(file.pages)}</td>
            <td><Status value={file.tier} /></td>
            <td>
              {[file.durable && "durable", file.public && "public",
                file.expires_ms && `until ${time(file.expires_ms)}`].filter(Boolean).join(", ")}
            </td>
          </tr>
        ))}
      </Table>
      <Panel title="Upload"><Upload done={loaded.reload} /></Panel>
    </>
  );
}
