// The server's HTTP interface: requests with the key, problems as errors, server-sent events.
import { signal } from "@preact/signals";

const KEY = "symphony.key";

/** The key of this browser tab; empty before the sign-in. */
export const key = signal(sessionStorage.getItem(KEY) ?? "");

export function setKey(value: string): void {
  if (value) sessionStorage.setItem(KEY, value);
  else sessionStorage.removeItem(KEY);
  key.value = value;
}

/** An answer that is no success, with the server's words. */
export class Problem extends Error {
  constructor(
    readonly status: number,
    detail: string,
    readonly members: Record<string, unknown> = {},
  ) {
    super(detail);
  }
}

async function problemOf(answer: Response): Promise<Problem> {
  const text = await answer.text();
  try {
    const body = JSON.parse(text) as Record<string, unknown>;
    const error = body["error"] as { message?: string } | undefined;
    return new Problem(answer.status, String(body["detail"] ?? error?.message ?? text), body);
  } catch {
    return new Problem(answer.status, text || answer.statusText);
  }
}

/** Make a request; an answer that is no success is a Problem. */
export async function ask(path: string, options: RequestInit = {}): Promise<Response> {
  const headers = new Headers(options.headers);
  if (key.value) headers.set("Authorization", `Bearer ${key.value}`);
  const answer = await fetch(path, { ...options, headers });
  if (!answer.ok) throw await problemOf(answer);
  return answer;
}

export async function get<T>(path: string, signal?: AbortSignal): Promise<T> {
  const options = signal ? { signal } : {};
  return (await (await ask(path, options)).json()) as T;
}

export async function send<T>(method: string, path: string, body?: unknown): Promise<T | null> {
  const options: RequestInit = { method };
  if (body !== undefined) {
    options.headers = { "Content-Type": "application/json" };
    options.body = JSON.stringify(body);
  }
  const answer = await ask(path, options);
  return answer.status === 204 ? null : ((await answer.json()) as T);
}

/** A page of a listing. */
export interface Page<T> {
  data: T[];
  next: string | null;
}

export interface ServerEvent {
  id: string;
  event: string;
  data: string;
}

/** Yield the events of a stream as they come. */
export async function* events(answer: Response): AsyncGenerator<ServerEvent> {
  const reader = answer.body!.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  try {
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      rest += value;
      const blocks = rest.split("\n\n");
      rest = blocks.pop() ?? "";
      for (const block of blocks) {
        const event: ServerEvent = { id: "", event: "message", data: "" };
        for (const line of block.split("\n")) {
          const at = line.indexOf(": ");
          if (at < 1) continue;
          const [name, text] = [line.slice(0, at), line.slice(at + 2)];
          if (name === "data") event.data += event.data ? `\n${text}` : text;
          else if (name === "id" || name === "event") event[name] = text;
        }
        if (event.data) yield event;
      }
    }
  } finally {
    reader.cancel().catch(() => {}); // it has failed already if it was aborted
  }
}

// --- What the server shows -----------------------------------------------------------------------
export interface Usage {
  prompt_tokens: number;
  cached_tokens: number;
  completion_tokens: number;
  cpu_ms: number;
  wall_ms: number;
  kv_token_ms: number;
  syscalls: number;
  peak_memory_bytes?: number;
}

export interface Run {
  id: string;
  program: string;
  program_name: string | null;
  entry: string;
  status: string;
  exit_code: number | null;
  reason: string;
  limit: string | null;
  waits_for: string | null;
  priority: number;
  limits: Record<string, number>;
  usage: Usage | null; // of a run that has ended
  held?: { tokens: number; kv_pages: number; instances: number };
  created_ms: number;
  ended_ms: number | null;
}

export interface Program {
  id: string;
  name: string | null;
  language: string;
  size: number;
  imports: string[];
  exports: string[];
  entries: string[];
  description: string | null;
  input_schema: Schema | null;
  output_schema: Schema | null;
  created_ms: number;
}

/** A JSON schema, of the keywords that a manifest may use. */
export type Schema = Record<string, unknown>;

/** A program that a name points at, or has pointed at. */
export interface Version extends Program {
  current: boolean;
  added_ms: number;
  used_ms: number | null;
  runs: number;
  errors: number;
}

export interface KvFile {
  path: string;
  len: number;
  pages: number;
  tier: string;
  durable: boolean;
  public: boolean;
  expires_ms: number | null;
  shared?: number;
  tiers?: Record<string, number>;
  disk_bytes?: number;
}

export interface Role {
  role: string;
  pid: number | null;
  ready: boolean;
  hangs?: boolean;
  containment?: Record<string, string>;
  progress?: { what: string; share: number };
}

export interface Readiness {
  roles: Role[];
  missing: string[];
  degraded: string[];
}
