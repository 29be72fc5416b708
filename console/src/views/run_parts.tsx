// Parts of the view of one run: its usage against its limits, its children, and how to run it again.
import { ask, get, send, type Run, type Usage as Used } from "../api";
import { count, duration, limited } from "../format";
import { Action, Bar, Panel, Status, useLoaded, Words } from "../parts";
import { go, href } from "../router";

const PAGE_TOKENS = 16;

interface Child {
  number: number;
  parent: number | null;
  program: string;
  program_name: string | null;
  entry: string | null;
  status: string;
  exit_code: number | null;
  reason: string;
  usage: Used | null;
  created_ms: number;
  ended_ms: number | null;
}

function usedOf(run: Run): Record<string, number | undefined> {
  const usage = run.usage;
  if (!usage) {
    return {
      wall_ms: Date.now() - run.created_ms,
      tokens: run.held?.tokens,
      kv_tokens: run.held && run.held.kv_pages * PAGE_TOKENS,
      children: run.held && run.held.instances - 1,
    };
  }
  return {
    wall_ms: usage.wall_ms,
    cpu_ms: usage.cpu_ms,
    memory_bytes: usage.peak_memory_bytes,
    tokens: usage.prompt_tokens + usage.completion_tokens,
  };
}

export function Usage({ run }: { run: Run }) {
  const usage = run.usage;
  const hit = run.limit ?? run.waits_for;
  const used = usedOf(run);
  return (
    <>
      {Object.entries(used).map(([name, value]) => {
        const most = run.limits[name];
        if (value === undefined || most === undefined) return null;
        return <Bar label={name} value={value} of={most}
          text={`${limited(name, value)} of ${limited(name, most)}`} />;
      })}
      {hit
        ? (
          <p class="problem">
            {run.limit ? "Ended by the limit" : "Held up by the limit"} {hit}
            {run.limits[hit] === undefined ? "" : ` of ${limited(hit, run.limits[hit]!)}`}.
          </p>
        )
        : null}
      <p class="hint">
        {usage
          ? `${usage.prompt_tokens} prompt tokens computed, ${usage.cached_tokens} more from the cache, ${
            usage.completion_tokens} generated, ${usage.syscalls} system calls.`
          : "The rest of what it has used is known at its end."}
      </p>
    </>
  );
}

function Branch({ child, below }: { child: Child; below: Map<number, Child[]> }) {
  const under = below.get(child.number) ?? [];
  const tokens = child.usage ? child.usage.prompt_tokens + child.usage.completion_tokens : 0;
  return (
    <li>
      <Status value={child.status} /> {child.program_name ?? child.program.slice(0, 19)}
      {child.entry ? ` (${child.entry})` : ""}
      {child.exit_code ? `, exit code ${child.exit_code}` : ""}{" "}
      <span class="figure">
        {duration((child.ended_ms ?? Date.now()) - child.created_ms)}
        {child.usage ? `, ${count(tokens)} tokens` : ""} {child.reason}
      </span>
      {under.length
        ? <ul>{under.map((each) => <Branch key={each.number} child={each} below={below} />)}</ul>
        : null}
    </li>
  );
}

/** The tree of a run's children; nothing while it has none. */
export function Children({ id, live }: { id: string; live: boolean }) {
  const loaded = useLoaded(
    (signal) => get<{ data: Child[]; left_out: number }>(`v1/runs/${id}/children`, signal),
    [id, live],
    live ? 2 : 0,
  );
  const children = loaded.value?.data ?? [];
  if (!children.length) return loaded.error ? <Words error={loaded.error} /> : null;
  const below = new Map<number, Child[]>();
  for (const child of children) {
    const parent = child.parent ?? 0;
    below.set(parent, [...(below.get(parent) ?? []), child]);
  }
  const left = loaded.value!.left_out;
  return (
    <Panel title={`Children: ${count(children.length + left)}`}>
      <ul class="tree">
        {(below.get(0) ?? []).map((each) => <Branch key={each.number} child={each} below={below} />)}
      </ul>
      {left ? <p class="hint">{count(left)} more are not kept.</p> : null}
    </Panel>
  );
}

/** Start a run's program again, as it was started. */
export function Again({ run }: { run: Run }) {
  const again = async () => {
    const input = await (await ask(`v1/runs/${run.id}/input`)).text();
    const { entry, limits, priority } = run;
    const path = `v1/programs/${encodeURIComponent(run.program)}/runs?detach=1`;
    const started = await send<{ id: string }>("POST", path, { input, entry, limits, priority });
    go("runs", started!.id);
  };
  return (
    <>
      <Action label="Run again with its input" run={again} />
      <a class="button" href={href("playground", run.program_name ?? run.program)}>
        Open its program in the playground
      </a>
    </>
  );
}
