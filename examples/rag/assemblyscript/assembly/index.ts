// Answers questions about documents. Which documents stay computed is this program's decision: it keeps
// those that its own statistics favour, and composes several of them in any order.

import {
  Generation, Incoming, Json, JsonObject, KvFile, Pred, Task, Ticket, inputText, log, recv, runTasks,
  send, tokenize,
} from "symphony-lip";
import { Document, Library } from "./library";

export function lip_main(): i32 {
  const job = Json.parse(inputText());
  const library = new Library(job.at("documents").strings(), job.integerOr("keep_tokens", 8192) as i32);
  // Each takes the next question when it has answered one.
  const desks: Desk[] = [];
  for (let i = max(job.integerOr("parallel", 8), 1); i > 0; i--) desks.push(new Desk(library, job));
  runTasks(desks);
  library.closeAll();
  log(`${library.computed} documents computed, ${library.found} found`);
  return 0;
}

/** Answers one question after the other. */
class Desk extends Task {
  private incoming: Incoming | null = null;
  private computing: Pred[] = [];
  private answer: Generation | null = null;
  private wanted: Document[] = [];
  private id: i64 = 0;
  /** Leave it to the server's prefix cache: what the program is compared with. */
  private readonly automatic: bool;
  private readonly maxTokens: i32;

  constructor(
    private readonly library: Library,
    job: Json,
  ) {
    super();
    this.automatic = job.stringOr("policy", "own") == "automatic";
    this.maxTokens = job.integerOr("max_tokens", 32) as i32;
  }

  step(): Ticket | null {
    const answer = this.answer;
    if (answer !== null) return this.goOn(answer);
    const incoming = this.incoming;
    if (incoming === null) {
      const next = recv();
      this.incoming = next;
      return next;
    }
    const message = incoming.text();
    if (message === null) return null; // the user has closed
    this.incoming = null;
    const asked = Json.parse(message);
    this.id = asked.integerOr("id", 0);
    this.wanted = this.library.named(asked.at("documents").array());
    const question = tokenize(asked.at("question").string());
    const begun = this.automatic ? this.fromCache(question) : this.fromFiles(question);
    this.answer = begun;
    return this.goOn(begun);
  }

  /** Documents come from files, each computed alone, whatever stands before it in the prompt. */
  private fromFiles(question: u32[]): Generation {
    const wanted = this.wanted;
    // New ones are under way when this returns; the server keeps the order of what follows.
    this.computing = this.library.take(wanted);
    let kv: KvFile;
    if (wanted.length == 1) {
      kv = wanted[0].file!.fork();
    } else {
      kv = KvFile.create();
      for (let i = 0; i < wanted.length; i++) {
        kv.append(wanted[i].file!, 0, wanted[i].tokens.length);
      }
    }
    return kv.generate(question, { maxTokens: this.maxTokens });
  }

  /** The whole prompt, from where the server's prefix cache knows it. */
  private fromCache(question: u32[]): Generation {
    let prompt: u32[] = [];
    for (let i = 0; i < this.wanted.length; i++) prompt = prompt.concat(this.wanted[i].tokens);
    prompt = prompt.concat(question);
    const match = KvFile.matching(prompt);
    const kv = match === null ? KvFile.create() : match;
    const known = match === null ? 0 : kv.length();
    this.library.count(this.wanted, known);
    return kv.generate(prompt.slice(known), { maxTokens: this.maxTokens });
  }

  /** Waits for the documents and for the answer, and sends it. */
  private goOn(answer: Generation): Ticket | null {
    while (this.computing.length) {
      const last = this.computing[this.computing.length - 1];
      if (!last.done) return last;
      last.finish();
      this.computing.pop();
    }
    const waiting = answer.step();
    if (waiting !== null) return waiting;
    const told = new JsonObject().whole("id", this.id).text("text", answer.text());
    send(told.finish());
    if (this.automatic) answer.file.offer();
    else this.library.giveBack(this.wanted);
    answer.file.close();
    this.answer = null;
    return this.step();
  }
}
