// A table of many rows, of which those in sight are in the document.
import type { ComponentChildren } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";

const ROW = 32; // pixels, as in the style sheet
const SPARE = 10; // rows above and below those in sight

/** Draw `rows`, all of one height. `seen` gets the first and the last row in sight. */
export function LongTable<T>({ label, columns, rows, row, empty, seen }: {
  label: string;
  columns: string[];
  rows: T[];
  row: (item: T) => ComponentChildren;
  empty: string;
  seen?: (first: number, last: number) => void;
}) {
  const box = useRef<HTMLDivElement>(null);
  const [first, setFirst] = useState(0);
  const [room, setRoom] = useState(30);
  const there = rows.length > 0;
  useEffect(() => {
    const place = box.current;
    if (!place) return;
    const measure = new ResizeObserver(() => setRoom(Math.ceil(place.clientHeight / ROW)));
    measure.observe(place);
    return () => measure.disconnect();
  }, [there]);
  const from = Math.max(0, Math.min(first, rows.length - room));
  useEffect(() => seen?.(from, Math.min(from + room, rows.length)), [from, room, rows.length]);
  if (!there) return <p class="empty">{empty}</p>;
  const begin = Math.max(0, from - SPARE);
  const shown = rows.slice(begin, from + room + SPARE);
  const below = rows.length - begin - shown.length;
  const gap = (count: number) => count > 0
    ? <tr aria-hidden="true" class="gap" style={{ height: `${count * ROW}px` }}><td colSpan={columns.length} /></tr>
    : null;
  return (
    <div class="scroll long" ref={box} tabIndex={0} role="region" aria-label={label}
      onScroll={(event) => setFirst(Math.floor(event.currentTarget.scrollTop / ROW))}>
      <table aria-rowcount={rows.length + 1}>
        <thead><tr>{columns.map((name) => <th scope="col">{name}</th>)}</tr></thead>
        <tbody>
          {gap(begin)}
          {shown.map(row)}
          {gap(below)}
        </tbody>
      </table>
    </div>
  );
}
