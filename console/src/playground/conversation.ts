// A conversation as a tree: each answer may be continued, and each continuation is a branch.
import { ask, events } from "../api";

export interface Node {
  id: number;
  parent: number; // 0: none
  role: "user" | "assistant";
  text: string;
  state: string; // of an answer: "", a finish reason, or why it failed
}

export interface Settings {
  model: string;
  system: string;
  choices: number;
  temperature: number;
  tokens: number;
}

interface Choice {
  index: number;
  delta?: { content?: string | null; reasoning_content?: string | null };
  finish_reason?: string | null;
}

/** The messages up to a node, the first one first. */
export function pathTo(nodes: Node[], id: number): Node[] {
  const known = new Map(nodes.map((node) => [node.id, node]));
  const path: Node[] = [];
  for (let node = known.get(id); node; node = known.get(node.parent)) path.unshift(node);
  return path;
}

export function childrenOf(nodes: Node[], id: number): Node[] {
  return nodes.filter((node) => node.parent === id);
}

export function bodyOf(nodes: Node[], last: number, settings: Settings): Record<string, unknown> {
  const said = pathTo(nodes, last).map((node) => ({ role: node.role, content: node.text }));
  const system = settings.system.trim() ? [{ role: "system", content: settings.system }] : [];
  return {
    model: settings.model,
    messages: [...system, ...said],
    n: settings.choices,
    temperature: settings.temperature,
    max_tokens: settings.tokens,
  };
}

/** Ask for answers; tell each piece with the number of its choice. */
export async function answer(
  body: Record<string, unknown>,
  tell: (choice: number, text: string, state: string) => void,
  control: AbortSignal,
): Promise<void> {
  const response = await ask("v1/chat/completions", {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify({ ...body, stream: true }),
    signal: control,
  });
  for await (const event of events(response)) {
    if (event.data === "[DONE]") return;
    const data = JSON.parse(event.data) as { error?: { message: string }; choices?: Choice[] };
    if (data.error) throw new Error(data.error.message);
    for (const choice of data.choices ?? []) {
      tell(choice.index, choice.delta?.content ?? "", choice.finish_reason ?? "");
    }
  }
}
