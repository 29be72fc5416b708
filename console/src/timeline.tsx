// The timeline of a traced run, on a canvas: gateway, instances, preds and steps over time.
import { useEffect, useMemo, useRef, useState } from "preact/hooks";

import { ask, Problem } from "./api";
import { duration } from "./format";
import { Action, Panel, Words } from "./parts";

interface TraceEvent {
  name: string;
  cat?: string;
  ph: string;
  pid: number;
  tid: number;
  ts: number; // µs
  dur: number;
  args: Record<string, unknown>;
}

interface Lane {
  name: string;
  events: TraceEvent[]; // by their begin
  rows: number[]; // of each event: in which row it is drawn
  height: number; // rows
}

const ROW = 18;
const GAP = 14;
const RULER = 22;
const LEFT = 150;
const PIECES = 1600; // a lane's events are drawn as at most so many rectangles

/** Cut a trace into lanes; events that overlap in one lane have rows of their own. */
export function lanesOf(events: TraceEvent[]): Lane[] {
  const processes = new Map<number, string>();
  const threads = new Map<string, string>();
  const found = new Map<string, Lane>();
  for (const event of events) {
    if (event.ph !== "M") continue;
    const name = String(event.args["name"]);
    if (event.name === "process_name") processes.set(event.pid, name);
    else if (event.name === "thread_name") {
      threads.set(`${event.pid} ${event.tid}`, name.replace(/^run run_.*/, "run"));
    }
  }
  for (const event of events) {
    if (event.ph !== "X") continue;
    const place = `${event.pid} ${event.tid}`;
    let lane = found.get(place);
    if (!lane) {
      const name = threads.get(place) ?? `${processes.get(event.pid) ?? event.pid} ${event.tid}`;
      lane = { name, events: [], rows: [], height: 1 };
      found.set(place, lane);
    }
    lane.events.push(event);
  }
  const lanes = [...found.entries()].sort(([a], [b]) => a.localeCompare(b, "en", { numeric: true }))
    .map(([, lane]) => lane);
  for (const lane of lanes) {
    lane.events.sort((a, b) => a.ts - b.ts || b.dur - a.dur);
    const ends: number[] = [];
    for (const event of lane.events) {
      let row = ends.findIndex((end) => end <= event.ts);
      if (row < 0) row = ends.length;
      ends[row] = event.ts + event.dur;
      lane.rows.push(row);
    }
    lane.height = Math.max(ends.length, 1);
  }
  return lanes;
}

interface Look {
  from: number; // µs
  to: number;
}

/** The first event of a lane that may end after a time; none begins before it in its row. */
function firstAfter(lane: Lane, at: number, longest: number): number {
  let [low, high] = [0, lane.events.length];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (lane.events[middle]!.ts < at - longest) low = middle + 1;
    else high = middle;
  }
  return low;
}

function draw(
  canvas: HTMLCanvasElement, lanes: Lane[], longest: number[], look: Look, marked: TraceEvent | null,
): void {
  const style = getComputedStyle(document.documentElement);
  const colour = (name: string) => style.getPropertyValue(name).trim();
  const colours = new Map<string, string>();
  const of = (event: TraceEvent) => {
    const name = `--trace-${event.cat ?? "other"}`;
    let found = colours.get(name);
    if (!found) colours.set(name, found = colour(name) || colour("--faint"));
    return found;
  };
  const ratio = devicePixelRatio;
  const width = canvas.clientWidth;
  const height = canvas.clientHeight;
  if (canvas.width !== width * ratio || canvas.height !== height * ratio) {
    canvas.width = width * ratio;
    canvas.height = height * ratio;
  }
  const context = canvas.getContext("2d")!;
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  context.clearRect(0, 0, width, height);
  context.font = "12px system-ui, sans-serif";
  context.textBaseline = "middle";
  const scale = (width - LEFT) / (look.to - look.from);
  ruler(context, look, scale, width, height, colour("--faint"), colour("--line"));
  let top = RULER;
  lanes.forEach((lane, number) => {
    context.fillStyle = colour("--text");
    context.fillText(lane.name, 4, top + ROW / 2, LEFT - 8);
    const least = (look.to - look.from) / PIECES;
    const drawn: number[] = []; // by row: to where it is full
    for (let at = firstAfter(lane, look.from, longest[number]!); at < lane.events.length; at += 1) {
      const event = lane.events[at]!;
      if (event.ts > look.to) break;
      const row = lane.rows[at]!;
      const end = event.ts + event.dur;
      if (end < look.from || (end < (drawn[row] ?? -Infinity) && event !== marked)) continue;
      drawn[row] = Math.max(event.ts, end) + least;
      const x = LEFT + Math.max(event.ts - look.from, 0) * scale;
      const size = Math.max((Math.min(end, look.to) - Math.max(event.ts, look.from)) * scale, 1);
      context.fillStyle = of(event);
      context.fillRect(x, top + row * ROW, size, ROW - 3);
      if (event === marked) {
        context.strokeStyle = colour("--text");
        context.strokeRect(x, top + row * ROW, size, ROW - 3);
      }
      if (size > 40) {
        context.fillStyle = colour("--on-trace");
        context.fillText(event.name, x + 3, top + row * ROW + (ROW - 3) / 2, size - 6);
      }
    }
    top += lane.height * ROW + GAP;
  });
}

