// What a traced run generated: tokens by their probability, forks side by side, and what a
// constraint forbade.
import { signal } from "@preact/signals";
import { useMemo, useRef, useState } from "preact/hooks";

import { shownToken } from "./board";
import { branchesOf, perplexity, type Branch, type Token } from "./branches";
import { percent } from "./timeline";
import type { Trace } from "./trace";

const TOKENS_SHOWN = 1500; // of a branch, at first
const SIDE_BY_SIDE = 24; // branches of one fork
const DEPTH_MAX = 4; // of columns within columns; deeper forks stand below each other
// The least probability of each class, the most likely first; `style.css` has their looks.
const CLASSES: [least: number, words: string][] = [
  [0.9, "90 % or more"], [0.5, "50 %"], [0.2, "20 %"], [0.05, "5 %"], [0, "less"],
];
const MASKED_STRONGLY = 0.5; // of the probability

const pointed = signal<Token | null>(null);

function classOf(token: Token): string {
  const masked = (token.forbidden ?? 0) >= MASKED_STRONGLY ? " masked-much"
    : (token.forbidden ?? 0) >= 0.05 ? " masked" : "";
  if (token.kind !== "generated") return `token ${token.kind}`;
  const number = CLASSES.findIndex(([least]) => token.probability! >= least);
  return `token p${number}${token.last ? " last" : ""}${masked}`;
}

/** Tokens as a list that the arrow keys walk through. */
function Flow({ tokens, name }: { tokens: Token[]; name: string }) {
  const list = useRef<HTMLDivElement>(null);
  const active = useRef(-1);
  const [whole, setWhole] = useState(false);
  const id = useMemo(() => `flow-${Math.random().toString(36).slice(2)}`, []);
  const shown = whole ? tokens : tokens.slice(0, TOKENS_SHOWN);
  const unknown = shown.findIndex((token) => token.kind !== "unknown");
  const first = unknown < 0 ? shown.length : unknown;
  const walk = (to: number) => {
    const number = Math.min(Math.max(to, first), shown.length - 1);
    list.current!.querySelector("[aria-selected=true]")?.setAttribute("aria-selected", "false");
    const element = document.getElementById(`${id}-${number}`);
    if (!element) return;
    element.setAttribute("aria-selected", "true");
    element.scrollIntoView({ block: "nearest" });
    list.current!.setAttribute("aria-activedescendant", element.id);
    active.current = number;
    pointed.value = shown[number]!;
  };
  const unsure = (from: number, by: number) => {
    for (let at = from + by; at >= 0 && at < shown.length; at += by) {
      if ((shown[at]!.probability ?? 1) < 0.5) return at;
    }
    return from;
  };
  const keys: Record<string, () => number> = {
    ArrowRight: () => active.current + 1, ArrowLeft: () => active.current - 1,
    Home: () => 0, End: () => shown.length,
    n: () => unsure(active.current, 1), p: () => unsure(active.current, -1),
  };
  return (
    <>
      <div ref={list} class="flow" role="listbox" aria-orientation="horizontal" tabIndex={0}
        aria-label={`${tokens.length} tokens of ${name}`}
        onFocus={() => active.current < 0 && walk(first)}
        onPointerOver={(event) => {
          const at = (event.target as HTMLElement).dataset["at"];
          if (at) pointed.value = shown[Number(at)]!;
        }}
        onKeyDown={(event) => {
          const key = keys[event.key];
          if (!key || event.ctrlKey || event.metaKey) return;
          event.preventDefault();
          walk(key());
        }}>
        {first > 0 ? <span class="token unknown" role="option" aria-selected="false">[{first} tokens that the trace does not tell] </span> : null}
        {shown.slice(first).map((token, number) => (
          <span key={number} id={`${id}-${first + number}`} data-at={first + number} role="option"
            aria-selected="false" class={classOf(token)}
            aria-label={token.text.trim() ? undefined : `blank, ${token.text.length}`}
            title={token.probability === undefined ? undefined : percent(token.probability)}>
            {token.text.replaceAll("\n", "⏎\n") || "∅"}
          </span>
        ))}
      </div>
      {shown.length < tokens.length
        ? <button type="button" onClick={() => setWhole(true)}>{tokens.length - shown.length} more tokens</button>
        : null}
    </>
  );
}

function Facts({ branch, tokens }: { branch: Branch; tokens: Token[] }) {
  const made = tokens.filter((token) => token.kind === "generated");
  const surprise = perplexity(tokens);
  return (
    <p class="hint">
      file {branch.file}
      {branch.parent ? `, forked from ${branch.parent.file} at ${branch.begin}` : ""} · {made.length} of{" "}
      {tokens.length} tokens by the model{surprise === null ? "" : ` · perplexity ${surprise.toFixed(2)}`}
      {branch.dropped ? ` · ${branch.dropped} more cut off again` : ""}
    </p>
  );
}

