// For operators: tenants with weights and limits, their keys, usage and the audit log.
import { useState } from "preact/hooks";

import { get, send, type Page } from "../api";
import { count, duration, time } from "../format";
import { Action, Panel, Status, Table, useLoaded, Words } from "../parts";
import { href } from "../router";

interface Tenant {
  id: string;
  weight: number | null;
  quotas: Record<string, number>;
  suspended: boolean;
  keys: number;
  live_runs: number;
  created_ms: number;
}

interface Key {
  id: string;
  role: string;
  name: string;
  created_ms: number;
  expires_ms: number | null;
  key?: string;
}

interface Usage {
  tenant: string;
  day: string;
  runs: number;
  prompt_tokens: number;
  cached_tokens: number;
  completion_tokens: number;
  cpu_ms: number;
  wall_ms: number;
}

interface Audit {
  at_ms: number;
  kind: string;
  tenant: string | null;
  key: string | null;
  address: string;
  action: string;
  target: string;
  status: number;
  times: number;
}

function NewTenant({ done }: { done: () => void }) {
  const [id, setId] = useState("");
  const [weight, setWeight] = useState("1");
  return (
    <div class="filters">
      <label>Id <input value={id} onInput={(event) => setId(event.currentTarget.value)} /></label>
      <label>
        Weight
        <input type="number" min="0.000001" step="any" value={weight}
          onInput={(event) => setWeight(event.currentTarget.value)} />
      </label>
      <Action label="Add a tenant" run={async () => {
        await send("POST", "v1/admin/tenants", { id, weight: Number(weight) });
        setId("");
        done();
      }} />
    </div>
  );
}

function Tenants() {
  const loaded = useLoaded((signal) => get<Page<Tenant>>("v1/admin/tenants?limit=200", signal), [], 5);
  const tenants = loaded.value?.data ?? [];
  const weights = tenants.reduce((sum, each) => sum + (each.suspended ? 0 : each.weight ?? 1), 0);
  return (
    <>
      <Words error={loaded.error} />
      <Table empty="There is no tenant."
        columns={["Tenant", "State", "Weight", "Least share", "Live runs", "Quotas", "Keys", ""]}>
        {tenants.map((each) => (
          <tr key={each.id}>
            <td>{each.id}</td>
            <td><Status value={each.suspended ? "suspended" : "active"} /></td>
            <td>
              <input class="small" type="number" min="0.000001" step="any" aria-label={`weight of ${each.id}`}
                value={each.weight ?? 1}
                onChange={async (event) => {
                  await send("PATCH", `v1/admin/tenants/${each.id}`,
                    { weight: Number(event.currentTarget.value) });
                  loaded.reload();
                }} />
            </td>
            <td>{each.suspended ? "–" : `${(100 * (each.weight ?? 1) / weights).toFixed(1)} %`}</td>
            <td>{each.live_runs}</td>
            <td>{Object.entries(each.quotas).map(([name, value]) => `${name} ${value}`).join(", ") || "–"}</td>
            <td><a href={href("operators", `keys ${each.id}`)}>{each.keys} keys</a></td>
            <td>
              <Action label={each.suspended ? "Resume" : "Suspend"}
                {...(each.suspended ? {} : { sure: `Suspend ${each.id}? Its live runs end.` })}
                run={async () => {
                  await send("PATCH", `v1/admin/tenants/${each.id}`, { suspended: !each.suspended });
                  loaded.reload();
                }} />
            </td>
          </tr>
        ))}
      </Table>
      <NewTenant done={loaded.reload} />
    </>
  );
}

