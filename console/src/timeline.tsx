// The timeline of a traced run: lanes on a canvas, what is under the cursor, and tables.
import { useEffect, useMemo, useRef, useState } from "preact/hooks";

import { Board, shownToken, STATE_WORDS, type Place } from "./board";
import { count, duration } from "./format";
import { PredIndex, STATES, type Args, type Trace, type TraceEvent } from "./trace";

const SEEN_MAX = 480; // pixels of the lanes; the rest is scrolled to
const TOLD_MAX = 5; // preds under the cursor
const PAGE = 50; // rows of the table
const LEGEND = [
  ["syscall", "call"], ["wait", "program waits"], ["outside", "tool or HTTP"], ["pred", "pred"],
  ["throttle", "throttle"], ["queue", "queue"], ["pages", "pages"], ["step", "step"],
];

const ms = (us: number) => duration(us / 1000);
export const percent = (share: number) => `${(100 * share).toFixed(share < 0.0995 ? 1 : 0)} %`;

/** What a wait was for, as a bar and in words. */
function Waits({ waits, whole }: { waits: NonNullable<Args["waits_us"]>; whole: number }) {
  const known = STATES.filter((state) => (waits[state] ?? 0) > 0);
  const rest = whole - known.reduce((sum, state) => sum + waits[state]!, 0);
  return (
    <div class="waits">
      <div class="split" aria-hidden="true">
        {known.map((state) => (
          <span class={`of-${state}`} style={{ width: `${(100 * waits[state]!) / whole}%` }} />
        ))}
      </div>
      {known.map((state) => (
        <span class="legend" title={STATE_WORDS[state]}>
          <i class={`swatch of-${state}`} /> {state} <b>{ms(waits[state]!)}</b>
        </span>
      ))}
      {rest > whole / 100 ? <span class="legend">other <b>{ms(rest)}</b></span> : null}
    </div>
  );
}

/** A pred's tokens, and the one that came of them. */
function PredTokens({ pred }: { pred: TraceEvent }) {
  const { args } = pred;
  if (!args.text) return null;
  const given = args.text.map(shownToken).join("");
  return (
    <li>
      file {args.file} at {args.at}: <code>{given.length > 160 ? `…${given.slice(-160)}` : given}</code>
      {args.token === undefined ? null : <> → <code>{shownToken(args.token)}</code> {percent(args.probability!)}</>}
      {args.forbidden ? `, ${percent(args.forbidden)} forbidden (${args.allowed} tokens allowed)` : ""}
    </li>
  );
}

function Detail({ place, index }: { place: Place; index: PredIndex }) {
  const { event, lane } = place;
  const preds = index.of(event, lane);
  const { result, errno, own_tokens: tokens, own_rows: rows } = event.args;
  return (
    <>
      <p>
        <b>{event.name}</b> of {lane.group}, {lane.name}: {ms(event.dur)} from {ms(event.ts)}
        {result === undefined ? "" : `, result ${result}`}
        {errno ? `, errno ${errno}` : ""}
        {rows === undefined ? "" : `, ${rows} own rows, ${tokens} own tokens`}
      </p>
      {event.args.waits_us && event.dur > 0 ? <Waits waits={event.args.waits_us} whole={event.dur} /> : null}
      <ul class="told">
        {preds.slice(0, TOLD_MAX).map((pred) => <PredTokens pred={pred} />)}
        {preds.length > TOLD_MAX ? <li>and {preds.length - TOLD_MAX} more preds</li> : null}
      </ul>
    </>
  );
}

/** Time that each kind of event took, most first. */
function sums(trace: Trace): [string, number, number][] {
  const found = new Map<string, [number, number]>();
  for (const lane of trace.lanes) {
    for (const event of lane.events) {
      if (event.cat === "run" || event.cat === "instance") continue;
      const name = lane.group === "Preds" && event.cat === "wait" ? `preds: ${event.name}`
        : event.cat === "wait" ? `program waits: ${event.name}` : `${event.cat}: ${event.name}`;
      const before = found.get(name) ?? [0, 0];
      found.set(name, [before[0] + event.dur, before[1] + 1]);
    }
  }
  return [...found.entries()].map(([name, [time, times]]): [string, number, number] =>
    [name, time, times]).sort((a, b) => b[1] - a[1]);
}

