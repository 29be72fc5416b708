// The pages of one file as a strip: coloured by tier, marked where they are shared or cached.
import { useEffect, useMemo, useRef, useState } from "preact/hooks";

import { count } from "../format";
import { href } from "../router";
import { type KvPages, others, type PageRange, range, TIERS } from "./shown";

const SIZES = [24, 16, 12, 8, 6, 4]; // of a page, in pixels: the largest that fits
const HEIGHT_MAX = 320;
const ROWS_SHOWN = 200; // of the table
// How much of a page is filled, so that tiers differ without colours, too.
const FILLED: Record<string, number> = { device: 1, host: 0.75, disk: 0.5, tokens: 0.25 };

interface Grid {
  size: number;
  columns: number;
  height: number;
}

export function gridOf(pages: number, width: number): Grid {
  for (const size of SIZES) {
    const columns = Math.max(Math.floor(width / size), 1);
    const height = Math.ceil(pages / columns) * size;
    if (height <= HEIGHT_MAX || size === SIZES.at(-1)) return { size, columns, height };
  }
  throw new Error("there is a size");
}

/** The found of a page, by bisection. */
export function rangeAt(ranges: PageRange[], page: number): PageRange | undefined {
  let [low, high] = [0, ranges.length];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (ranges[middle]!.first + ranges[middle]!.pages <= page) low = middle + 1;
    else high = middle;
  }
  return ranges[low];
}

function title(file: KvPages, page: number): string {
  const first = page * file.page_tokens;
  return `page ${page}: tokens ${range(first, Math.min(file.page_tokens, file.len - first))}`;
}

function words(file: KvPages, found: PageRange, page: number): string {
  const sharers = [...found.files, ...others(found)];
  return `${title(file, page)}, ${TIERS[found.tier]}, ${
    sharers.length ? `shared with ${sharers.join(", ")}` : "not shared"}`;
}

/** A canvas with all pages, to be copied while a page is pointed at. */
function drawn(ranges: PageRange[], grid: Grid, width: number): HTMLCanvasElement {
  const style = getComputedStyle(document.documentElement);
  const colour = (name: string) => style.getPropertyValue(name).trim();
  const canvas = document.createElement("canvas");
  canvas.width = width * devicePixelRatio;
  canvas.height = grid.height * devicePixelRatio;
  const context = canvas.getContext("2d")!;
  context.scale(devicePixelRatio, devicePixelRatio);
  const cell = sideOf(grid);
  const cut = Math.max(Math.floor(cell * 0.45), 2);
  const [text, panel] = [colour("--text"), colour("--panel")];
  for (const found of ranges) {
    const filled = Math.max(Math.round(cell * (FILLED[found.tier] ?? 1)), 1);
    const tier = colour(`--tier-${found.tier}`);
    for (let page = found.first; page < found.first + found.pages; page += 1) {
      const [x, y] = placeOf(page, grid);
      context.fillStyle = tier;
      context.fillRect(x, y + cell - filled, cell, filled);
      if (found.cached && cell > 3) { // a line across
        context.fillStyle = panel;
        context.fillRect(x, y + cell - 3, cell, 1);
      }
      if (found.holders) { // a dark corner
        context.fillStyle = text;
        context.beginPath();
        context.moveTo(x + cell - cut, y);
        context.lineTo(x + cell, y);
        context.lineTo(x + cell, y + cut);
        context.fill();
      }
    }
  }
  return canvas;
}

function sideOf(grid: Grid): number {
  return grid.size - (grid.size > 6 ? 2 : 1);
}

function placeOf(page: number, grid: Grid): [number, number] {
  return [(page % grid.columns) * grid.size, Math.floor(page / grid.columns) * grid.size];
}

function show(canvas: HTMLCanvasElement, pages: HTMLCanvasElement, grid: Grid, page: number): void {
  canvas.width = pages.width;
  canvas.height = pages.height;
  const context = canvas.getContext("2d")!;
  context.drawImage(pages, 0, 0);
  context.scale(devicePixelRatio, devicePixelRatio);
  const [x, y] = placeOf(page, grid);
  context.strokeStyle = getComputedStyle(document.documentElement).getPropertyValue("--text");
  context.lineWidth = 2;
  context.strokeRect(x + 1, y + 1, sideOf(grid) - 2, sideOf(grid) - 2);
}

/** What the arrow keys and others make of a page. */
function moved(key: string, page: number, file: KvPages, columns: number): number | null {
  const found = rangeAt(file.data, page);
  switch (key) {
    case "ArrowRight": return page + 1;
    case "ArrowLeft": return page - 1;
    case "ArrowDown": return page + columns;
    case "ArrowUp": return page - columns;
    case "Home": return 0;
    case "End": return file.pages - 1;
    case "PageDown": return found ? found.first + found.pages : page;
    case "PageUp": return found ? found.first - 1 : page;
    default: return null;
  }
}

