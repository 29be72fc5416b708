// The trace of a run, as the server gives it to Perfetto, cut into lanes.
import { ask } from "./api";

/** What a pred waited for, in µs. */
export type State = "throttle" | "queue" | "pages" | "step";
export const STATES: State[] = ["throttle", "queue", "pages", "step"];

export type Chance = [token: string, probability: number];

export interface Args {
  name?: string;
  instance?: number;
  result?: number;
  ticket?: number;
  tokens?: number;
  errno?: number;
  waits_us?: Partial<Record<State, number>>;
  // Of a pred: its file with the entries before it, its tokens, and the token that came of it.
  file?: number;
  at?: number;
  text?: string[];
  before?: string[];
  fork_of?: number;
  fork_at?: number;
  kept?: boolean;
  token?: string;
  probability?: number;
  alternatives?: Chance[];
  allowed?: number;
  forbidden?: number;
  unmasked?: Chance;
  [name: string]: unknown;
}

export interface TraceEvent {
  name: string;
  cat?: string;
  ph: string;
  pid: number;
  tid: number;
  ts: number; // µs
  dur: number;
  args: Args;
}

export interface Lane {
  group: string;
  name: string;
  instance: number; // 0: of no program
  events: TraceEvent[]; // by their begin
  rows: number[]; // of each event: in which row it is drawn
  height: number; // rows
  longest: number; // µs, of its events
}

export interface Trace {
  lanes: Lane[];
  count: number; // events
  end: number; // µs
  lost: number; // events that are no longer kept
  preds: TraceEvent[]; // by their ends
}

export interface TraceFile {
  traceEvents: TraceEvent[];
  otherData: { lost_events: number };
}

const GATEWAY = 1;
const WORKER = 2;
const STEPS_TRACK = 1; // of the kernel

export async function fetchTrace(run: string): Promise<Blob> {
  return (await ask(`v1/runs/${run}/trace`)).blob();
}

/** Cut a trace into lanes; events within others of their lane have rows of their own. */
export function readTrace(file: TraceFile): Trace {
  const found = new Map<string, Lane>();
  const workers = file.traceEvents.find((event) => event.ph === "M" && event.pid === WORKER);
  for (const { name, ph, pid, tid, args } of file.traceEvents) {
    if (ph !== "M" || name !== "thread_name") continue;
    const kernel = tid === STEPS_TRACK ? "Steps" : "Preds";
    const group = pid === GATEWAY ? "Gateway" : pid === WORKER ? `Instances of ${workers?.args.name}` : kernel;
    found.set(`${pid} ${tid}`, {
      group, name: args.name!.replace(/^run run_.*/, "run"), instance: args.instance ?? 0,
      events: [], rows: [], height: 1, longest: 0,
    });
  }
  let end = 1;
  let count = 0;
  for (const event of file.traceEvents) {
    if (event.ph !== "X") continue;
    found.get(`${event.pid} ${event.tid}`)?.events.push(event);
    end = Math.max(end, event.ts + event.dur);
    count += 1;
  }
  const lanes = [...found.entries()].filter(([, lane]) => lane.events.length)
    .sort(([a], [b]) => a.localeCompare(b, "en", { numeric: true })).map(([, lane]) => lane);
  for (const lane of lanes) layOut(lane);
  const preds = lanes.flatMap((lane) => lane.events.filter((event) => event.cat === "pred"))
    .sort((a, b) => a.ts + a.dur - b.ts - b.dur);
  return { lanes, count, end, lost: file.otherData.lost_events, preds };
}

function layOut(lane: Lane): void {
  lane.events.sort((a, b) => a.ts - b.ts || b.dur - a.dur);
  const ends: number[] = [];
  for (const event of lane.events) {
    let row = 0;
    while (row < ends.length && ends[row]! > event.ts) row += 1;
    // A row behind one that is free is free as well: what it held lay within that.
    ends.length = row;
    ends.push(event.ts + event.dur);
    lane.rows.push(row);
    lane.height = Math.max(lane.height, row + 1);
    lane.longest = Math.max(lane.longest, event.dur);
  }
}

/** The index of a lane's first event that may be seen from a time on. */
export function firstSeen(lane: Lane, at: number): number {
  let [low, high] = [0, lane.events.length];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (lane.events[middle]!.ts < at - lane.longest) low = middle + 1;
    else high = middle;
  }
  return low;
}

/** The preds whose tokens an event is about: its own, those in its step, those it waited for. */
export class PredIndex {
  private readonly bySpan = new Map<TraceEvent, TraceEvent>();
  private readonly byStep = new Map<number, TraceEvent[]>(); // by the step's end
  private readonly byTicket = new Map<string, TraceEvent[]>();
  private readonly byInstance = new Map<number, TraceEvent[]>();

  constructor(trace: Trace) {
    for (const lane of trace.lanes) {
      if (lane.group !== "Preds") continue;
      let pred: TraceEvent | null = null;
      for (const event of lane.events) {
        if (event.cat === "pred") pred = event;
        else if (pred) {
          this.bySpan.set(event, pred);
          if (event.cat === "step") add(this.byStep, end(event), pred);
        }
      }
    }
    for (const pred of trace.preds) {
      add(this.byTicket, `${pred.args.instance} ${pred.args.ticket}`, pred);
      add(this.byInstance, pred.args.instance ?? 0, pred);
    }
  }

  of(event: TraceEvent, lane: Lane): TraceEvent[] {
    if (event.cat === "pred") return [event];
    const own = this.bySpan.get(event);
    if (own) return [own];
    if (lane.group === "Steps") return this.byStep.get(end(event)) ?? [];
    if (event.name === "pred" || event.name === "generate") {
      return this.byTicket.get(`${lane.instance} ${event.args.result}`) ?? [];
    }
    if (!event.args.waits_us) return [];
    const preds = this.byInstance.get(lane.instance) ?? [];
    let at = preds.findIndex((pred) => end(pred) > event.ts);
    const found: TraceEvent[] = [];
    for (; at >= 0 && at < preds.length && end(preds[at]!) <= end(event); at += 1) found.push(preds[at]!);
    return found;
  }
}

export function end(event: TraceEvent): number {
  return Math.round((event.ts + event.dur) * 1000) / 1000;
}

function add<K>(map: Map<K, TraceEvent[]>, key: K, pred: TraceEvent): void {
  const found = map.get(key);
  if (found) found.push(pred);
  else map.set(key, [pred]);
}
