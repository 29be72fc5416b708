// Several suffixes after one prefix. The prefix is computed once; each suffix forks it, which copies
// nothing, and all forks are decoded in one batch.

import {
  Errno, Generation, Json, JsonObject, KvFile, SaveFlags, inputText, randomU64, runTasks, send,
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
    branches.push(prefix.fork().generate(tokenize(suffixes[i]), { maxTokens }));
  }
  runTasks(branches);

  for (let i = 0; i < suffixes.length; i++) {
    send(new JsonObject().whole("suffix", i).text("text", branches[i].text()).finish());
    branches[i].file.close();
  }
  KvFile.remove(path);
  return 0;
}

/** The file of that name, or a new one with the text in it. */
function prefixAt(path: string, text: string): KvFile {
  const known = KvFile.tryOpen(path);
  if (known.errno != Errno.ENOENT) return known.value;
  const file = KvFile.create();
  file.prefill(tokenize(text)).finish();
  file.save(path, SaveFlags.REPLACE);
  return file;
}