function EventTable({ trace }: { trace: Trace }) {
  const [chosen, setChosen] = useState(0);
  const [page, setPage] = useState(0);
  const lane = trace.lanes[chosen];
  if (!lane) return null;
  const shown = lane.events.slice(page * PAGE, (page + 1) * PAGE);
  const last = Math.max(Math.ceil(lane.events.length / PAGE) - 1, 0);
  return (
    <>
      <div class="filters">
        <label>
          Lane
          <select value={chosen} onChange={(event) => {
            setChosen(Number(event.currentTarget.value));
            setPage(0);
          }}>
            {trace.lanes.map((each, number) => (
              <option value={number}>{each.group}, {each.name} ({each.events.length} events)</option>
            ))}
          </select>
        </label>
        <button type="button" disabled={!page} onClick={() => setPage(page - 1)}>Earlier</button>
        <button type="button" disabled={page >= last} onClick={() => setPage(page + 1)}>Later</button>
        <span role="status">page {page + 1} of {last + 1}</span>
      </div>
      <div class="scroll" tabIndex={0} role="region" aria-label="events of the lane">
        <table>
          <thead>
            <tr>
              <th scope="col">Begins</th><th scope="col">Takes</th><th scope="col">Event</th>
              <th scope="col">Waits</th><th scope="col">Tokens</th>
            </tr>
          </thead>
          <tbody>
            {shown.map((event) => (
              <tr>
                <td>{ms(event.ts)}</td><td>{ms(event.dur)}</td><td>{event.name}</td>
                <td>
                  {STATES.filter((state) => event.args.waits_us?.[state])
                    .map((state) => `${state} ${ms(event.args.waits_us![state]!)}`).join(", ")}
                </td>
                <td>
                  {event.args.text
                    ? `${event.args.text.map(shownToken).join("").slice(-80)}${
                      event.args.token === undefined ? "" : ` → ${shownToken(event.args.token)}`}`
                    : ""}
                </td>
              </tr>
            ))}
          </tbody>
        </table>
      </div>
    </>
  );
}

/** What the board's keys do; whether this was one. */
function press(board: Board, key: string, place: Place | null, mark: (to: Place | null) => void): boolean {
  const steps: Record<string, [number, number]> = {
    n: [0, 1], p: [0, -1], ArrowDown: [1, 0], ArrowUp: [-1, 0],
  };
  const step = steps[key];
  if (step) mark(board.step(place, ...step));
  else if (key === "+" || key === "=") board.zoom(0.7);
  else if (key === "-") board.zoom(1.4);
  else if (key === "ArrowLeft") board.pan(-0.2);
  else if (key === "ArrowRight") board.pan(0.2);
  else if (key === "0") board.move(0, Infinity);
  else if (key === "Enter" && place) board.show(place.event);
  else if (key === "Escape" && place) mark(null);
  else return false;
  return true;
}

