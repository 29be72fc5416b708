// What the server shows of KV files and prefixes, and its words for people.
import { ask, get, type KvFile, type Page } from "../api";
import { count } from "../format";

/** Pages that follow each other and are alike. */
export interface PageRange {
  first: number;
  pages: number;
  tier: string;
  holders: number; // other files that hold each of the pages
  cached: boolean;
  files: string[]; // the tenant's own names among the holders
}

export interface Lineage {
  len: number;
  computed: number;
  spans: number;
  scratch_pages: number;
  lost: boolean;
  parts: { first: number; len: number; of: number; tree: boolean; lost: boolean }[];
}

export interface KvPages extends KvFile {
  page_tokens: number;
  recomputable: boolean;
  lineage: Lineage | null;
  data: PageRange[];
  next: string | null;
  complete: boolean;
}

export interface KvTokens {
  len: number;
  first: number;
  tokens: number[];
  positions: number[];
  texts: string[] | null;
  next: string | null;
}

export interface PrefixPart {
  id: number;
  parent: number | null;
  first: number;
  pages: number;
  hits: number;
  tier: string;
  more: number;
  tokens: number[];
  text: string | null;
}

export interface Prefixes {
  pages: number;
  page_tokens: number;
  complete: boolean;
  data: PrefixPart[];
}

const NAMES_MAX = 5_000; // of files that the tree shows
const ASKED = 500; // items of one answer

/** The address of a file below one of the routes of KV files. */
export function url(part: "kv" | "kv-pages" | "kv-tokens", path: string): string {
  return `v1/${part}/${encodeURIComponent(path)}`;
}

/** The named files with a prefix, and whether there are more. */
export async function names(
  prefix: string, signal: AbortSignal,
): Promise<{ files: KvFile[]; more: boolean }> {
  const files: KvFile[] = [];
  let after = "";
  do {
    const query = new URLSearchParams({ prefix, after, limit: String(ASKED) });
    const page = await get<Page<KvFile>>(`v1/kv?${query}`, signal);
    files.push(...page.data);
    after = page.next ?? "";
  } while (after && files.length < NAMES_MAX);
  return { files, more: after !== "" };
}

/** A file with all its pages. */
export async function pagesOf(path: string, signal: AbortSignal): Promise<KvPages> {
  const shown = await get<KvPages>(`${url("kv-pages", path)}?limit=${ASKED}`, signal);
  const data = shown.data;
  while (shown.next !== null) {
    const query = `?limit=${ASKED}&after=${shown.next}`;
    const more = await get<KvPages>(url("kv-pages", path) + query, signal);
    data.push(...more.data);
    shown.next = more.next;
  }
  return shown;
}

export async function download(path: string): Promise<void> {
  const answer = await ask(`${url("kv", path)}?download=1`);
  const link = document.createElement("a");
  link.href = URL.createObjectURL(await answer.blob());
  link.download = `${path.replaceAll("/", "_")}.safetensors`;
  link.click();
  URL.revokeObjectURL(link.href);
}

/** The tiers, the fastest first, with words that say where a page is. */
export const TIERS: Record<string, string> = {
  device: "on the device",
  host: "in host memory",
  disk: "on disk",
  tokens: "tokens only, recomputed when needed",
};

export function many(value: number, noun: string): string {
  return `${count(value)} ${value === 1 ? noun : `${noun}s`}`;
}

export function range(first: number, length: number): string {
  const full = (value: number) => value.toLocaleString("en");
  return length === 1 ? full(first) : `${full(first)} to ${full(first + length - 1)}`;
}

/** Who has a page besides its file, without the names of files. */
export function others(found: PageRange): string[] {
  const unnamed = found.holders - found.files.length;
  return [
    ...(unnamed > 0 ? [many(unnamed, "other file")] : []),
    ...(found.cached ? ["the prefix cache"] : []),
  ];
}
