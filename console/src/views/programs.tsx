// The tenant's programs: names with what they point at, programs without a name, uploads.
import { get, send, type Page, type Program } from "../api";
import { bytes, time } from "../format";
import { Action, Panel, Table, useLoaded, Words } from "../parts";
import { Permissions } from "../programs/permissions";
import { Upload } from "../programs/upload";
import { digits, programPath, Versions } from "../programs/versions";
import { href, route } from "../router";

const PAGES_MAX = 10;

/** The named programs, or those without a name, as far as they fit into some pages. */
export async function listPrograms(named: boolean, signal?: AbortSignal): Promise<Program[]> {
  const found: Program[] = [];
  let after = "";
  for (let pages = 0; pages < PAGES_MAX; pages += 1) {
    const query = new URLSearchParams({ limit: "200", named: named ? "1" : "0" });
    if (after) query.set("after", after);
    const page = await get<Page<Program>>(`v1/programs?${query}`, signal);
    found.push(...page.data);
    if (!page.next) break;
    after = page.next;
  }
  return found;
}

function Names({ programs }: { programs: Program[] }) {
  return (
    <Table empty="No program has a name yet."
      columns={["Name", "Points at", "Language", "Size", "Uploaded", "It may", "Description"]}>
      {programs.map((program) => (
        <tr key={program.name}>
          <td><a href={href("programs", program.name!)}>{program.name}</a></td>
          <td><code title={program.id}>{digits(program)}</code></td>
          <td>{program.language}</td>
          <td>{bytes(program.size)}</td>
          <td>{time(program.created_ms)}</td>
          <td><Permissions of={program} /></td>
          <td>{program.description ?? ""}</td>
        </tr>
      ))}
    </Table>
  );
}

function Unnamed({ programs, reload }: { programs: Program[]; reload: () => void }) {
  return (
    <Table empty="" columns={["Id", "Language", "Size", "Uploaded", "It may", ""]}>
      {programs.map((program) => (
        <tr key={program.id}>
          <td><a href={href("playground", program.id)}><code>{digits(program)}</code></a></td>
          <td>{program.language}</td>
          <td>{bytes(program.size)}</td>
          <td>{time(program.created_ms)}</td>
          <td><Permissions of={program} /></td>
          <td>
            <Action label="Delete" sure={`Delete ${digits(program)}? Its runs continue.`}
              run={async () => {
                await send("DELETE", programPath(program.id));
                reload();
              }} />
          </td>
        </tr>
      ))}
    </Table>
  );
}

function Listing() {
  const loaded = useLoaded(
    (signal) => Promise.all([listPrograms(true, signal), listPrograms(false, signal)]), [],
  );
  const [named, unnamed] = loaded.value ?? [[], []];
  return (
    <>
      <h1>Programs</h1>
      <Words error={loaded.error} />
      <Panel title="Upload"><Upload done={loaded.reload} /></Panel>
      {loaded.value ? <Names programs={named} /> : null}
      {unnamed.length
        ? (
          <Panel title="Without a name"><Unnamed programs={unnamed} reload={loaded.reload} /></Panel>
        )
        : null}
    </>
  );
}

export function Programs() {
  const name = route.value[1];
  return name ? <Versions key={name} name={name} /> : <Listing />;
}