function Lanes({ trace }: { trace: Trace }) {
  const canvas = useRef<HTMLCanvasElement>(null);
  const scroller = useRef<HTMLDivElement>(null);
  const board = useRef<Board>(undefined);
  const index = useMemo(() => new PredIndex(trace), [trace]);
  const [place, setPlace] = useState<Place | null>(null);
  const [height, setHeight] = useState(0);
  const fixed = useRef(false); // an event was chosen: the cursor does not change it
  useEffect(() => {
    const made = new Board(canvas.current!, trace);
    board.current = made;
    setHeight(made.height);
    const resized = new ResizeObserver(() => made.redraw());
    resized.observe(canvas.current!);
    const scheme = matchMedia("(prefers-color-scheme: dark)");
    const recolour = () => made.recolour();
    scheme.addEventListener("change", recolour);
    return () => {
      resized.disconnect();
      scheme.removeEventListener("change", recolour);
      made.close();
    };
  }, [trace]);
  const mark = (to: Place | null) => {
    setPlace(to);
    board.current!.mark(to?.event ?? null);
  };
  const choose = (to: Place | null) => {
    fixed.current = to !== null;
    mark(to);
    const box = scroller.current!;
    if (!to) return;
    const top = board.current!.topOf(to);
    if (top < box.scrollTop + 30 || top > box.scrollTop + box.clientHeight - 30) box.scrollTop = top - 60;
  };
  const point = (event: PointerEvent) => {
    if (event.buttons & 1) {
      board.current!.drag(event.movementX);
      return;
    }
    const box = canvas.current!.getBoundingClientRect();
    const hit = board.current!.find(event.clientX - box.left, event.clientY - box.top);
    if (!fixed.current && hit?.event !== place?.event) mark(hit);
  };
  return (
    <>
      <p class="legends">
        {LEGEND.map(([kind, words]) => (
          <span class="legend"><i class={`swatch of-${kind}`} /> {words}</span>
        ))}
      </p>
      <div class="lanes" ref={scroller} style={{ maxHeight: `${SEEN_MAX}px` }}
        onScroll={(event) => {
          board.current!.top = event.currentTarget.scrollTop;
          board.current!.redraw();
        }}>
        <canvas ref={canvas} class="timeline" tabIndex={0} role="application"
          aria-roledescription="timeline" aria-describedby="timeline-keys"
          aria-label={`${count(trace.count)} events in ${trace.lanes.length} lanes`}
          style={{ height: `${Math.min(height, SEEN_MAX)}px` }}
          onWheel={(event) => {
            if (event.shiftKey) return; // scrolls the lanes
            event.preventDefault();
            const at = board.current!.timeAt(event.clientX - canvas.current!.getBoundingClientRect().left);
            board.current!.zoom(event.deltaY > 0 ? 1.25 : 0.8, at);
          }}
          onKeyDown={(event) => {
            if (!event.ctrlKey && !event.metaKey && press(board.current!, event.key, place, choose)) event.preventDefault();
          }}
          onPointerMove={point}
          onPointerLeave={() => {
            if (!fixed.current) mark(null);
          }}
          onClick={(event) => {
            const box = canvas.current!.getBoundingClientRect();
            const hit = board.current!.find(event.clientX - box.left, event.clientY - box.top);
            fixed.current = hit !== null;
            mark(hit);
          }} />
        <div style={{ height: `${Math.max(height - SEEN_MAX, 0)}px` }} />
      </div>
      <p class="hint" id="timeline-keys">
        Point at an event; a click or <kbd>n</kbd>, <kbd>p</kbd>, <kbd>↑</kbd>, <kbd>↓</kbd> choose one,{" "}
        <kbd>Enter</kbd> fills the view with it, <kbd>Esc</kbd> lets go. The wheel or <kbd>+</kbd> and{" "}
        <kbd>−</kbd> zoom, dragging or <kbd>←</kbd> and <kbd>→</kbd> move, <kbd>0</kbd> shows all.
      </p>
      <div class="event" role="status">{place ? <Detail place={place} index={index} /> : null}</div>
    </>
  );
}

export function Timeline({ trace }: { trace: Trace }) {
  const [listed, setListed] = useState(false);
  return (
    <>
      {trace.lost
        ? <p class="hint">The first {count(trace.lost)} events are not kept: a trace has the last ones.</p>
        : null}
      <Lanes trace={trace} />
      <details>
        <summary>Time by kind</summary>
        <table>
          <thead><tr><th scope="col">Kind</th><th scope="col">Time</th><th scope="col">Times</th></tr></thead>
          <tbody>
            {sums(trace).slice(0, 30).map(([name, time, times]) => (
              <tr><td>{name}</td><td>{ms(time)}</td><td>{times}</td></tr>
            ))}
          </tbody>
        </table>
      </details>
      <details onToggle={(event) => setListed(event.currentTarget.open)}>
        <summary>Events as a table</summary>
        {listed ? <EventTable trace={trace} /> : null}
      </details>
    </>
  );
}
