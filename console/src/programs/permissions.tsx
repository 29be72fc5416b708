// What a program's imports let it do, in words.
import type { Program } from "../api";

// A call that is not here reads or computes only.
const PERMISSIONS: [RegExp, string][] = [
  [/^lip\.(pred|pred_claim|generate)$/, "compute with the model"],
  [/^lip\.kv_(open|list|list_after)$/, "read named KV files"],
  [/^lip\.kv_(save|remove)$/, "save and remove named KV files"],
  [/^lip\.kv_offer$/, "offer prefixes to other runs"],
  [/^lip\.kv_grant$/, "give KV files to its children"],
  [/^lip\.http$/, "ask other hosts that the operator allows"],
  [/^lip\.tools?$/, "call tools that the operator allows"],
  [/^lip\.spawn$/, "start other programs"],
  [/^lip\.channel_/, "talk to other runs"],
  [/^lip\.recv$/, "wait for messages of its client"],
  [/^(lip\.(clock_ms|unix_ms|random|sleep)$|wasi)/, "use clock and random numbers"],
];

export function permissions(program: Program): string[] {
  return PERMISSIONS.filter(([pattern]) => program.imports.some((name) => pattern.test(name)))
    .map(([, words]) => words);
}

/** The permissions, with the imports behind them; those that `before` has not are marked. */
export function Permissions({ of, before }: { of: Program; before?: Program | undefined }) {
  const known = before ? permissions(before) : undefined;
  const mine = permissions(of).map((words) => known && !known.includes(words) ? `${words} (new)` : words);
  return (
    <details>
      <summary>{mine.join("; ") || "compute"}</summary>
      <code>{of.imports.join(" ")}</code>
    </details>
  );
}
