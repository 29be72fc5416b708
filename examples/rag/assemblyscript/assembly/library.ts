// The documents, the files that hold some of them, and the statistics that say which.

import { Json, KvFile, Pred, modelInfo, tokenize } from "symphony-lip";

/** What a question counts after one more: half after seven hundred. */
const FADING: f64 = 0.999;

/** A document, and its file where there is one. */
export class Document {
  /** The file: there is one while it is kept, or somebody uses it. */
  file: KvFile | null = null;
  /** How many answers use the file now. */
  users: i32 = 0;
  kept: bool = false;
  /** How often it was asked for, as of question `asked`; older questions count less. */
  private asks: f64 = 0;
  private asked: i32 = 0;

  constructor(
    /** Whole pages, so that files that are appended to one another share them. */
    readonly tokens: u32[],
  ) {}

  asksAt(question: i32): f64 {
    return this.asks * FADING ** (question - this.asked);
  }

  ask(question: i32): void {
    this.asks = this.asksAt(question) + 1;
    this.asked = question;
  }
}

export class Library {
  private readonly documents: Document[] = [];
  private keptTokens: i32 = 0;
  private questions: i32 = 0;
  /** Documents that had to be computed, and those that were there. */
  computed: i32 = 0;
  found: i32 = 0;

  constructor(
    texts: string[],
    /** Of all documents that are kept. */
    private readonly keepTokens: i32,
  ) {
    const page = modelInfo().pageSize;
    const filler = tokenize("\n").pop();
    for (let i = 0; i < texts.length; i++) {
      const tokens = tokenize(texts[i]);
      while (!tokens.length || tokens.length % page) tokens.push(filler);
      this.documents.push(new Document(tokens));
    }
  }

  /** The documents with these numbers. */
  named(numbers: Json[]): Document[] {
    const found: Document[] = [];
    for (let i = 0; i < numbers.length; i++) {
      const number = numbers[i].integer();
      if (number < 0 || number >= this.documents.length) throw new Error("a document that is not there");
      found.push(this.documents[number as i32]);
    }
    return found;
  }

  /**
   * Has the files of documents there, for one who uses them until `giveBack`. What is in none is
   * begun, and its pass told; whoever reads it waits in the server.
   */
  take(wanted: Document[]): Pred[] {
    const computing: Pred[] = [];
    this.questions++;
    for (let i = 0; i < wanted.length; i++) {
      const document = wanted[i];
      document.ask(this.questions);
      if (document.file === null) {
        this.computed++;
        const file = KvFile.create();
        computing.push(file.prefill(document.tokens));
        document.file = file;
      } else {
        this.found++;
      }
      document.users++;
      this.consider(document);
    }
    return computing;
  }

  /** They are used by one less. */
  giveBack(wanted: Document[]): void {
    for (let i = 0; i < wanted.length; i++) {
      wanted[i].users--;
      this.close(wanted[i]);
    }
  }

  private close(document: Document): void {
    const file = document.file;
    if (file === null || document.kept || document.users) return;
    file.close();
    document.file = null;
  }

  /** Keeps a document where there is room, or where it is asked for more than what has to go. */
  private consider(document: Document): void {
    if (document.kept) return;
    let room = this.keepTokens - this.keptTokens;
    const going: Document[] = [];
    while (room < document.tokens.length) {
      const least = this.leastAsked(going);
      if (least === null || !(this.asks(least) < this.asks(document))) return;
      room += least.tokens.length;
      going.push(least);
    }
    for (let i = 0; i < going.length; i++) {
      going[i].kept = false;
      this.close(going[i]);
    }
    this.keptTokens = this.keepTokens - room + document.tokens.length;
    document.kept = true;
  }

  /** Of the kept documents the one that is asked for least, but for those that go already. */
  private leastAsked(going: Document[]): Document | null {
    let least: Document | null = null;
    for (let i = 0; i < this.documents.length; i++) {
      const document = this.documents[i];
      if (!document.kept || going.includes(document)) continue;
      if (least === null || this.asks(document) < this.asks(least)) least = document;
    }
    return least;
  }

  private asks(document: Document): f64 {
    return document.asksAt(this.questions);
  }

  /** Counts what of a prompt was known already. */
  count(wanted: Document[], known: i32): void {
    let end = 0;
    for (let i = 0; i < wanted.length; i++) {
      end += wanted[i].tokens.length;
      if (end <= known) this.found++;
      else this.computed++;
    }
  }

  /** Gives up what is kept. */
  closeAll(): void {
    for (let i = 0; i < this.documents.length; i++) {
      this.documents[i].kept = false;
      this.close(this.documents[i]);
    }
  }
}
