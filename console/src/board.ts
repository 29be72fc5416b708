// Draws a trace's lanes on a canvas: which part is seen, what is where, what is marked.
import { duration } from "./format";
import { firstSeen, STATES, type Lane, type State, type Trace, type TraceEvent } from "./trace";

const ROW = 18;
const GAP = 6;
const RULER = 22;
const LEFT = 150;
const SPLIT = 4; // pixels at the foot of a wait, which show what it was for
const LEAST = 5; // µs, seen at once
const LABELLED = 34; // pixels of a span with its name or its token
const LABELLED_WHOLE = 110; // with both

export interface Place {
  lane: Lane;
  event: TraceEvent;
}

/** The name of an event's colour. */
export function kindOf(event: TraceEvent): string {
  if (event.cat === "wait") {
    if (event.name === "throttled") return "throttle";
    if (event.name === "queued") return "queue";
    if (event.name === "pages") return "pages";
  }
  return event.cat ?? "run";
}

/** A token as it is read: spaces and line ends are seen. */
export function shownToken(text: string): string {
  return text.replaceAll("\n", "⏎").replaceAll("\t", "⇥").replaceAll(" ", "␣") || "∅";
}

export class Board {
  from = 0; // µs
  to: number;
  top = 0; // pixels that are scrolled away
  marked: TraceEvent | null = null;
  readonly height: number; // pixels of all lanes
  private readonly tops: number[] = []; // of the lanes
  private readonly palette = new Map<string, string>();
  private frame = 0;

  constructor(private readonly canvas: HTMLCanvasElement, private readonly trace: Trace) {
    this.to = trace.end;
    let at = RULER;
    trace.lanes.forEach((lane, number) => {
      if (lane.group !== trace.lanes[number - 1]?.group) at += ROW;
      this.tops.push(at);
      at += lane.height * ROW + GAP;
    });
    this.height = at;
  }

  // --- What is seen ------------------------------------------------------------------------------
  /** The colours are others: the reader's system has changed. */
  recolour(): void {
    this.palette.clear();
    this.redraw();
  }

  move(from: number, to: number): void {
    const size = Math.min(to - from, this.trace.end);
    this.from = Math.min(Math.max(from, 0), this.trace.end - size);
    this.to = this.from + size;
    this.redraw();
  }

  pan(share: number): void {
    const moved = (this.to - this.from) * share;
    this.move(this.from + moved, this.to + moved);
  }

  zoom(factor: number, at = (this.from + this.to) / 2): void {
    const size = Math.max((this.to - this.from) * factor, LEAST);
    const before = (at - this.from) * (size / (this.to - this.from));
    this.move(at - before, at - before + size);
  }

  show(event: TraceEvent): void {
    const margin = Math.max(event.dur, LEAST) / 4;
    this.move(event.ts - margin, event.ts + Math.max(event.dur, LEAST) + margin);
  }

  /** Mark an event, and move as far as it needs to be seen. */
  mark(event: TraceEvent | null): void {
    this.marked = event;
    if (event && (event.ts + event.dur < this.from || event.ts > this.to)) {
      const half = (this.to - this.from) / 2;
      this.move(event.ts - half, event.ts + half);
    }
    this.redraw();
  }

  /** Where a lane's row of an event is, in pixels below the first lane. */
  topOf({ lane, event }: Place): number {
    const row = lane.rows[lane.events.indexOf(event)] ?? 0;
    return this.tops[this.trace.lanes.indexOf(lane)]! + row * ROW;
  }

  // --- What is where -----------------------------------------------------------------------------
  timeAt(x: number): number {
    return this.from + ((x - LEFT) / (this.canvas.clientWidth - LEFT)) * (this.to - this.from);
  }

  /** Pan by pixels. */
  drag(pixels: number): void {
    this.pan(-pixels / (this.canvas.clientWidth - LEFT));
  }

  find(x: number, y: number): Place | null {
    const at = this.timeAt(x);
    const slack = (this.to - this.from) / 500;
    for (const [number, lane] of this.trace.lanes.entries()) {
      const row = Math.floor((y + this.top - this.tops[number]!) / ROW);
      if (y < RULER || row < 0 || row >= lane.height) continue;
      let best: TraceEvent | null = null;
      for (let i = firstSeen(lane, at - slack); i < lane.events.length; i += 1) {
        const event = lane.events[i]!;
        if (event.ts > at + slack) break;
        if (lane.rows[i] !== row || event.ts + event.dur < at - slack) continue;
        if (!best || distance(event, at) <= distance(best, at)) best = event;
      }
      return best && { lane, event: best };
    }
    return null;
  }

  /** The event next to another in its lane, the first seen in the next lane, or the first of all. */
  step(from: Place | null, lanes: number, events: number): Place | null {
    const number = from ? this.trace.lanes.indexOf(from.lane) : -lanes;
    const lane = this.trace.lanes[Math.min(Math.max(number + lanes, 0), this.trace.lanes.length - 1)];
    if (!lane) return null;
    if (from && lane === from.lane) {
      const at = lane.events.indexOf(from.event) + events;
      return { lane, event: lane.events[Math.min(Math.max(at, 0), lane.events.length - 1)]! };
    }
    const at = from ? from.event.ts : this.from;
    const first = lane.events.find((event) => event.ts >= at) ?? lane.events[lane.events.length - 1]!;
    return { lane, event: first };
  }

  // --- Drawing -----------------------------------------------------------------------------------
  redraw(): void {
    this.frame ||= requestAnimationFrame(() => {
      this.frame = 0;
      this.draw();
    });
  }

