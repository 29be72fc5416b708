// A chart of some series over time, by uPlot.
import { useEffect, useRef } from "preact/hooks";
import uPlot from "uplot";

export interface Series {
  label: string;
  values: (number | null)[];
}

const COLOURS = ["--series-1", "--series-2", "--series-3", "--series-4", "--series-5"];

function clock(seconds: number): string {
  return new Date(seconds * 1000).toLocaleTimeString("en-GB");
}

function colour(name: string): string {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

/** Draw series over `times` (Unix seconds). The table below it says the last values in words. */
export function Chart({ title, times, series, show }: {
  title: string;
  times: number[];
  series: Series[];
  show: (value: number) => string;
}) {
  const box = useRef<HTMLDivElement>(null);
  const plot = useRef<uPlot>(undefined);
  const names = series.map((each) => each.label).join("\n");
  useEffect(() => {
    const place = box.current!;
    const axis = { stroke: colour("--faint"), grid: { stroke: colour("--line"), width: 1 } };
    const made = new uPlot(
      {
        width: place.clientWidth,
        height: 160,
        legend: { show: false },
        cursor: { drag: { x: false, y: false } },
        scales: { y: { range: (_, low, high) => [Math.min(0, low), high > 0 ? high * 1.1 : 1] } },
        axes: [
          { ...axis, space: 90, values: (_: uPlot, marks: number[]) => marks.map(clock) },
          { ...axis, size: 64, values: (_: uPlot, marks: number[]) => marks.map(show) },
        ],
        series: [
          {},
          ...series.map((each, index) => ({
            label: each.label,
            stroke: colour(COLOURS[index % COLOURS.length]!),
            width: 1.5,
            points: { show: false },
          })),
        ],
      },
      [[], ...series.map(() => [])],
      place,
    );
    plot.current = made;
    const resized = new ResizeObserver(() => made.setSize({ width: place.clientWidth, height: 160 }));
    resized.observe(place);
    return () => {
      resized.disconnect();
      made.destroy();
    };
  }, [names]);
  useEffect(() => {
    plot.current?.setData([times, ...series.map((each) => each.values)]);
  }, [names, times]);
  const last = (each: Series) => {
    const value = each.values.at(-1);
    return value === null || value === undefined ? "–" : show(value);
  };
  return (
    <figure class="chart">
      <figcaption>
        <strong>{title}</strong>
        {series.map((each, index) => (
          <span class="legend">
            <i class={`swatch series-${(index % COLOURS.length) + 1}`} />
            {each.label} <b>{last(each)}</b>
          </span>
        ))}
      </figcaption>
      <div ref={box} aria-hidden="true" />
    </figure>
  );
}
