// Several suffixes after one prefix. The prefix is computed once; each suffix forks it, which copies
// nothing, and all forks are decoded side by side.

import {
  Errno, Generation, Json, KvFile, SaveFlags, check, inputText, quote, randomU64, runTasks, send,
  tokenize,
} from "symphony-lip";

export function lip_main(): i32 {
  const job = Json.parse(inputText());
  const suffixes = job.at("suffixes").strings();
  const maxTokens = job.integerOr("max_tokens", 16) as i32;

  const path = "parallel_suffixes/" + randomU64().toString(16);
  const prefix = prefixAt(path, job.at("prefix").string());
  const branches: Generation[] = [];
  for (let i = 0; i < suffixes.length; i++) {
    const tokens = tokenize(suffixes[i]).unwrap();
    branches.push(new Generation(prefix.fork(), tokens, maxTokens));
  }
  runTasks(branches);

  for (let i = 0; i < suffixes.length; i++) {
    const text = branches[i].text().unwrap();
    check(send(`{"suffix": ${i}, "text": ${quote(text)}}`), "send");
    check(branches[i].file.close(), "close");
  }
  check(KvFile.remove(path), "remove");
  return 0;
}

/** The file of that name, or a new one with the text in it. */
function prefixAt(path: string, text: string): KvFile {
  const known = KvFile.open(path);
  if (known.errno != Errno.ENOENT) return known.unwrap();
  const file = KvFile.create();
  check(file.prefill(tokenize(text).unwrap()).status(), "the prefix");
  check(file.save(path, SaveFlags.REPLACE), "save");
  return file;
}
