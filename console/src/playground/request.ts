// What the playground sends: to run it here, and as text for a terminal or a program.
import { ask, events, type Schema } from "../api";

export interface Wanted {
  target: string; // a name, name@version or id; "" for the model
  input: unknown; // a string is a text
  trace: boolean;
}

export interface Outcome {
  text: string;
  binary: Uint8Array<ArrayBuffer>[];
  log: string;
  run: string;
  status: string;
  first: number | null; // ms to the first piece
  took: number | null;
}

export const NOTHING: Outcome = {
  text: "", binary: [], log: "", run: "", status: "", first: null, took: null,
};

interface Asked {
  path: string;
  body: Record<string, unknown>;
}

function asked(wanted: Wanted, model: string): Asked {
  if (!wanted.target) {
    const content = typeof wanted.input === "string" ? wanted.input : JSON.stringify(wanted.input);
    const messages = [{ role: "user", content }];
    return { path: "v1/chat/completions", body: { model, messages, max_tokens: 256, stream: true } };
  }
  const traced = wanted.trace ? { trace: true } : {};
  return {
    path: `v1/programs/${encodeURIComponent(wanted.target)}/runs`,
    body: { input: wanted.input, stream: true, ...traced },
  };
}

/** The input that a text is: JSON, or the text as it stands. A schema may say that it is a text. */
export function inputOf(text: string, schema: Schema | null): unknown {
  if (schema?.["type"] === "string") return text;
  try {
    return JSON.parse(text) as unknown;
  } catch {
    return text;
  }
}

function shell(text: string): string {
  return `'${text.replaceAll("'", String.raw`'\''`)}'`;
}

/** An input as `symphony run --input` takes it: a text that looks like something else is JSON. */
function argument(input: unknown): string {
  if (typeof input !== "string") return JSON.stringify(input);
  return /^[@{["]/.test(input) || inputOf(input, null) !== input ? JSON.stringify(input) : input;
}

/** The same request for a terminal or a program. */
export function copies(wanted: Wanted, model: string): [string, string][] {
  const { path, body } = asked(wanted, model);
  const json = JSON.stringify(body);
  const url = new URL(path, document.baseURI).href;
  const python = [
    "import os, urllib.request",
    `body = ${JSON.stringify(json)}.encode()`,
    'key = os.environ["SYMPHONY_KEY"]',
    'headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}',
    `request = urllib.request.Request(${JSON.stringify(url)}, body, headers)`,
    "for line in urllib.request.urlopen(request):",
    '    print(line.decode(), end="")',
  ].join("\n");
  const found: [string, string][] = [
    ["curl", `curl -N ${url} -H "Authorization: Bearer $SYMPHONY_KEY"`
      + ` -H 'Content-Type: application/json' -d ${shell(json)}`],
    ["Python", python],
  ];
  if (wanted.target) {
    const traced = wanted.trace ? " --trace" : "";
    const command = `symphony run ${wanted.target} --input ${shell(argument(wanted.input))}${traced}`;
    found.push(["symphony run", command]);
  }
  return found;
}

function bytesOf(base64: string): Uint8Array<ArrayBuffer> {
  return Uint8Array.from(atob(base64), (character) => character.charCodeAt(0));
}

/** Start what is wanted; tell the outcome each time that it grows. */
export async function start(
  wanted: Wanted, model: string, tell: (outcome: Outcome) => void, control: AbortSignal,
): Promise<void> {
  const began = performance.now();
  const { path, body } = asked(wanted, model);
  const answer = await ask(path, {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify(body),
    signal: control,
  });
  let outcome: Outcome = { ...NOTHING, run: answer.headers.get("X-Run-Id") ?? "", status: "running" };
  const add = (piece: Partial<Outcome>) => {
    outcome = { ...outcome, ...piece, first: outcome.first ?? performance.now() - began };
  };
  for await (const event of events(answer)) {
    if (event.data === "[DONE]") break;
    const data = JSON.parse(event.data);
    if (!wanted.target) {
      if (data.error) throw new Error(data.error.message);
      const choice = data.choices?.[0];
      if (choice?.delta?.content) add({ text: outcome.text + choice.delta.content });
      if (choice?.finish_reason) outcome = { ...outcome, status: choice.finish_reason };
    } else if (event.event === "message") {
      if (typeof data.message === "string") add({ text: outcome.text + data.message });
      else add({ binary: [...outcome.binary, bytesOf(data.message.base64)] });
    } else if (event.event === "log") {
      outcome = { ...outcome, log: `${outcome.log}${data.level}  ${data.text}\n` };
    } else if (event.event === "status") {
      const code = data.exit_code ? ` with code ${data.exit_code}` : "";
      outcome = { ...outcome, status: data.status + code + (data.reason ? `: ${data.reason}` : "") };
    }
    tell(outcome);
  }
  tell({ ...outcome, took: performance.now() - began });
}
