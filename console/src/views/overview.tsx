// Is the server well, and what does it do: roles, and an hour of figures.
import { get, metrics, type Readiness } from "../api";
import { Chart, type Series } from "../chart";
import { bytes, count } from "../format";
import { Panel, Status, Table, useLoaded, Words } from "../parts";

interface History {
  step_ms: number;
  end_ms: number;
  series: Record<string, (number | null)[]>;
  tenants?: Record<string, Record<string, (number | null)[]>>;
}

const TENANTS_SHOWN = 5; // a chart has colours for so many
const CHARTS: [string, [string, string][], (value: number) => string][] = [
  ["Tokens a second", [["computed", "decode_tokens"], ["prompt", "prefill_tokens"],
    ["from the cache", "cached_tokens"]], count],
  ["Rows a step", [["rows", "step_rows"]], count],
  ["Device busy", [["share", "device_busy"]], (value) => `${(100 * value).toFixed(0)} %`],
  ["Live runs and waiting preds", [["runs", "runs_live"], ["preds", "preds_waiting"]], count],
  ["KV pages", [["device", "pages_device"], ["host", "pages_host"], ["disk", "pages_disk"],
    ["tokens only", "pages_tokens"]], count],
  ["Refused a second", [["runs", "refused"]], count],
];

function drawn(history: History, wanted: [string, string][]): Series[] {
  return wanted
    .filter(([, name]) => history.series[name])
    .map(([label, name]) => ({ label, values: history.series[name]! }));
}

function Charts({ history }: { history: History }) {
  const samples = Math.max(...Object.values(history.series).map((each) => each.length), 0);
  const step = history.step_ms / 1000;
  const end = history.end_ms / 1000;
  const times = Array.from({ length: samples }, (_, at) => end - (samples - 1 - at) * step);
  const tenants = Object.entries(history.tenants ?? {}).slice(0, TENANTS_SHOWN);
  const byTenant = (name: string): Series[] =>
    tenants.map(([label, series]) => ({ label, values: series[name] ?? [] }));
  return (
    <div class="charts">
      {CHARTS.map(([title, wanted, show]) => {
        const series = drawn(history, wanted);
        return series.length ? <Chart title={title} times={times} series={series} show={show} /> : null;
      })}
      {tenants.length > 1
        ? (
          <>
            <Chart title="Generated tokens a second, by tenant" times={times}
              series={byTenant("decode_tokens")} show={count} />
            <Chart title="Live runs by tenant" times={times} series={byTenant("runs_live")} show={count} />
          </>
        )
        : null}
    </div>
  );
}

function Roles({ readiness, numbers }: {
  readiness: Readiness; numbers: Map<string, number> | undefined;
}) {
  const number = (name: string, role: string) => numbers?.get(`${name}{role="${role}"}`);
  return (
    <Table columns={["Role", "State", "Process", "Memory", "Contained by"]} empty="No role is there.">
      {readiness.roles.map((role) => {
        const state = role.hangs ? "hangs" : role.ready ? "ready" : "starting";
        const memory = number("role_resident_memory_bytes", role.role);
        return (
          <tr>
            <td>{role.role}</td>
            <td><Status value={state} /> {role.progress ? role.progress.what : ""}</td>
            <td>{role.pid ?? "–"}</td>
            <td>{memory === undefined ? "–" : bytes(memory)}</td>
            <td>{Object.keys(role.containment ?? {}).join(", ") || "–"}</td>
          </tr>
        );
      })}
    </Table>
  );
}

export function Overview({ owner }: { owner: string }) {
  const ready = useLoaded(async () => {
    const answer = await fetch("readyz"); // 503 is an answer, too
    return (await answer.json()) as Readiness;
  }, [], 5);
  const numbers = useLoaded(metrics, [], 5);
  const history = useLoaded((signal) => get<History>("v1/history", signal), [owner], 5);
  const readiness = ready.value;
  const restarts = numbers.value?.get("kernel_restarts_total");
  return (
    <>
      <h1>Overview</h1>
      <Words error={ready.error ?? numbers.error ?? history.error} />
      {history.value ? <Charts history={history.value} /> : null}
      {readiness
        ? (
          <Panel title="Roles">
            {[...readiness.missing, ...readiness.degraded].map((words) => (
              <p class="problem" role="alert">{words}</p>
            ))}
            <Roles readiness={readiness} numbers={numbers.value} />
            {restarts === undefined ? null : <p>The kernel was started again {restarts} times.</p>}
          </Panel>
        )
        : null}
    </>
  );
}