function Keys({ tenant }: { tenant: string }) {
  const path = `v1/admin/tenants/${tenant}/keys`;
  const loaded = useLoaded((signal) => get<Page<Key>>(`${path}?limit=200`, signal), [tenant]);
  const [made, setMade] = useState<Key | null>(null);
  const [role, setRole] = useState("tenant");
  const [name, setName] = useState("");
  return (
    <>
      <h2>Keys of {tenant}</h2>
      <Words error={loaded.error} />
      {made?.key ? <p class="shown-once" role="status">Shown once: <code>{made.key}</code></p> : null}
      <Table empty="The tenant has no key." columns={["Key", "Role", "Name", "Made", "Ends", ""]}>
        {(loaded.value?.data ?? []).map((each) => (
          <tr key={each.id}>
            <td><code>{each.id}</code></td>
            <td>{each.role}</td>
            <td>{each.name || "–"}</td>
            <td>{time(each.created_ms)}</td>
            <td>{each.expires_ms ? time(each.expires_ms) : "never"}</td>
            <td class="actions">
              <Action label="Rotate" sure="Make a new key? The old one is refused at once." run={async () => {
                setMade(await send<Key>("POST", `${path}/${each.id}/rotate`));
                loaded.reload();
              }} />
              <Action label="Revoke" sure={`Revoke the key ${each.id}?`} run={async () => {
                await send("DELETE", `${path}/${each.id}`);
                loaded.reload();
              }} />
            </td>
          </tr>
        ))}
      </Table>
      <div class="filters">
        <label>
          Role
          <select value={role} onChange={(event) => setRole(event.currentTarget.value)}>
            <option>tenant</option>
            <option>read-only</option>
          </select>
        </label>
        <label>Name <input value={name} onInput={(event) => setName(event.currentTarget.value)} /></label>
        <Action label="Make a key" run={async () => {
          setMade(await send<Key>("POST", path, { role, name }));
          loaded.reload();
        }} />
      </div>
    </>
  );
}

function UsageByDay() {
  const loaded = useLoaded((signal) => get<Page<Usage>>("v1/admin/usage?limit=200", signal), []);
  return (
    <>
      <Words error={loaded.error} />
      <Table empty="No run has ended yet."
        columns={["Day", "Tenant", "Runs", "Prompt", "Cached", "Generated", "Processor", "Run time"]}>
        {(loaded.value?.data ?? []).map((each) => (
          <tr key={each.day + each.tenant}>
            <td>{each.day}</td>
            <td>{each.tenant}</td>
            <td>{count(each.runs)}</td>
            <td>{count(each.prompt_tokens)}</td>
            <td>{count(each.cached_tokens)}</td>
            <td>{count(each.completion_tokens)}</td>
            <td>{duration(each.cpu_ms)}</td>
            <td>{duration(each.wall_ms)}</td>
          </tr>
        ))}
      </Table>
    </>
  );
}

function AuditLog() {
  const loaded = useLoaded((signal) => get<Page<Audit>>("v1/admin/audit?limit=200", signal), [], 10);
  return (
    <>
      <Words error={loaded.error} />
      <Table empty="Nothing was changed or refused yet."
        columns={["When", "Kind", "Who", "Address", "Action", "Target", "Status", "Times"]}>
        {(loaded.value?.data ?? []).map((each) => (
          <tr>
            <td>{time(each.at_ms)}</td>
            <td>{each.kind}</td>
            <td>{[each.tenant, each.key].filter(Boolean).join(" ") || "unknown"}</td>
            <td>{each.address}</td>
            <td>{each.action}</td>
            <td>{each.target}</td>
            <td>{each.status}</td>
            <td>{each.times}</td>
          </tr>
        ))}
      </Table>
    </>
  );
}

const TABS = [["tenants", "Tenants"], ["usage", "Usage"], ["audit", "Audit log"]] as const;

export function Operators({ tab }: { tab: string }) {
  const [name, tenant] = tab.split(" ");
  return (
    <>
      <h1>Operators</h1>
      <ul class="tabs">
        {TABS.map(([each, title]) => (
          <li>
            <a href={href("operators", each)} aria-current={each === name ? "page" : undefined}>{title}</a>
          </li>
        ))}
      </ul>
      <Panel title={TABS.find(([each]) => each === name)?.[1] ?? "Keys"}>
        {name === "keys" && tenant ? <Keys tenant={tenant} key={tenant} /> : null}
        {name === "tenants" ? <Tenants /> : null}
        {name === "usage" ? <UsageByDay /> : null}
        {name === "audit" ? <AuditLog /> : null}
      </Panel>
    </>
  );
}
