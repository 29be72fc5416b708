// The tenant's programs: upload, what each may ask of the server, runs.
import { useState } from "preact/hooks";

import { ask, get, send, type Page, type Program } from "../api";
import { bytes, time } from "../format";
import { Action, Panel, Table, useLoaded, Words } from "../parts";
import { href } from "../router";

// What a program's imports let it do, in words. A call that is not here reads or computes only.
const PERMISSIONS: [RegExp, string][] = [
  [/^lip\.(pred|generate|beam)/, "compute with the model"],
  [/^lip\.kv_(publish|rename|link|name|open|remove|list)/, "use named KV files"],
  [/^lip\.(http|fetch)/, "call other hosts that the operator allows"],
  [/^lip\.tool/, "call tools"],
  [/^lip\.spawn/, "start other programs"],
  [/^lip\.channel/, "talk to other runs"],
  [/^lip\.recv/, "wait for messages"],
  [/^lip\.(kv_grant|kv_offer)/, "give KV files to others"],
  [/^wasi/, "use clock, random numbers and output of WASI"],
];

function permissions(program: Program): string[] {
  return PERMISSIONS.filter(([pattern]) => program.imports.some((name) => pattern.test(name)))
    .map(([, words]) => words);
}

function Drop({ done }: { done: () => void }) {
  const [over, setOver] = useState(false);
  const [error, setError] = useState<unknown>();
  const [told, setTold] = useState("");
  const upload = async (file: File | undefined) => {
    if (!file) return;
    const name = file.name.replace(/\.wasm$/, "");
    setTold(`${file.name} is checked and compiled …`);
    try {
      await ask(`v1/programs?name=${encodeURIComponent(name)}`, {
        method: "POST",
        headers: { "Content-Type": "application/wasm" },
        body: file,
      });
      setTold(`${name} is there.`);
      setError(undefined);
      done();
    } catch (problem) {
      setTold("");
      setError(problem);
    }
  };
  return (
    <div class={`drop${over ? " over" : ""}`}
      onDragOver={(event) => {
        event.preventDefault();
        setOver(true);
      }}
      onDragLeave={() => setOver(false)}
      onDrop={(event) => {
        event.preventDefault();
        setOver(false);
        void upload(event.dataTransfer?.files[0]);
      }}>
      <label>
        Drop a .wasm file here, or choose one
        <input type="file" accept=".wasm"
          onChange={(event) => void upload(event.currentTarget.files?.[0])} />
      </label>
      <p role="status">{told}</p>
      <Words error={error} />
    </div>
  );
}

export function Programs() {
  const loaded = useLoaded((signal) => get<Page<Program>>("v1/programs?limit=200", signal), []);
  return (
    <>
      <h1>Programs</h1>
      <Words error={loaded.error} />
      <Table empty="No program is there yet."
        columns={["Name", "Version", "Size", "Uploaded", "It may", ""]}>
        {(loaded.value?.data ?? []).map((program) => (
          <tr key={program.id}>
            <td><a href={href("playground", program.name ?? program.id)}>{program.name ?? "–"}</a></td>
            <td><code title={program.id}>{program.id.slice(7, 19)}</code></td>
            <td>{bytes(program.size)}</td>
            <td>{time(program.created_ms)}</td>
            <td>
              <details>
                <summary>{permissions(program).join("; ") || "compute"}</summary>
                <code>{program.imports.join(" ")}</code>
              </details>
            </td>
            <td>
              <Action label="Delete" sure={`Delete ${program.name ?? program.id}, its bytes and names?`}
                run={async () => {
                  await send("DELETE", `v1/programs/${encodeURIComponent(program.id)}`);
                  loaded.reload();
                }} />
            </td>
          </tr>
        ))}
      </Table>
      <Panel title="Upload"><Drop done={loaded.reload} /></Panel>
    </>
  );
}
