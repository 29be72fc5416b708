/* symphony: {"description": "Answers questions about documents whose KV files it keeps."} */
// A retrieval policy: what is asked for often stays computed, in files of its own, in any order.
import { KvFile, log, modelInfo, recv, send, tokenize } from "symphony";

const FADING = 0.999; // of an older question, a question later

export default async function main(input) {
  const { documents, keep_tokens = 8192, parallel = 8, max_tokens = 32 } = input;
  const library = new Library(documents, keep_tokens);
  const answering = [];
  for (let message = await recv(); message !== null; message = await recv()) {
    const { id = 0, question, documents: wanted } = JSON.parse(message);
    if (answering.length === parallel) await answering.shift();
    answering.push(answer(library, id, wanted, tokenize(question), max_tokens));
  }
  await Promise.all(answering);
  log(`${library.computed} documents computed, ${library.found} found`);
}

async function answer(library, id, wanted, question, maxTokens) {
  const { files, computing } = library.take(wanted);
  // New ones are under way; the server keeps the order of what follows.
  let kv;
  if (files.length === 1) {
    kv = files[0].fork();
  } else {
    kv = KvFile.create();
    files.forEach((file, i) => kv.append(file, 0, library.tokens(wanted[i]).length));
  }
  await Promise.all(computing);
  send({ id, text: await kv.generate(question, { maxTokens }).text() });
}

class Library {
  computed = 0;
  found = 0;
  #documents;
  #room;
  #questions = 0;
  constructor(texts, keepTokens) {
    const page = modelInfo().page_size;
    const filler = tokenize("\n").at?.(-1) ?? tokenize("\n")[0] ?? 0;
    this.#room = keepTokens;
    this.#documents = texts.map((text) => {
      // Whole pages, so that files that are appended to one another share them.
      const tokens = [...tokenize(text)];
      while (!tokens.length || tokens.length % page) tokens.push(filler);
      return { tokens, kept: null, asks: 0, asked: 0 };
    });
  }
  tokens(number) {
    return this.#documents[number].tokens;
  }
  /** The files of documents, and the passes that compute those that were in none. */
  take(wanted) {
    const files = [];
    const computing = [];
    this.#questions++;
    for (const number of wanted) {
      const document = this.#documents[number];
      if (!document) throw new RangeError(`there is no document ${number}`);
      document.asks = this.#asks(document) + 1;
      document.asked = this.#questions;
      let file = document.kept;
      if (file) {
        this.found++;
      } else {
        this.computed++;
        file = KvFile.create();
        computing.push(file.prefill(document.tokens));
        this.#consider(document, file);
      }
      files.push(file);
    }
    return { files, computing };
  }
  #asks(document) {
    return document.asks * FADING ** (this.#questions - document.asked);
  }
  /** Keeps a document where there is room, or where it is asked for more than what has to go. */
  #consider(document, file) {
    let room = this.#room;
    const going = [];
    const kept = this.#documents.filter((each) => each.kept);
    kept.sort((a, b) => this.#asks(a) - this.#asks(b));
    while (room < document.tokens.length) {
      const least = kept.shift();
      if (!least || this.#asks(least) >= this.#asks(document)) return;
      room += least.tokens.length;
      going.push(least);
    }
    for (const each of going) each.kept = null;
    this.#room = room - document.tokens.length;
    document.kept = file;
  }
}
