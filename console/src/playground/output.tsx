// A program's output by its type: text as it comes, JSON as fields once it is whole, bytes to save.
import { useEffect, useState } from "preact/hooks";

import { bytes } from "../format";
import { Tail } from "../parts";
import type { Outcome } from "./request";

function Value({ value, depth = 0 }: { value: unknown; depth?: number }) {
  if (value === null || typeof value !== "object") {
    return <span class={`value ${value === null ? "null" : typeof value}`}>{String(value)}</span>;
  }
  if (depth > 8) return <code>{JSON.stringify(value)}</code>;
  if (Array.isArray(value)) {
    return (
      <ol class="value" start={0}>
        {value.map((each) => <li><Value value={each} depth={depth + 1} /></li>)}
      </ol>
    );
  }
  return (
    <dl class="value">
      {Object.entries(value).map(([name, each]) => (
        <div><dt>{name}</dt><dd><Value value={each} depth={depth + 1} /></dd></div>
      ))}
    </dl>
  );
}

/** The object or list that a text is, as JSON. */
function structured(text: string): unknown {
  if (!/^\s*[[{]/.test(text)) return undefined;
  try {
    return JSON.parse(text) as unknown;
  } catch {
    return undefined;
  }
}

function Save({ data, at }: { data: Uint8Array<ArrayBuffer>; at: number }) {
  const [url, setUrl] = useState("");
  useEffect(() => {
    const made = URL.createObjectURL(new Blob([data]));
    setUrl(made);
    return () => URL.revokeObjectURL(made);
  }, [data]);
  return <a class="button" href={url} download={`message-${at + 1}`}>Save {bytes(data.length)}</a>;
}

export function Output({ outcome, label }: { outcome: Outcome; label: string }) {
  const [raw, setRaw] = useState(false);
  const value = outcome.took === null ? undefined : structured(outcome.text);
  return (
    <>
      {value === undefined ? null : (
        <label class="check">
          <input type="checkbox" checked={raw} onChange={(event) => setRaw(event.currentTarget.checked)} />
          as text
        </label>
      )}
      {value === undefined || raw
        ? <Tail label={`output of ${label}`} text={outcome.text} />
        : (
          <div class="tail shown" tabIndex={0} role="log" aria-label={`output of ${label}`}>
            <Value value={value} />
          </div>
        )}
      {outcome.binary.length ? (
        <div class="actions">{outcome.binary.map((data, at) => <Save key={at} data={data} at={at} />)}</div>
      ) : null}
    </>
  );
}
