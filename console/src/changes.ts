// The stream of changes of all of the tenant's runs.
import { ask, events, Problem, type Run } from "./api";

const REST_MS = [1_000, 10_000] as const; // before the stream is opened again: first, longest

/** A run as the stream tells it: its limits never change, so they are not there. */
export type Change = Omit<Run, "limits"> & { kept?: boolean };

/**
 * Follow all runs until `signal` aborts, and connect again after a loss. `begin` is called when
 * changes may be missing, also at first: list the runs then.
 */
export async function followRuns(
  signal: AbortSignal,
  begin: () => void,
  change: (run: Change) => void,
): Promise<void> {
  let last = "0";
  let rest: number = REST_MS[0];
  while (!signal.aborted) {
    try {
      const answer = await ask("v1/events", { signal, headers: { "Last-Event-ID": last } });
      rest = REST_MS[0];
      for await (const event of events(answer)) {
        last = event.id;
        const data = JSON.parse(event.data) as Change & { resumed?: boolean };
        if (event.event === "run") change(data);
        else if (event.event === "begin" && !data.resumed) begin();
      }
    } catch (problem) {
      if (signal.aborted) return;
      if (problem instanceof Problem && problem.status < 500 && problem.status !== 429) throw problem;
    }
    await new Promise((done) => setTimeout(done, rest));
    rest = Math.min(2 * rest, REST_MS[1]);
  }
}