function ruler(
  context: CanvasRenderingContext2D, look: Look, scale: number, width: number, height: number,
  text: string, line: string,
): void {
  let step = 1;
  while (step * scale < 90) step *= step.toString().startsWith("2") ? 2.5 : 2;
  context.strokeStyle = line;
  context.fillStyle = text;
  for (let at = Math.ceil(look.from / step) * step; at < look.to; at += step) {
    const x = LEFT + (at - look.from) * scale;
    context.beginPath();
    context.moveTo(x, RULER - 4);
    context.lineTo(x, height);
    context.stroke();
    context.fillText(duration(at / 1000), x + 2, RULER / 2, width - x);
  }
}

/** Time that each kind of event took, most first. */
function sums(events: TraceEvent[]): [string, number, number][] {
  const found = new Map<string, [number, number]>();
  for (const event of events) {
    if (event.ph !== "X" || event.cat === "run" || event.cat === "instance") continue;
    const name = event.cat === "wait" ? `waits: ${event.name}` : `${event.cat}: ${event.name}`;
    const before = found.get(name) ?? [0, 0];
    found.set(name, [before[0] + event.dur, before[1] + 1]);
  }
  return [...found.entries()].map(([name, [time, times]]): [string, number, number] =>
    [name, time, times]).sort((a, b) => b[1] - a[1]);
}

