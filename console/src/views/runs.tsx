// The tenant's runs, newest first; live ones with what they hold.
import { useEffect, useState } from "preact/hooks";

import { get, send, type Page, type Run } from "../api";
import { count, duration, time } from "../format";
import { Action, Status, Table, Words } from "../parts";
import { href } from "../router";

const SHOWN = 200;
const LIVE = new Set(["queued", "running", "ending"]);

interface Filter {
  program: string;
  status: string;
  limit: string;
  live: boolean;
}

function fits(run: Run, filter: Filter): boolean {
  const program = run.program_name ?? run.program;
  return program.includes(filter.program) && (!filter.status || run.status === filter.status)
    && (!filter.limit || (run.limit ?? run.waits_for) === filter.limit);
}

function used(run: Run): number {
  return run.usage ? run.usage.prompt_tokens + run.usage.completion_tokens : 0;
}

export function Runs() {
  const [filter, setFilter] = useState<Filter>({ program: "", status: "", limit: "", live: false });
  const [runs, setRuns] = useState<Run[]>([]);
  const [next, setNext] = useState<string | null>(null);
  const [error, setError] = useState<unknown>();
  const [turn, setTurn] = useState(0);
  const load = async (after?: string, control?: AbortSignal) => {
    const query = new URLSearchParams({ limit: String(SHOWN) });
    if (filter.live) query.set("live", "1");
    if (after) query.set("after", after);
    try {
      const page = await get<Page<Run>>(`v1/runs?${query}`, control);
      setRuns((before) => (after ? [...before, ...page.data] : page.data));
      setNext(page.next);
      setError(undefined);
    } catch (problem) {
      if (!control?.aborted) setError(problem);
    }
  };
  useEffect(() => {
    const control = new AbortController();
    void load(undefined, control.signal);
    // A page further down stays as it is while it is read.
    const timer = setInterval(() => {
      if (filter.live || runs.length <= SHOWN) void load(undefined, control.signal);
    }, 2000);
    return () => {
      control.abort();
      clearInterval(timer);
    };
  }, [filter.live, turn, runs.length > SHOWN]);
  const shown = runs.filter((run) => fits(run, filter));
  const some = (values: (string | null)[]) => [...new Set(values)].filter(Boolean) as string[];
  return (
    <>
      <h1>Runs</h1>
      <form class="filters" onSubmit={(event) => event.preventDefault()}>
        <label>
          Program
          <input value={filter.program}
            onInput={(event) => setFilter({ ...filter, program: event.currentTarget.value })} />
        </label>
        <label>
          Status
          <select value={filter.status}
            onChange={(event) => setFilter({ ...filter, status: event.currentTarget.value })}>
            <option value="">any</option>
            {["queued", "running", "ending", "exited", "trapped", "killed", "failed"].map((name) => (
              <option>{name}</option>
            ))}
          </select>
        </label>
        <label>
          Limit
          <select value={filter.limit}
            onChange={(event) => setFilter({ ...filter, limit: event.currentTarget.value })}>
            <option value="">any</option>
            {some(runs.map((run) => run.limit ?? run.waits_for)).map((name) => <option>{name}</option>)}
          </select>
        </label>
        <label class="check">
          <input type="checkbox" checked={filter.live}
            onChange={(event) => setFilter({ ...filter, live: event.currentTarget.checked })} />
          live only
        </label>
        <output>{shown.length} of {runs.length}{next ? " or more" : ""}</output>
      </form>
      <Words error={error} />
      <Table empty="No run fits."
        columns={["Run", "Program", "Status", "Began", "Took", "Tokens", "Holds", ""]}>
        {shown.map((run) => (
          <tr key={run.id}>
            <td><a href={href("runs", run.id)}>{run.id.slice(0, 16)}</a></td>
            <td>{run.program_name ?? run.program.slice(0, 19)}</td>
            <td>
              <Status value={run.status} /> {run.limit ?? ""}
              {run.waits_for ? `waits: ${run.waits_for}` : ""}
            </td>
            <td>{time(run.created_ms)}</td>
            <td>{duration((run.ended_ms ?? Date.now()) - run.created_ms)}</td>
            <td>{count(run.held?.tokens ?? used(run))}</td>
            <td>{run.held ? `${count(run.held.kv_pages)} pages, ${run.held.instances} instances` : ""}</td>
            <td>
              {LIVE.has(run.status)
                ? (
                  <Action label="Cancel" run={async () => {
                    await send("POST", `v1/runs/${run.id}/cancel`);
                    setTurn(turn + 1);
                  }} />
                )
                : null}
            </td>
          </tr>
        ))}
      </Table>
      {next ? <button type="button" onClick={() => load(next)}>Older runs</button> : null}
    </>
  );
}