function Legend({ file }: { file: KvPages }) {
  return (
    <ul class="marks">
      {Object.entries(TIERS).map(([tier, title]) => (
        <li><span class={`mark tier-${tier}`} /> {title}: {count(file.tiers?.[tier] ?? 0)}</li>
      ))}
      <li><span class="mark shared" /> shared with other files</li>
      <li><span class="mark cached" /> in the prefix cache</li>
    </ul>
  );
}

function Sharers({ found }: { found: PageRange }) {
  const rest = others(found);
  if (!found.files.length && !rest.length) return <>not shared</>;
  return (
    <>
      shared with{" "}
      {found.files.map((path, at) => (
        <>{at ? ", " : ""}<a href={href("files", path)}>{path}</a></>
      ))}
      {found.files.length && rest.length ? ", " : ""}{rest.join(", ")}
    </>
  );
}

function Rows({ file }: { file: KvPages }) {
  const left = file.data.length - ROWS_SHOWN;
  return (
    <details>
      <summary>The pages as a table</summary>
      <div class="scroll" tabIndex={0} role="region" aria-label="pages as a table">
        <table>
          <thead>
            <tr>
              <th scope="col">Pages</th><th scope="col">Tokens</th><th scope="col">Where</th>
              <th scope="col">Shared</th>
            </tr>
          </thead>
          <tbody>
            {file.data.slice(0, ROWS_SHOWN).map((found) => {
              const first = found.first * file.page_tokens;
              const end = Math.min(first + found.pages * file.page_tokens, file.len);
              return (
                <tr key={found.first}>
                  <td>{range(found.first, found.pages)}</td>
                  <td>{range(first, end - first)}</td>
                  <td>{TIERS[found.tier]}</td>
                  <td><Sharers found={found} /></td>
                </tr>
              );
            })}
          </tbody>
        </table>
      </div>
      {left > 0 ? <p class="hint">And {count(left)} rows more.</p> : null}
    </details>
  );
}

/** `choose` takes the page that is chosen with a click or a key. */
export function Strip({ file, chosen, choose }: {
  file: KvPages; chosen: number; choose: (page: number) => void;
}) {
  const canvas = useRef<HTMLCanvasElement>(null);
  const [width, setWidth] = useState(800);
  const [pointed, setPointed] = useState(-1);
  const [dark, setDark] = useState(false);
  const grid = useMemo(() => gridOf(file.pages, width), [file.pages, width]);
  useEffect(() => {
    const resized = new ResizeObserver(() => setWidth(canvas.current?.clientWidth ?? 800));
    resized.observe(canvas.current!);
    const scheme = matchMedia("(prefers-color-scheme: dark)");
    const changed = () => setDark(scheme.matches);
    scheme.addEventListener("change", changed);
    return () => {
      resized.disconnect();
      scheme.removeEventListener("change", changed);
    };
  }, []);
  const marked = pointed >= 0 ? pointed : chosen;
  const pages = useMemo(() => drawn(file.data, grid, width), [file, grid, width, dark]);
  const rows = useMemo(() => <Rows file={file} />, [file]);
  useEffect(() => show(canvas.current!, pages, grid, marked), [pages, grid, marked]);
  const find = (event: PointerEvent | MouseEvent): number => {
    const box = canvas.current!.getBoundingClientRect();
    const column = Math.floor((event.clientX - box.left) / grid.size);
    const page = Math.floor((event.clientY - box.top) / grid.size) * grid.columns + column;
    return column < grid.columns && page < file.pages ? page : -1;
  };
  const shown = rangeAt(file.data, marked);
  const current = rangeAt(file.data, chosen);
  return (
    <>
      <Legend file={file} />
      <canvas ref={canvas} class="strip" style={{ height: `${grid.height}px` }} tabIndex={0}
        role="slider" aria-label="pages" aria-valuemin={0} aria-valuemax={file.pages - 1}
        aria-valuenow={chosen} aria-valuetext={current ? words(file, current, chosen) : ""}
        onPointerMove={(event) => setPointed(find(event))}
        onPointerLeave={() => setPointed(-1)}
        onClick={(event) => {
          const page = find(event);
          if (page >= 0) choose(page);
        }}
        onKeyDown={(event) => {
          const page = moved(event.key, chosen, file, grid.columns);
          if (page === null) return;
          event.preventDefault();
          setPointed(-1);
          choose(Math.min(Math.max(page, 0), file.pages - 1));
        }}
      />
      <p class="facts">
        {shown ? <><b>{title(file, marked)}</b>, {TIERS[shown.tier]},{" "}
          <Sharers found={shown} /></> : null}
      </p>
      {file.complete ? null : (
        <p class="hint">There are too many names to compare all: more files may share pages.</p>
      )}
      {rows}
    </>
  );
}