  close(): void {
    cancelAnimationFrame(this.frame);
    this.frame = 0;
  }

  private colour(name: string): string {
    let found = this.palette.get(name);
    if (found === undefined) {
      const style = getComputedStyle(document.documentElement);
      found = style.getPropertyValue(name).trim() || style.getPropertyValue("--faint").trim();
      this.palette.set(name, found);
    }
    return found;
  }

  private draw(): void {
    const { canvas } = this;
    const width = canvas.clientWidth;
    const height = canvas.clientHeight;
    const ratio = devicePixelRatio;
    if (canvas.width !== Math.round(width * ratio) || canvas.height !== Math.round(height * ratio)) {
      canvas.width = Math.round(width * ratio);
      canvas.height = Math.round(height * ratio);
    }
    const context = canvas.getContext("2d")!;
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    context.clearRect(0, 0, width, height);
    context.font = "12px system-ui, sans-serif";
    context.textBaseline = "middle";
    const scale = (width - LEFT) / (this.to - this.from);
    this.drawRuler(context, scale, width, height);
    context.save();
    context.beginPath();
    context.rect(0, RULER, width, height - RULER);
    context.clip();
    this.trace.lanes.forEach((lane, number) => {
      const top = this.tops[number]! - this.top;
      if (top > height || top + lane.height * ROW < 0) return;
      if (lane.group !== this.trace.lanes[number - 1]?.group) {
        context.fillStyle = this.colour("--faint");
        context.fillText(lane.group, 4, top - ROW / 2, width);
      }
      context.fillStyle = this.colour("--text");
      context.fillText(lane.name, 12, top + ROW / 2, LEFT - 20);
      this.drawLane(context, lane, top, scale, 1 / scale);
    });
    context.restore();
    if (!performance.getEntriesByName("timeline").length) performance.mark("timeline");
  }

  /** Draw a lane's events in `top`; those within a pixel (`least` µs) of one before are left out. */
  private drawLane(
    context: CanvasRenderingContext2D, lane: Lane, top: number, scale: number, least: number,
  ): void {
    const full: number[] = []; // by row: until when its pixels are drawn
    for (let at = firstSeen(lane, this.from); at < lane.events.length; at += 1) {
      const event = lane.events[at]!;
      if (event.ts > this.to) break;
      const row = lane.rows[at]!;
      const end = event.ts + event.dur;
      if (end < this.from || (end < (full[row] ?? -Infinity) && event !== this.marked)) continue;
      full[row] = end + least;
      const x = LEFT + Math.max(event.ts - this.from, 0) * scale;
      const size = Math.max((Math.min(end, this.to) - Math.max(event.ts, this.from)) * scale, 1);
      const y = top + row * ROW;
      context.fillStyle = this.colour(`--trace-${kindOf(event)}`);
      context.fillRect(x, y, size, ROW - 3);
      if (event.args.waits_us && event.cat === "wait" && size > 2) {
        this.drawSplit(context, event, LEFT + (event.ts - this.from) * scale, y, event.dur * scale);
      }
      if (event === this.marked) {
        context.strokeStyle = this.colour("--text");
        context.lineWidth = 2;
        context.strokeRect(x + 1, y + 1, Math.max(size - 2, 1), ROW - 5);
      }
      if (size > LABELLED) {
        context.fillStyle = this.colour("--on-trace");
        const token = event.cat === "pred" ? event.args.token : undefined;
        const shown = token === undefined ? "" : shownToken(token);
        const label = !shown ? event.name : size > LABELLED_WHOLE ? `${event.name} → ${shown}` : shown;
        context.fillText(label, x + 3, y + (ROW - 3) / 2, size - 6);
      }
    }
  }

  /** Draw which share of a program's wait its preds had in each state. */
  private drawSplit(
    context: CanvasRenderingContext2D, event: TraceEvent, x: number, y: number, size: number,
  ): void {
    for (const state of STATES) {
      const share = (event.args.waits_us?.[state] ?? 0) / event.dur;
      const part = Math.min(share, 1) * size;
      const [from, to] = [Math.max(x, LEFT), Math.min(x + part, this.canvas.clientWidth)];
      context.fillStyle = this.colour(`--trace-${state}`);
      if (to > from) context.fillRect(from, y + ROW - 3 - SPLIT, to - from, SPLIT);
      x += part;
    }
  }

  private drawRuler(
    context: CanvasRenderingContext2D, scale: number, width: number, height: number,
  ): void {
    let step = 1;
    while (step * scale < 90) step *= step.toString().startsWith("2") ? 2.5 : 2;
    context.strokeStyle = this.colour("--line");
    context.fillStyle = this.colour("--faint");
    context.lineWidth = 1;
    for (let at = Math.ceil(this.from / step) * step; at < this.to; at += step) {
      const x = LEFT + (at - this.from) * scale;
      context.beginPath();
      context.moveTo(x, RULER - 4);
      context.lineTo(x, height);
      context.stroke();
      context.fillText(duration(at / 1000), x + 2, RULER / 2, width - x);
    }
  }
}

function distance(event: TraceEvent, at: number): number {
  return Math.max(event.ts - at, at - event.ts - event.dur, 0);
}

export const STATE_WORDS: Record<State, string> = {
  throttle: "held by the tenant's rate of tokens",
  queue: "in the fair queue",
  pages: "waiting for KV pages",
  step: "in a step of the device",
};
