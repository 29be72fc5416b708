// One name: its versions with their runs and errors, and which of them it points at.
import { useState } from "preact/hooks";

import { get, send, type Page, type Version } from "../api";
import { bytes, count, time } from "../format";
import { Action, Panel, Table, useLoaded, Words } from "../parts";
import { go, href } from "../router";
import { Permissions } from "./permissions";
import { Upload } from "./upload";

export function digits(version: { id: string }): string {
  return version.id.slice(7, 19);
}

export function programPath(name: string): string {
  return `v1/programs/${encodeURIComponent(name)}`;
}

export async function versionsOf(name: string, signal?: AbortSignal): Promise<Version[]> {
  return (await get<Page<Version>>(`${programPath(name)}/versions`, signal)).data;
}

function Errors({ of }: { of: Version }) {
  if (!of.errors) return <>{of.runs ? "0" : "–"}</>;
  const share = Math.round((100 * of.errors) / of.runs);
  return <span class="status failed">{count(of.errors)} ({share} %)</span>;
}

function Row({ version, name, before, reload }: {
  version: Version; name: string; before: Version | undefined; reload: () => void;
}) {
  const reference = `${name}@${digits(version)}`;
  return (
    <tr>
      <td><code title={version.id}>{digits(version)}</code></td>
      <td>{version.current ? <span class="status active">current</span> : ""}</td>
      <td>{version.language}</td>
      <td>{time(version.added_ms)}</td>
      <td>{bytes(version.size)}</td>
      <td>{count(version.runs)}</td>
      <td><Errors of={version} /></td>
      <td><Permissions of={version} before={before} /></td>
      <td>
        <div class="actions">
          {version.current ? null : (
            <Action label={`Point ${name} at ${digits(version)}`} run={async () => {
              await send("PUT", programPath(name), { program: reference });
              reload();
            }} />
          )}
          <a class="button" href={href("playground", reference)}>Try</a>
          {version.current ? null : (
            <>
              <a class="button" href={href("playground", name, reference)}>Compare</a>
              <Action label="Delete" sure={`Delete ${reference}? Its runs continue.`}
                run={async () => {
                  await send("DELETE", `${programPath(name)}/versions/${version.id}`);
                  reload();
                }} />
            </>
          )}
        </div>
      </td>
    </tr>
  );
}

/** Point another name at a version: an alias, with versions of its own. */
function Alias({ name, versions }: { name: string; versions: Version[] }) {
  const [alias, setAlias] = useState("");
  const [version, setVersion] = useState("");
  return (
    <div class="filters">
      <label>
        Another name
        <input value={alias} onInput={(event) => setAlias(event.currentTarget.value.trim())} />
      </label>
      <label>
        Version
        <select value={version} onChange={(event) => setVersion(event.currentTarget.value)}>
          <option value="">the current one</option>
          {versions.map((each) => <option value={`@${each.id}`}>{digits(each)}</option>)}
        </select>
      </label>
      <Action label="Point it there" run={async () => {
        await send("PUT", programPath(alias), { program: name + version });
        go("programs", alias);
      }} />
    </div>
  );
}

export function Versions({ name }: { name: string }) {
  const loaded = useLoaded((signal) => versionsOf(name, signal), [name], 5);
  const versions = loaded.value ?? [];
  const current = versions.find((version) => version.current);
  const older = versions[versions.indexOf(current!) + 1];
  return (
    <>
      <p><a href={href("programs")}>Programs</a></p>
      <h1>{name} <small>{current?.description}</small></h1>
      <Words error={loaded.error} />
      <div class="actions">
        <a class="button" href={href("playground", name)}>Try it</a>
        {current && older ? (
          <Action label={`Roll back to ${digits(older)}`} run={async () => {
            await send("PUT", programPath(name), { program: `${name}@${older.id}` });
            loaded.reload();
          }} />
        ) : null}
        <Action label="Delete with all versions"
          sure={`Delete ${name} and its ${versions.length} versions? Their runs continue.`}
          run={async () => {
            await send("DELETE", `${programPath(name)}/versions`);
            go("programs");
          }} />
      </div>
      <Table empty="No version is there."
        columns={["Version", "", "Language", "Uploaded", "Size", "Runs", "Errors", "It may", ""]}>
        {versions.map((version, at) => (
          <Row key={version.id} version={version} name={name} before={versions[at + 1]}
            reload={loaded.reload} />
        ))}
      </Table>
      <div class="columns">
        <Panel title="Upload a version"><Upload key={name} name={name} done={loaded.reload} /></Panel>
        <Panel title="Alias"><Alias key={name} name={name} versions={versions} /></Panel>
      </div>
    </>
  );
}
