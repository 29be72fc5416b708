/* symphony: {
  "description": "Answers a question from the document that fits it best.",
  "input_schema": {"type": "object", "required": ["question", "documents"], "properties": {
    "question": {"type": "string"}, "max_tokens": {"type": "integer", "minimum": 1},
    "documents": {"type": "array", "items": {"type": "string"}, "minItems": 1}}}
} */
// {{name}}: answers a question from the document that fits it best, which is computed once.

import { KvFile, Session, samplingOf, tokenize } from "symphony";

export default async function main(input) {
  const number = best(input.question, input.documents);
  if (number < 0) throw new Error("there are no documents");
  const text = Session.of(await documentFile(input.documents[number]));
  text.append(`\nQuestion: ${input.question}\nAnswer:`);
  const reply = await text.reply(samplingOf(input, "max_tokens", 64));
  return { answer: reply.text.trim(), document: number };
}

/** The number of the document that shares most words with the question; -1: there is none. */
export function best(question, documents) {
  const words = (text) => text.toLowerCase().match(/[a-z0-9]+/g) ?? [];
  const asked = new Set(words(question));
  const shared = documents.map((text) => words(text).filter((word) => asked.has(word)).length);
  return shared.indexOf(Math.max(...shared)); // of equal ones the first
}

/** The KV file of a document, which an earlier run may have computed. */
export async function documentFile(text) {
  const path = `{{name}}/${hash(text).toString(16)}`;
  try {
    return KvFile.open(path);
  } catch (error) {
    if (error.name !== "ENOENT") throw error;
  }
  const file = KvFile.create();
  await file.prefill(tokenize(text));
  file.save(path, { replace: true });
  return file;
}

/** FNV-1a: names are short, texts are long. */
function hash(text) {
  let hash = 0xcbf29ce484222325n;
  for (let i = 0; i < text.length; i++) {
    hash = BigInt.asUintN(64, (hash ^ BigInt(text.charCodeAt(i))) * 0x100000001b3n);
  }
  return hash;
}
