// The tokens of one file as text, a window at a time.
import { useEffect, useState } from "preact/hooks";

import { get } from "../api";
import { Panel, useLoaded, Words } from "../parts";
import { type KvPages, type KvTokens, range, url } from "./shown";

const PAGES_SHOWN = 32;

function Token({ text, id, position, index, begins, chosen }: {
  text: string | null; id: number; position: number; index: number; begins: boolean;
  chosen: boolean;
}) {
  const classes = [index % 2 ? "odd" : "even", begins && "begins", chosen && "chosen"];
  return (
    <span class={classes.filter(Boolean).join(" ")}
      title={`token ${index}: id ${id}, position ${position}`}>
      {text || <i>⟨{id}⟩</i>}
    </span>
  );
}

/** `chosen`: the page whose tokens are marked; others are shown around it. */
export function Tokens({ file, chosen }: { file: KvPages; chosen: number }) {
  const window = PAGES_SHOWN * file.page_tokens;
  const [first, setFirst] = useState(0);
  const page = Math.floor(chosen / PAGES_SHOWN) * window;
  useEffect(() => setFirst(page), [page]);
  const query = `?after=${first}&limit=${window}&text=1`;
  const loaded = useLoaded(
    (signal) => get<KvTokens>(url("kv-tokens", file.path) + query, signal), [file.path, first]);
  const shown = loaded.value;
  const step = (by: number) => setFirst(Math.max(first + by, 0));
  return (
    <Panel title="Tokens" actions={
      <span class="actions">
        <button type="button" disabled={first === 0} onClick={() => step(-window)}>Earlier</button>
        <button type="button" disabled={first + window >= file.len} onClick={() => step(window)}>
          Later
        </button>
      </span>
    }>
      <Words error={loaded.error} />
      {shown
        ? (
          <>
            <p class="hint">
              Tokens {range(shown.first, Math.max(shown.tokens.length, 1))} of {
                shown.len.toLocaleString("en")}. A line begins each page.
              {shown.texts ? "" : " The model has no tokenizer: these are ids."}
            </p>
            <pre class="tokens" tabIndex={0} role="region" aria-label="tokens as text">
              {shown.tokens.map((id, at) => {
                const index = shown.first + at;
                return (
                  <Token text={shown.texts ? shown.texts[at]! : `${id} `} id={id} index={index}
                    position={shown.positions[at]!} begins={index % file.page_tokens === 0}
                    chosen={Math.floor(index / file.page_tokens) === chosen} key={index} />
                );
              })}
            </pre>
          </>
        )
        : loaded.error ? null : <p class="hint">Loading …</p>}
    </Panel>
  );
}
