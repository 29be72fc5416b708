// Numbers, bytes and times as people read them.

export function count(value: number): string {
  if (!Number.isFinite(value)) return "–";
  if (Math.abs(value) >= 1e6) return `${(value / 1e6).toFixed(1)} M`;
  if (Math.abs(value) >= 1e4) return `${(value / 1e3).toFixed(1)} k`;
  return value.toLocaleString("en", { maximumFractionDigits: value < 10 ? 2 : 0 });
}

export function bytes(value: number): string {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let at = 0;
  while (value >= 1024 && at < units.length - 1) {
    value /= 1024;
    at += 1;
  }
  return `${value.toFixed(at && value < 10 ? 1 : 0)} ${units[at]}`;
}

/** Milliseconds as text. */
export function duration(ms: number): string {
  if (ms < 1) return `${(ms * 1000).toFixed(0)} µs`;
  if (ms < 1000) return `${ms.toFixed(ms < 10 ? 1 : 0)} ms`;
  if (ms < 60_000) return `${(ms / 1000).toFixed(1)} s`;
  const minutes = Math.floor(ms / 60_000);
  if (minutes < 60) return `${minutes} min ${Math.round((ms % 60_000) / 1000)} s`;
  return `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
}

/** A time in Unix milliseconds, as local text. */
export function time(ms: number): string {
  const at = new Date(ms);
  const today = new Date().toDateString() === at.toDateString();
  const clock = at.toLocaleTimeString("en-GB");
  return today ? clock : `${at.toISOString().slice(0, 10)} ${clock}`;
}

/** What a limit counts, as text, by its name. */
export function limited(name: string, value: number): string {
  if (name.endsWith("_ms")) return duration(value);
  if (name.endsWith("bytes")) return bytes(value);
  return count(value);
}
