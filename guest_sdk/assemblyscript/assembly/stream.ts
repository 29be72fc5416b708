// Look-ahead decoding: the server continues to sample while the program looks at what came.

import { Errno } from "./errno";
import { errnoOf, tokenCount } from "./failure";
import { Choice, choiceAt, passDetail } from "./pred";
import * as raw from "./raw";
import { Ticket } from "./tickets";

const ROOM_BYTES: i32 = 4096; // 512 tokens, or 24 with 20 others each
const ROOM: usize = memory.data(ROOM_BYTES);

/**
 * Tokens as they come, of `KvFile.stream`. As a ticket it is done when there is something to take,
 * and again for each token, and in the end for good. Until it has given its last token, or has been
 * cancelled, other calls on its file answer EBUSY. After `cancel` the file holds every token that was
 * appended, up to `Sampling.lookahead` more than were taken: `truncate` rolls them back. A failure
 * comes behind the last token.
 */
export class TokenStream extends Ticket {
  /** Bytes of a token and of those next to it. */
  recordBytes: i32 = 8;
  /** How many tokens it was given. */
  given: i32 = 0;
  private ready: Array<Choice> = [];
  private at: i32 = 0; // of the first one in `ready` that was not taken

  /** Whether something can be taken now, or nothing ever will. */
  get done(): bool {
    return this.at < this.ready.length || this.number == 0;
  }

  /** Takes what has come; says whether that was anything. */
  poll(): bool {
    if (this.done) return true;
    const length = raw.take(this.number, ROOM, ROOM_BYTES);
    if (length == -Errno.EAGAIN) return false;
    this.add(length);
    return true;
  }

  /** Suspends until there is a token, or for `timeoutMs` (-1: as long as it takes); says whether. */
  wait(timeoutMs: i64 = -1): bool {
    if (this.done || timeoutMs >= 0) return super.wait(timeoutMs);
    this.add(raw.claim(this.number, ROOM, ROOM_BYTES, -1));
    return true;
  }

  /** One more token, waited for; null after the last. */
  next(): Choice | null {
    const next = this.tryNext();
    if (next === null) this.finish();
    return next;
  }

  /** `next`, which is null at a failure, too: see `errno`. */
  tryNext(): Choice | null {
    this.wait();
    return this.at < this.ready.length ? this.ready[this.at++] : null;
  }

  /** All tokens that have come, waited for until there is one; none after the last. */
  nextMany(): Array<Choice> {
    this.wait();
    const all = this.ready.slice(this.at);
    this.at = this.ready.length;
    if (!all.length) this.finish();
    return all;
  }

  /** All tokens that are still to come. */
  rest(): Array<Choice> {
    const all = new Array<Choice>(0);
    for (let next = this.next(); next !== null; next = this.next()) all.push(next);
    return all;
  }

  /** Ends it now: nothing is appended behind this call, and what has come is dropped. */
  cancel(): void {
    super.cancel();
    this.at = this.ready.length;
  }

  get call(): string {
    return `${this.name}(${tokenCount(this.given)})`;
  }

  protected get detail(): string {
    return passDetail(this.errno, this.given);
  }

  /** Takes what `take` or `claim` left in ROOM, or the end. */
  private add(bytes: i32): void {
    if (bytes <= 0) {
      this.end(errnoOf(bytes));
      return;
    }
    this.ready = [];
    this.at = 0;
    const size = this.recordBytes;
    for (let i = 0; i < bytes; i += size) this.ready.push(choiceAt(ROOM + i, size));
  }
}