function Canvas({ events }: { events: TraceEvent[] }) {
  const canvas = useRef<HTMLCanvasElement>(null);
  const lanes = useMemo(() => lanesOf(events), [events]);
  const longest = useMemo(
    () => lanes.map((lane) => lane.events.reduce((most, event) => Math.max(most, event.dur), 0)), [lanes]);
  const whole = useMemo(() => {
    const ends = events.filter((event) => event.ph === "X").map((event) => event.ts + event.dur);
    return { from: 0, to: ends.reduce((a, b) => Math.max(a, b), 1) };
  }, [events]);
  const look = useRef<Look>(whole);
  const marked = useRef<TraceEvent | null>(null);
  const frame = useRef(0);
  const [words, setWords] = useState("");
  const height = RULER + lanes.reduce((sum, lane) => sum + lane.height * ROW + GAP, 0);
  const redraw = () => {
    frame.current ||= requestAnimationFrame(() => {
      frame.current = 0;
      if (canvas.current) draw(canvas.current, lanes, longest, look.current, marked.current);
    });
  };
  useEffect(() => {
    look.current = whole;
    redraw();
    const resized = new ResizeObserver(redraw);
    resized.observe(canvas.current!);
    return () => {
      resized.disconnect();
      cancelAnimationFrame(frame.current);
      frame.current = 0;
    };
  }, [whole]);
  const timeAt = (x: number) => {
    const { from, to } = look.current;
    return from + ((x - LEFT) / (canvas.current!.clientWidth - LEFT)) * (to - from);
  };
  const move = (from: number, to: number) => {
    const size = Math.min(to - from, whole.to);
    const begin = Math.min(Math.max(from, 0), whole.to - size);
    look.current = { from: begin, to: begin + size };
    redraw();
  };
  const zoom = (factor: number, at: number) => {
    const { from, to } = look.current;
    const size = Math.max((to - from) * factor, 5);
    move(at - (at - from) * (size / (to - from)), at - (at - from) * (size / (to - from)) + size);
  };
  const pan = (share: number) => {
    const { from, to } = look.current;
    move(from + (to - from) * share, to + (to - from) * share);
  };
  const find = (x: number, y: number): TraceEvent | null => {
    let top = RULER;
    for (const [number, lane] of lanes.entries()) {
      const size = lane.height * ROW;
      if (y >= top && y < top + size) {
        const row = Math.floor((y - top) / ROW);
        const at = timeAt(x);
        const slack = (look.current.to - look.current.from) / 500;
        for (let i = firstAfter(lane, at, longest[number]!); i < lane.events.length; i += 1) {
          const event = lane.events[i]!;
          if (event.ts > at + slack) break;
          if (lane.rows[i] === row && event.ts + event.dur >= at - slack) return event;
        }
      }
      top += size + GAP;
    }
    return null;
  };
  const point = (event: PointerEvent) => {
    const box = canvas.current!.getBoundingClientRect();
    if (event.buttons & 1) {
      const { from, to } = look.current;
      const moved = (-event.movementX / (box.width - LEFT)) * (to - from);
      move(from + moved, to + moved);
      return;
    }
    const hit = find(event.clientX - box.left, event.clientY - box.top);
    if (hit === marked.current) return;
    marked.current = hit;
    setWords(hit ? `${hit.name}: ${duration(hit.dur / 1000)} from ${duration(hit.ts / 1000)} ${
      Object.entries(hit.args).map(([name, value]) => `${name} ${value}`).join(", ")}` : "");
    redraw();
  };
  return (
    <>
      <p class="hint" role="status">
        {words || "Point at an event. Wheel or + and − zoom, dragging or ← and → move, 0 shows all."}
      </p>
      <canvas ref={canvas} class="timeline" tabIndex={0} style={{ height: `${height}px` }}
        role="img" aria-label={`timeline of ${events.length} events in ${lanes.length} lanes`}
        onWheel={(event) => {
          event.preventDefault();
          const at = timeAt(event.clientX - canvas.current!.getBoundingClientRect().left);
          zoom(event.deltaY > 0 ? 1.25 : 0.8, at);
        }}
        onKeyDown={(event) => {
          const { from, to } = look.current;
          if (event.key === "+" || event.key === "=") zoom(0.7, (from + to) / 2);
          else if (event.key === "-") zoom(1.4, (from + to) / 2);
          else if (event.key === "ArrowLeft") pan(-0.2);
          else if (event.key === "ArrowRight") pan(0.2);
          else if (event.key === "0") move(0, whole.to);
          else return;
          event.preventDefault();
        }}
        onPointerMove={point}
      />
    </>
  );
}

export function Timeline({ run }: { run: string }) {
  const [events, setEvents] = useState<TraceEvent[] | null>(null);
  const [error, setError] = useState<unknown>();
  useEffect(() => {
    ask(`v1/runs/${run}/trace`)
      .then((answer) => answer.json())
      .then((trace: { traceEvents: TraceEvent[] }) => setEvents(trace.traceEvents))
      .catch((problem: unknown) => setError(problem));
  }, [run]);
  if (error instanceof Problem && error.status === 404) {
    return <p class="hint">The run was not traced: start it with <code>trace</code>.</p>;
  }
  if (!events) return <Words error={error} />;
  return (
    <Panel title="Timeline" actions={
      <Action label="Download for Perfetto" run={async () => {
        const link = document.createElement("a");
        link.href = URL.createObjectURL(await (await ask(`v1/runs/${run}/trace`)).blob());
        link.download = `${run}.json`;
        link.click();
        URL.revokeObjectURL(link.href);
      }} />
    }>
      <Canvas events={events} />
      <details>
        <summary>Time by kind</summary>
        <table>
          <thead><tr><th scope="col">Kind</th><th scope="col">Time</th><th scope="col">Times</th></tr></thead>
          <tbody>
            {sums(events).slice(0, 30).map(([name, time, times]) => (
              <tr><td>{name}</td><td>{duration(time / 1000)}</td><td>{times}</td></tr>
            ))}
          </tbody>
        </table>
      </details>
    </Panel>
  );
}
