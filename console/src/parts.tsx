// Parts that several views share.
import type { ComponentChildren } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";

import { Problem } from "./api";

export function Words({ error }: { error: unknown }) {
  if (!error) return null;
  const status = error instanceof Problem ? ` (${error.status})` : "";
  return <p class="problem" role="alert">{(error as Error).message}{status}</p>;
}

export function Status({ value }: { value: string }) {
  return <span class={`status ${value}`}>{value}</span>;
}

/** A share of a maximum as a bar with its words. */
export function Bar({ label, value, of, text }: {
  label: string; value: number; of: number; text: string;
}) {
  const share = of > 0 ? Math.min(value / of, 1) : 0;
  return (
    <div class="bar">
      <span class="name">{label}</span>
      <meter min={0} max={1} value={share} aria-label={label}>{text}</meter>
      <span class="figure">{text}</span>
    </div>
  );
}

export function Panel({ title, children, actions }: {
  title: string; children: ComponentChildren; actions?: ComponentChildren;
}) {
  return (
    <section class="panel">
      <header><h2>{title}</h2>{actions}</header>
      {children}
    </section>
  );
}

export function Table({ columns, children, empty }: {
  columns: string[]; children: ComponentChildren[]; empty: string;
}) {
  if (!children.length) return <p class="empty">{empty}</p>;
  return (
    <div class="scroll" tabIndex={0} role="region" aria-label="table">
      <table>
        <thead><tr>{columns.map((name) => <th scope="col">{name}</th>)}</tr></thead>
        <tbody>{children}</tbody>
      </table>
    </div>
  );
}

/** The value that `load` returns, loaded again each `seconds` (0: once) and after `reload()`. */
export function useLoaded<T>(
  load: (signal: AbortSignal) => Promise<T>,
  depends: unknown[],
  seconds = 0,
): { value: T | undefined; error: unknown; reload: () => void } {
  const [value, setValue] = useState<T>();
  const [error, setError] = useState<unknown>();
  const [turn, setTurn] = useState(0);
  useEffect(() => {
    const control = new AbortController();
    let timer = 0;
    const run = async () => {
      try {
        setValue(await load(control.signal));
        setError(undefined);
      } catch (problem) {
        if (control.signal.aborted) return;
        setError(problem);
      }
      if (seconds && !control.signal.aborted) timer = window.setTimeout(run, seconds * 1000);
    };
    void run();
    return () => {
      control.abort();
      clearTimeout(timer);
    };
  }, [...depends, turn]);
  return { value, error, reload: () => setTurn((before) => before + 1) };
}

/** A button that asks before it does what cannot be undone, and shows why it failed. */
export function Action({ label, sure, run }: {
  label: string; sure?: string; run: () => Promise<unknown>;
}) {
  const [error, setError] = useState<unknown>();
  const [busy, setBusy] = useState(false);
  const act = async () => {
    if (sure && !confirm(sure)) return;
    setBusy(true);
    try {
      await run();
      setError(undefined);
    } catch (problem) {
      setError(problem);
    }
    setBusy(false);
  };
  return (
    <>
      <button type="button" disabled={busy} onClick={act}>{label}</button>
      <Words error={error} />
    </>
  );
}

/** Text that stays scrolled to its end while it grows. */
export function Tail({ text, label }: { text: string; label: string }) {
  const element = useRef<HTMLPreElement>(null);
  useEffect(() => {
    const box = element.current;
    if (box && box.scrollHeight - box.scrollTop - box.clientHeight < 80) {
      box.scrollTop = box.scrollHeight;
    }
  }, [text]);
  return <pre ref={element} class="tail" tabIndex={0} role="log" aria-label={label}>{text}</pre>;
}
