// Is the server well, and what does it do: roles, and an hour of figures.
import { useRef } from "preact/hooks";

import { get, type Readiness } from "../api";
import { Chart, type Series } from "../chart";
import { bytes, count, time } from "../format";
import { Panel, Status, Table, useLoaded, Words } from "../parts";

type Figures = Record<string, (number | null)[]>;

interface History {
  step_ms: number;
  step: number;
  end_ms: number;
  series: Figures;
  tenants?: Record<string, Figures>;
  roles: {
    restarts: Record<string, number>;
    changes: { at_ms: number; role: string; pid: number | null; state: string }[];
    resident_bytes?: Record<string, number>;
  };
}

const STEPS = 720; // an hour
const STEPS_ASKED = 12; // of an hour that is known but for a minute
const CHANGES_SHOWN = 10;

/** Put newer figures behind those before: `passed` steps are new. */
function joined(before: Figures, after: Figures, passed: number): Figures {
  return Object.fromEntries(Object.entries(after).map(([name, values]) => {
    const old = before[name] ?? [];
    return [name, [...old, ...(passed ? values.slice(-passed) : [])].slice(-STEPS)];
  }));
}

/** Load an hour's figures, then only the newest. */
function useHistory(owner: string) {
  const known = useRef<History>(undefined);
  return useLoaded(async (signal) => {
    const before = known.current;
    const found = await get<History>(`v1/history${before ? `?steps=${STEPS_ASKED}` : ""}`, signal);
    const passed = before ? found.step - before.step : -1;
    const same = String(Object.keys(found.tenants ?? {})) === String(Object.keys(before?.tenants ?? {}))
      && String(Object.keys(found.series)) === String(Object.keys(before?.series ?? {}));
    if (before && passed >= 0 && passed <= STEPS_ASKED && same) {
      const { tenants } = found;
      found.series = joined(before.series, found.series, passed);
      for (const name in tenants) tenants[name] = joined(before.tenants![name]!, tenants[name]!, passed);
      known.current = found;
    } else {
      // It is the first, or much has passed, or the server or its tenants are others.
      known.current = before ? await get<History>("v1/history", signal) : found;
    }
    return known.current;
  }, [owner], 5);
}

const TENANTS_SHOWN = 5; // a chart has colours for so many
const CHARTS: [string, [string, string][], (value: number) => string][] = [
  ["Tokens a second", [["computed", "decode_tokens"], ["prompt", "prefill_tokens"],
    ["from the cache", "cached_tokens"]], count],
  ["Rows a step", [["rows", "step_rows"]], count],
  ["Device busy", [["share", "device_busy"]], (value) => `${(100 * value).toFixed(0)} %`],
  ["Live runs and waiting preds", [["runs", "runs_live"], ["preds", "preds_waiting"]], count],
  ["Tokens that wait for a step", [["tokens", "tokens_waiting"]], count],
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
            <Chart title="Tokens that wait, by tenant" times={times}
              series={byTenant("tokens_waiting")} show={count} />
          </>
        )
        : null}
    </div>
  );
}

function Roles({ readiness, history }: { readiness: Readiness; history: History | undefined }) {
  const resident = history?.roles.resident_bytes; // operators alone see it
  return (
    <Table columns={["Role", "State", "Process", "Started again", ...(resident ? ["Memory"] : []), "Contained by"]}
      empty="No role is there.">
      {readiness.roles.map((role) => {
        const state = role.hangs ? "hangs" : role.ready ? "ready" : "starting";
        const memory = resident?.[role.role];
        const restarts = history?.roles.restarts[role.role];
        return (
          <tr>
            <td>{role.role}</td>
            <td><Status value={state} /> {role.progress ? role.progress.what : ""}</td>
            <td>{role.pid ?? "–"}</td>
            <td>{restarts === undefined ? "–" : restarts}</td>
            {resident ? <td>{memory === undefined ? "–" : bytes(memory)}</td> : null}
            <td>{Object.keys(role.containment ?? {}).join(", ") || "–"}</td>
          </tr>
        );
      })}
    </Table>
  );
}

function Changes({ history }: { history: History }) {
  const changes = history.roles.changes.slice(-CHANGES_SHOWN).reverse();
  return (
    <Table columns={["At", "Role", "State", "Process"]} empty="Nothing has changed.">
      {changes.map((each) => (
        <tr>
          <td>{time(each.at_ms)}</td>
          <td>{each.role}</td>
          <td><Status value={each.state} /></td>
          <td>{each.pid ?? "–"}</td>
        </tr>
      ))}
    </Table>
  );
}

export function Overview({ owner }: { owner: string }) {
  const ready = useLoaded(async () => {
    const answer = await fetch("readyz"); // 503 is an answer, too
    return (await answer.json()) as Readiness;
  }, [], 5);
  const history = useHistory(owner);
  const readiness = ready.value;
  return (
    <>
      <h1>Overview</h1>
      <Words error={ready.error ?? history.error} />
      {history.value ? <Charts history={history.value} /> : null}
      {readiness
        ? (
          <Panel title="Roles">
            {[...readiness.missing, ...readiness.degraded].map((words) => (
              <p class="problem" role="alert">{words}</p>
            ))}
            <Roles readiness={readiness} history={history.value} />
          </Panel>
        )
        : null}
      {history.value ? <Panel title="What became of the roles"><Changes history={history.value} /></Panel> : null}
    </>
  );
}