/** A branch from an entry on: its tokens up to the next fork, then all that continues from there. */
function Part({ branch, from, depth, opens }: { branch: Branch; from: number; depth: number; opens: boolean }) {
  const last = branch.begin + branch.tokens.length;
  const next = branch.forks.find((fork) => fork.begin >= from && (fork.begin > from || !opens))?.begin;
  const point = next ?? last;
  const tokens = branch.tokens.slice(from - branch.begin, point - branch.begin);
  const forks = next === undefined ? [] : branch.forks.filter((fork) => fork.begin === point);
  const goesOn = next !== undefined && (point < last || branch.forks.some((fork) => fork.begin > point));
  const sides = Number(goesOn) + forks.length;
  return (
    <>
      {from === branch.begin ? <Facts branch={branch} tokens={branch.tokens} /> : null}
      {tokens.length ? <Flow tokens={tokens} name={`file ${branch.file} from ${from} on`} /> : null}
      {sides
        ? (
          <ul class={depth < DEPTH_MAX && sides > 1 ? "sides" : "sides below"} aria-label={`${sides} branches from entry ${point}`}>
            {goesOn
              ? (
                <li>
                  <p class="hint">file {branch.file} continues</p>
                  <Part branch={branch} from={point} depth={depth + 1} opens />
                </li>
              )
              : null}
            {forks.slice(0, SIDE_BY_SIDE).map((fork) => (
              <li><Part branch={fork} from={fork.begin} depth={sides > 1 ? depth + 1 : depth} opens={false} /></li>
            ))}
            {forks.length > SIDE_BY_SIDE ? <li>and {forks.length - SIDE_BY_SIDE} more branches</li> : null}
          </ul>
        )
        : null}
    </>
  );
}

/** The token under the cursor, or the one that the keys are at. */
function TokenDetail() {
  const token = pointed.value;
  if (!token) return <p class="hint">Point at a token, or walk with <kbd>←</kbd> and <kbd>→</kbd>; <kbd>n</kbd> and <kbd>p</kbd> find unsure ones.</p>;
  const { probability, alternatives, unmasked } = token;
  return (
    <>
      <p>
        <code>{shownToken(token.text)}</code>{" "}
        {token.kind === "given" ? "was given by the program" : percent(probability ?? 0)}
        {token.chosen ? ", chosen by the program" : ""}
        {token.last ? ", the last one, not appended" : ""}
      </p>
      {token.allowed === undefined ? null : (
        <p>
          The constraint allowed {token.allowed.toLocaleString("en")} tokens and forbade{" "}
          {percent(token.forbidden!)} of the probability.{" "}
          {unmasked && unmasked[0] !== token.text
            ? <>Without it <code>{shownToken(unmasked[0])}</code> was best, with {percent(unmasked[1])}.</>
            : null}
        </p>
      )}
      {alternatives.length
        ? (
          <table class="alternatives">
            <thead><tr><th scope="col">Best tokens</th><th scope="col">Probability</th></tr></thead>
            <tbody>
              {alternatives.map(([text, share]) => (
                <tr>
                  <td><code>{shownToken(text)}</code></td>
                  <td><meter min={0} max={1} value={share} aria-label={`probability of ${shownToken(text)}`} /> {percent(share)}</td>
                </tr>
              ))}
            </tbody>
          </table>
        )
        : <p class="hint">Its alternatives are known if the program asks for log-probabilities.</p>}
    </>
  );
}

export function Explorer({ trace }: { trace: Trace }) {
  const roots = useMemo(() => {
    pointed.value = null;
    return branchesOf(trace.preds);
  }, [trace]);
  if (!roots.length) return <p class="hint">The trace has no tokens.</p>;
  return (
    <div class="explorer">
      <p class="legends">
        {CLASSES.map(([, words], number) => <span class={`legend token p${number}`}>{words}</span>)}
        <span class="legend token given">given</span>
        <span class="legend token masked">a constraint forbade 5 %</span>
        <span class="legend token masked-much">half or more</span>
      </p>
      <div class="scroll branches" tabIndex={0} role="region" aria-label="branches">
        {roots.map((root) => <div class="root"><Part branch={root} from={0} depth={0} opens={false} /></div>)}
      </div>
      <div class="event" role="status"><TokenDetail /></div>
    </div>
  );
}
