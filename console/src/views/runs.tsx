// The tenant's runs, newest first, as the stream of their changes tells them; live ones with what they hold.
import { useEffect, useMemo, useRef, useState } from "preact/hooks";

import { get, send, type Page, type Run } from "../api";
import { followRuns, type Change } from "../changes";
import { count, duration, time } from "../format";
import { Action, Status, Words } from "../parts";
import { href } from "../router";
import { LongTable } from "../rows";

const PAGE = 200;
const LIVE_PAGE = 500;
const KEPT = 5_000; // runs in the page: past it the oldest that have ended go
const SHOW_MS = 250; // changes that come meanwhile are shown together
const HELD_MS = 5_000;
const LIVE = new Set(["queued", "running", "ending"]);
const STATUSES = ["queued", "running", "ending", "exited", "trapped", "killed", "failed"];

interface Filter {
  program: string;
  status: string;
  limit: string;
  live: boolean;
}

function fits(run: Change, filter: Filter): boolean {
  const program = run.program_name ?? run.program;
  return program.includes(filter.program) && (!filter.status || run.status === filter.status)
    && (!filter.limit || (run.limit ?? run.waits_for) === filter.limit)
    && (!filter.live || LIVE.has(run.status));
}

function used(run: Change): number {
  return run.usage ? run.usage.prompt_tokens + run.usage.completion_tokens : 0;
}

function newestFirst(one: Change, other: Change): number {
  return other.created_ms - one.created_ms || (one.id < other.id ? 1 : -1);
}

/** What the server is asked for; names of programs are compared here, as far as runs are loaded. */
function asked(filter: Filter, more: Record<string, string>): string {
  const query = new URLSearchParams(more);
  if (filter.status) query.set("status", filter.status);
  if (filter.limit) query.set("limit_hit", filter.limit);
  if (filter.live) query.set("live", "1");
  return `v1/runs?${query}`;
}

/** The runs that are known here, and what happens to them. */
function useRuns(filter: Filter) {
  const runs = useRef(new Map<string, Change>());
  const [shown, setShown] = useState<Change[]>([]);
  const [next, setNext] = useState<string | null>(null);
  const [error, setError] = useState<unknown>();
  const timer = useRef(0);
  const show = () => {
    timer.current = 0;
    const sorted = [...runs.current.values()].sort(newestFirst);
    for (const run of sorted.slice(KEPT)) if (!LIVE.has(run.status)) runs.current.delete(run.id);
    setShown(sorted.filter((run) => runs.current.has(run.id)));
  };
  const showSoon = () => {
    timer.current ||= window.setTimeout(show, SHOW_MS);
  };
  const add = (run: Change) => {
    if (run.kept === false && !LIVE.has(run.status)) runs.current.delete(run.id); // as in the list
    else runs.current.set(run.id, { ...runs.current.get(run.id), ...run });
    showSoon();
  };
  const load = async (signal: AbortSignal | undefined, after?: string) => {
    const limit = filter.live ? LIVE_PAGE : PAGE;
    const more = { limit: String(limit), ...(after ? { after } : {}) };
    const page = await get<Page<Run>>(asked(filter, more), signal);
    page.data.forEach(add);
    show();
    if (page.next && filter.live) await load(signal, page.next); // all live ones
    else setNext(page.next);
  };
  useEffect(() => {
    const control = new AbortController();
    const failed = (problem: unknown) => {
      if (!control.signal.aborted) setError(problem);
    };
    runs.current.clear();
    followRuns(
      control.signal,
      () => load(control.signal).then(() => setError(undefined), failed),
      add,
    ).catch(failed);
    return () => {
      control.abort();
      clearTimeout(timer.current);
      timer.current = 0;
    };
  }, [filter.status, filter.limit, filter.live]);
  return { runs: shown, next, error, add, older: () => load(undefined, next ?? undefined) };
}

/** Ask from time to time what the live runs in sight hold. */
function useHeld(rows: Change[], seen: () => [number, number], filter: Filter, add: (run: Change) => void) {
  const latest = useRef(rows);
  latest.current = rows;
  useEffect(() => {
    const control = new AbortController();
    const look = async () => {
      const [first, last] = seen();
      const sight = latest.current.slice(first, last);
      if (sight.some((run) => LIVE.has(run.status)) && !document.hidden) {
        const above = latest.current[first - 1];
        const limit = String(filter.program ? LIVE_PAGE : Math.max(50, last - first));
        const page = await get<Page<Run>>(
          asked({ ...filter, live: true }, { limit, ...(above ? { after: above.id } : {}) }),
          control.signal,
        ).catch(() => ({ data: [] })); // the next look may have an answer
        page.data.forEach(add);
      }
    };
    const timer = setInterval(look, HELD_MS);
    void look();
    return () => {
      control.abort();
      clearInterval(timer);
    };
  }, [filter, rows.length > 0]);
}

function row(run: Change) {
  return (
    <tr key={run.id}>
      <td><a href={href("runs", run.id)}>{run.id.slice(0, 16)}</a></td>
      <td title={run.program}>{run.program_name ?? run.program.slice(0, 19)}</td>
      <td>
        <Status value={run.status} /> {run.limit ?? ""}
        {run.waits_for ? `waits: ${run.waits_for}` : ""}
      </td>
      <td>{time(run.created_ms)}</td>
      <td>{duration((run.ended_ms ?? Date.now()) - run.created_ms)}</td>
      <td>{count(run.usage ? used(run) : run.held?.tokens ?? 0)}</td>
      <td>
        {run.held && !run.usage ? `${count(run.held.kv_pages)} pages, ${run.held.instances} instances` : ""}
      </td>
      <td>
        {LIVE.has(run.status)
          ? <Action label="Cancel" run={() => send("POST", `v1/runs/${run.id}/cancel`)} />
          : null}
      </td>
    </tr>
  );
}

export function Runs() {
  const [filter, setFilter] = useState<Filter>({ program: "", status: "", limit: "", live: false });
  const { runs, next, error, add, older } = useRuns(filter);
  const [limits, setLimits] = useState<string[]>([]);
  const [, setSecond] = useState(0);
  const shown = useMemo(() => runs.filter((run) => fits(run, filter)), [runs, filter]);
  const sight = useRef<[number, number]>([0, 0]);
  useHeld(shown, () => sight.current, filter, add);
  useEffect(() => {
    const timer = setInterval(() => setSecond((before) => before + 1), 1000); // times pass
    get<{ limits: Record<string, unknown> }>("v1/limits").then(
      (found) => setLimits(Object.keys(found.limits)), () => {});
    return () => clearInterval(timer);
  }, []);
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
            {STATUSES.map((name) => <option>{name}</option>)}
          </select>
        </label>
        <label>
          Limit hit
          <select value={filter.limit}
            onChange={(event) => setFilter({ ...filter, limit: event.currentTarget.value })}>
            <option value="">any</option>
            {limits.map((name) => <option>{name}</option>)}
          </select>
        </label>
        <label class="check">
          <input type="checkbox" checked={filter.live}
            onChange={(event) => setFilter({ ...filter, live: event.currentTarget.checked })} />
          live only
        </label>
        <output>{shown.length}{next ? " or more" : ""} runs</output>
      </form>
      <Words error={error} />
      <LongTable label="runs" empty="No run fits." rows={shown} row={row}
        columns={["Run", "Program", "Status", "Began", "Took", "Tokens", "Holds", ""]}
        seen={(first, last) => {
          sight.current = [first, last];
        }} />
      {next ? <Action label="Older runs" run={older} /> : null}
    </>
  );
}
