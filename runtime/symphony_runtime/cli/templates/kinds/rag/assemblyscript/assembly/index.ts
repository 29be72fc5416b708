// {{name}}: answers a question from the document that fits it best, which is computed once.

import {
  Errno, Json, JsonObject, KvFile, Sampling, Session, fail, inputText, send, tokenize,
} from "symphony-lip";

export function lip_main(): i32 {
  const job = Json.parse(inputText());
  const question = job.at("question").string();
  const documents = job.at("documents").strings();
  const number = best(question, documents);
  if (number < 0) fail("there are no documents", 2);
  const text = Session.of(documentFile(documents[number]));
  text.append(`\nQuestion: ${question}\nAnswer:`);
  const answer = text.reply(Sampling.from(job, "max_tokens", 64)).text();
  send(new JsonObject().text("answer", answer.trim()).whole("document", number).finish());
  return 0;
}

/** The number of the document that shares most words with the question; -1: there is none. */
export function best(question: string, documents: string[]): i32 {
  const asked = words(question);
  let best = -1;
  let most = -1;
  for (let i = 0; i < documents.length; i++) {
    const own = words(documents[i]);
    let shared = 0;
    for (let k = 0; k < own.length; k++) if (asked.includes(own[k])) shared++;
    if (shared > most) {
      most = shared;
      best = i;
    }
  }
  return best;
}

function words(text: string): string[] {
  const found: string[] = [];
  let word = "";
  const lower = text.toLowerCase() + " ";
  for (let i = 0; i < lower.length; i++) {
    const c = lower.charAt(i);
    if ((c >= "a" && c <= "z") || (c >= "0" && c <= "9")) {
      word += c;
    } else if (word.length) {
      found.push(word);
      word = "";
    }
  }
  return found;
}

/** The KV file of a document, which an earlier run may have computed. */
export function documentFile(text: string): KvFile {
  const path = `{{name}}/${hash(text).toString(16)}`;
  const known = KvFile.tryOpen(path);
  if (known.errno != Errno.ENOENT) return known.value; // a failure of another kind ends the run
  const file = KvFile.create();
  file.prefill(tokenize(text));
  file.save(path);
  return file;
}

/** FNV-1a: names are short, texts are long. */
function hash(text: string): u64 {
  let hash: u64 = 0xcbf29ce484222325;
  for (let i = 0; i < text.length; i++) hash = (hash ^ (text.charCodeAt(i) as u64)) * 0x100000001b3;
  return hash;
}
