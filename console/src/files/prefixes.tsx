// The prefix cache as a tree, with how often each part was matched.
import { useMemo } from "preact/hooks";

import { get } from "../api";
import { count } from "../format";
import { Action, Panel, Status, useLoaded, Words } from "../parts";
import { many, type PrefixPart, type Prefixes } from "./shown";

function Line({ part, size, most }: { part: PrefixPart; size: number; most: number }) {
  const text = part.text === null ? part.tokens.join(" ") : part.text;
  const more = part.pages * size > part.tokens.length ? " …" : "";
  return (
    <span class="prefix">
      <meter min={0} max={Math.max(most, 1)} value={part.hits} aria-label="hits" />
      <b>{many(part.hits, "hit")}</b>
      <code>{text}{more}</code>
      <span class="hint">
        {many(part.pages * size, "token")} <Status value={part.tier} />
        {part.more ? `, ${count(part.more)} more below` : ""}
      </span>
    </span>
  );
}

function Parts({ of, below, size, most, level }: {
  of: PrefixPart[]; below: Map<number | null, PrefixPart[]>; size: number; most: number;
  level: number;
}) {
  return (
    <ul class="names">
      {of.map((part) => {
        const inner = below.get(part.id);
        const line = <Line part={part} size={size} most={most} />;
        return (
          <li key={part.id}>
            {inner
              ? (
                <details open={level < 3}>
                  <summary>{line}</summary>
                  <Parts of={inner} below={below} size={size} most={most} level={level + 1} />
                </details>
              )
              : line}
          </li>
        );
      })}
    </ul>
  );
}

export function PrefixTree() {
  const loaded = useLoaded((signal) => get<Prefixes>("v1/prefixes?limit=200&text=1", signal), []);
  const shown = loaded.value;
  const below = useMemo(() => {
    const found = new Map<number | null, PrefixPart[]>();
    for (const part of shown?.data ?? []) {
      const list = found.get(part.parent);
      if (list) list.push(part);
      else found.set(part.parent, [part]);
    }
    return found;
  }, [shown]);
  const top = below.get(null) ?? [];
  return (
    <Panel title="Cached prefixes" actions={
      <Action label="Load again" run={async () => loaded.reload()} />
    }>
      <Words error={loaded.error} />
      {shown && !top.length
        ? <p class="empty">No prefix is cached: no program has offered one.</p> : null}
      {shown && top.length
        ? (
          <>
            <p class="hint">
              {many(shown.pages, "page")} that programs have offered. A hit is a request that began
              with the same tokens, and did not compute them again.
              {shown.complete ? "" : " Only those used last are counted."}
            </p>
            <Parts of={top} below={below} size={shown.page_tokens} level={0}
              most={Math.max(...top.map((part) => part.hits))} />
          </>
        )
        : null}
    </Panel>
  );
}
