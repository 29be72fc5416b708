// Run-ahead decoding: the server goes on sampling while the program looks at what came.

import { Errno, errnoOf } from "./errno";
import { Choice, choiceAt } from "./pred";
import * as raw from "./raw";
import { Ticket } from "./tickets";

const ROOM_BYTES: i32 = 4096; // 512 tokens, or 24 with 20 others beside each
const ROOM: usize = memory.data(ROOM_BYTES);

/**
 * Tokens as they come, of `KvFile.generate`. As a ticket it is done when there is something to take,
 * and again for each token, and in the end for good. Until it has given its last token, or has been
 * cancelled, other calls on its file answer EBUSY. After `cancel` the file holds every token that was
 * appended, up to `ahead` more than were taken: `truncate` rolls them back.
 */
export class TokenStream extends Ticket {
  /** Bytes of a token and of those beside it. */
  recordBytes: i32 = 8;
  private ready: Array<Choice> = [];
  private at: i32 = 0; // of the first one in `ready` that was not taken

  /** Whether something can be taken now, or nothing ever will. */
  get done(): bool {
    return this.at < this.ready.length || this.number == 0;
  }

  /** What ended it, where that was an error; it comes behind the last token. */
  get errno(): Errno {
    return this.failed;
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

  /** One more token, waited for; null after the last, and when it failed (see `errno`). */
  next(): Choice | null {
    this.wait();
    return this.at < this.ready.length ? this.ready[this.at++] : null;
  }

  /** All tokens that have come, waited for until there is one; none after the last. */
  nextMany(): Array<Choice> {
    this.wait();
    const all = this.ready.slice(this.at);
    this.at = this.ready.length;
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
