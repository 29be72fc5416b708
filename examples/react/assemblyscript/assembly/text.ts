// A text that grows at the end of a KV file: the program says something, the model replies, and what
// was said is computed with the reply that follows.

import {
  Finish, Generation, KvFile, PredOptions, check, detokenize, tokenize,
} from "symphony-lip";

export class Text {
  /** How many tokens the program gave, and how many the model chose, that were computed. */
  prefilled: i32 = 0;
  generated: i32 = 0;
  private file: KvFile = KvFile.create();
  private held: i32 = 0; // entries of the file
  private pending: u32[] = []; // said, and not computed yet

  /** The tokens of all of it. */
  get length(): i32 {
    return this.held + this.pending.length;
  }

  /** Adds to the text. */
  say(text: string): void {
    this.pending = this.pending.concat(tokenize(text).unwrap());
  }

  /** The model goes on, up to `stop`; with `exact` nothing but the number of tokens ends it. */
  reply(maxTokens: i32, options: PredOptions, stop: string, exact: bool): string {
    const generation = new Generation(this.file, this.pending, maxTokens, options);
    if (exact) generation.stopTokens = [];
    else if (stop.length) generation.stopTexts = [stop];
    check(generation.finish(), "the model");
    const text = generation.text().unwrap();
    const tokens = generation.tokens;
    this.prefilled += this.pending.length;
    this.generated += tokens.length;

    const before = this.held + this.pending.length;
    this.held = this.file.length().unwrap();
    this.pending = tokens.slice(this.held - before);
    if (generation.reason == Finish.STOP && this.pending.length) this.endWith(before, tokens, text);
    return text;
  }

  /** Cuts the file to a reply's text, whose end may be inside of a token. */
  private endWith(before: i32, tokens: u32[], text: string): void {
    let kept = tokens.length;
    let said = detokenize(tokens).unwrap();
    while (!text.startsWith(said)) said = detokenize(tokens.slice(0, --kept)).unwrap();
    if (before + kept < this.held) {
      check(this.file.truncate(before + kept), "truncate");
      this.held = before + kept;
    }
    this.pending = tokens.slice(this.held - before, kept);
    this.say(text.substring(said.length));
  }
}
