// What a traced run generated: the tokens of its KV files, as branches from their forks.
import type { Args, Chance, TraceEvent } from "./trace";

export interface Token {
  text: string;
  kind: "given" | "generated" | "unknown"; // by the program, by the model, before the trace
  probability?: number;
  chosen?: boolean; // by the program, among the best tokens that it asked for
  last?: boolean; // the model's last token, which the program did not append
  alternatives: Chance[];
  allowed?: number; // of a constrained token: tokens that the mask allowed
  forbidden?: number; // the probability of all others
  unmasked?: Chance; // the best token without the mask
}

/** One file's tokens behind those that it shares with its parent. */
export interface Branch {
  file: number;
  parent: Branch | null;
  begin: number; // entries that are the parent's
  tokens: Token[];
  dropped: number; // tokens that the program cut off again
  forks: Branch[];
  results: Map<number, Args>; // of the pred that ended before this entry
}

/** Return the branches without a parent. `preds` are in the order of their ends. */
export function branchesOf(preds: TraceEvent[]): Branch[] {
  const files = new Map<number, Branch>();
  for (const { args } of preds) {
    if (args.file === undefined || args.text === undefined || args.kept === false) continue;
    let branch = files.get(args.file);
    if (!branch) files.set(args.file, branch = forked(args, files));
    append(branch, args);
  }
  const all = [...files.values()];
  for (const branch of all) branch.parent?.forks.push(branch);
  for (const branch of all) {
    const result = branch.results.get(branch.begin + branch.tokens.length);
    if (result?.token !== undefined && !branch.forks.some((fork) => fork.begin === branch.begin + branch.tokens.length)) {
      branch.tokens.push({ ...tokenOf(result.token, result), last: true });
    }
    branch.forks.sort((a, b) => a.begin - b.begin || a.file - b.file);
  }
  return all.filter((branch) => !branch.parent);
}

function forked(args: Args, files: Map<number, Branch>): Branch {
  const parent = args.fork_of === undefined ? undefined : files.get(args.fork_of);
  const branch: Branch = {
    file: args.file!, parent: parent ?? null, begin: parent ? args.fork_at! : 0,
    tokens: [], dropped: 0, forks: [], results: new Map(),
  };
  climb(branch);
  return branch;
}

/** A fork of what a file shares with its own parent is a fork of that parent. */
function climb(branch: Branch): void {
  while (branch.parent && branch.begin < branch.parent.begin) branch.parent = branch.parent.parent;
}

function append(branch: Branch, args: Args): void {
  const at = args.at!;
  if (at < branch.begin) { // cut off within what its parent has
    branch.begin = at;
    climb(branch);
  }
  const kept = Math.min(at - branch.begin, branch.tokens.length);
  branch.dropped += branch.tokens.length - kept;
  branch.tokens.length = kept;
  for (const entry of branch.results.keys()) if (entry > at) branch.results.delete(entry);
  const before = args.before ?? [];
  fill(branch, at - before.length);
  for (const text of before) branch.tokens.push({ text, kind: "given", alternatives: [] });
  fill(branch, at + args.tokens! - args.text!.length);
  for (const text of args.text!) {
    branch.tokens.push(tokenOf(text, resultAt(branch, branch.begin + branch.tokens.length)));
  }
  branch.results.set(at + args.tokens!, args);
}

function fill(branch: Branch, until: number): void {
  while (branch.begin + branch.tokens.length < until) {
    branch.tokens.push({ text: "", kind: "unknown", alternatives: [] });
  }
}

function resultAt(branch: Branch, entry: number): Args | undefined {
  const found = branch.results.get(entry);
  if (found || !branch.parent || entry > branch.begin) return found;
  return resultAt(branch.parent, entry);
}

/** A token at a place for which the model has given a result, or none. */
function tokenOf(text: string, result: Args | undefined): Token {
  const alternatives = result?.alternatives ?? [];
  const mine = result?.token === text;
  const listed = alternatives.find(([other]) => other === text);
  if (!result || (!mine && !listed)) return { text, kind: "given", alternatives: [] };
  const token: Token = {
    text, kind: "generated", probability: mine ? result.probability! : listed![1], chosen: !mine,
    alternatives: mine ? alternatives : [[result.token!, result.probability!], ...alternatives],
  };
  if (result.allowed === undefined) return token;
  return { ...token, allowed: result.allowed, forbidden: result.forbidden!, unmasked: result.unmasked! };
}

/** How surprised the model was on average: e to the mean of the negative logarithms. */
export function perplexity(tokens: Token[]): number | null {
  const known = tokens.filter((token) => token.probability);
  if (!known.length) return null;
  return Math.exp(-known.reduce((sum, token) => sum + Math.log(token.probability!), 0) / known.length);
}
