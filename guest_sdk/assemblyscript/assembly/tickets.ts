// Work in flight. A call marked "ticket" starts work and returns at once; a program may hold many
// tickets, and that is how it runs branches in parallel: issue the calls of a round, then wait, and
// the kernel computes them in one batch.

import { Errno, Outcome, Result } from "./errno";
import { demand, errnoOf, failure, success } from "./failure";
import * as raw from "./raw";

const SCRATCH_BYTES: i32 = 4096;
const SCRATCH: usize = memory.data(SCRATCH_BYTES);
const ONE_TICKET: usize = memory.data(4);
const NOTHING = new ArrayBuffer(0);

/**
 * One piece of work: pending, then done, with a result or an error. Work that did not start is done
 * from the beginning, with the reason. A program that is no longer interested calls `cancel`.
 */
export class Ticket {
  protected payload: ArrayBuffer = NOTHING;
  private failed: Errno = Errno.OK;

  constructor(
    private id: i32,
    protected readonly name: string,
  ) {
    this.failed = errnoOf(id);
    if (id < 0) this.id = 0;
  }

  /** The call that started the work, for messages. */
  get call(): string {
    return this.name;
  }

  /** Why the work failed, when it is done; `OK` otherwise. */
  get errno(): Errno {
    return this.failed;
  }

  /** Whether the work is done. Doesn't ask the host: `poll`, `wait` and the helpers below do. */
  get done(): bool {
    return this.id == 0;
  }

  /** The host's number for it; 0 when it is done. */
  get number(): i32 {
    return this.id;
  }

  /** Takes the result when there is one; says whether the work is done. */
  poll(): bool {
    if (this.id == 0) return true;
    const length = raw.take(this.id, SCRATCH, SCRATCH_BYTES);
    return length == -Errno.EAGAIN ? false : this.accept(length);
  }

  /** Takes what `take` or `claim` left in SCRATCH, or goes for it where it has no room there. */
  private accept(length: i32): bool {
    if (length <= SCRATCH_BYTES) {
      this.keep(SCRATCH, length);
      return true;
    }
    const large = new ArrayBuffer(length);
    this.keep(0, raw.take(this.id, changetype<usize>(large), length));
    if (this.failed == Errno.OK) this.payload = large;
    return true;
  }

  /** Suspends until the work is done, or for `timeoutMs` (-1: as long as it takes); says whether. */
  wait(timeoutMs: i64 = -1): bool {
    if (this.done) return true;
    // With a time limit, its end and a result of that errno would be the same.
    if (timeoutMs < 0) return this.accept(raw.claim(this.id, SCRATCH, SCRATCH_BYTES, -1));
    store<i32>(ONE_TICKET, this.id);
    const index = raw.wait(ONE_TICKET, 1, timeoutMs);
    if (index == -Errno.ETIMEDOUT) return false;
    demand(index, "wait");
    return this.poll();
  }

  /** Suspends until the work is done; its bytes. */
  bytes(): ArrayBuffer {
    return this.tryBytes().value;
  }

  tryBytes(): Result<ArrayBuffer> {
    this.wait();
    return this.failed == Errno.OK ? success(this.payload) : this.error<ArrayBuffer>();
  }

  /** Suspends until the work is done; ends the run when it failed. */
  finish(): void {
    this.tryFinish().demand();
  }

  tryFinish(): Outcome {
    this.wait();
    return new Outcome(this.failed, this.call, this.detail);
  }

  /** Drops the work, or its result. */
  cancel(): void {
    if (this.id == 0) return;
    raw.cancel(this.id);
    this.id = 0;
    this.failed = Errno.ECANCELED;
  }

  /** The work's error as the result that a typed reader returns. */
  protected error<T>(): Result<T> {
    return failure<T>(this.failed, this.call, this.detail);
  }

  /** Words for the work's error, where there are better ones than the errno's. */
  protected get detail(): string {
    return "";
  }

  /** Nothing more comes of it, and it is the host's no longer. */
  protected end(why: Errno): void {
    this.id = 0;
    this.failed = why;
  }

  /** It is done: its result, or why there is none. */
  protected settle(payload: ArrayBuffer, why: Errno): void {
    this.end(why);
    this.payload = payload;
  }

  private keep(from: usize, length: i32): void {
    this.end(errnoOf(length));
    if (from == 0 || length <= 0) return;
    const bytes = new ArrayBuffer(length);
    memory.copy(changetype<usize>(bytes), from, length);
    this.payload = bytes;
  }
}

/** Suspends until one ticket is done; its index, or -1 after `timeoutMs` (or without tickets). */
export function waitAny<T extends Ticket>(tickets: Array<T>, timeoutMs: i64 = -1): i32 {
  const numbers = new StaticArray<i32>(tickets.length);
  for (let i = 0; i < tickets.length; i++) {
    if (tickets[i].done) return i;
    numbers[i] = tickets[i].number;
  }
  if (!tickets.length) return -1;
  const index = raw.wait(changetype<usize>(numbers), tickets.length, timeoutMs);
  if (index == -Errno.ETIMEDOUT) return -1;
  demand(index, "wait");
  tickets[index].poll();
  return index;
}

/** Suspends until every ticket is done. */
export function waitAll<T extends Ticket>(tickets: Array<T>): void {
  let pending = tickets.slice();
  while (pending.length) {
    waitAny(pending);
    const left = new Array<T>();
    for (let i = 0; i < pending.length; i++) if (!pending[i].poll()) left.push(pending[i]);
    pending = left;
  }
}

/**
 * Work in steps, for `runTasks`: AssemblyScript has neither closures nor `async`, so a branch of a
 * program is an object that remembers where it is.
 */
export abstract class Task {
  /** What the task waits for. */
  waiting: Ticket | null = null;

  /** Goes on until something must be waited for, and returns that; null when the task has ended. */
  abstract step(): Ticket | null;

  /** Ends it early; a task that holds more than the ticket for which it waits gives it back, too. */
  cancel(): void {
    const waiting = this.waiting;
    if (waiting !== null) waiting.cancel();
    this.waiting = null;
  }
}

/** Runs tasks side by side until all have ended. */
export function runTasks<T extends Task>(tasks: Array<T>): void {
  const completed = asCompleted(tasks);
  while (completed.next() !== null) continue;
}

/** Runs tasks side by side, and gives each as it ends: best of several, first of several. */
export function asCompleted<T extends Task>(tasks: Array<T>): Completed<T> {
  return new Completed<T>(tasks);
}

/** Tasks that run side by side (`asCompleted`). */
export class Completed<T extends Task> {
  private live: Array<T>;
  private ended: Array<T> = [];

  constructor(tasks: Array<T>) {
    this.live = tasks.slice();
  }

  /** Suspends until one more task has ended; null when all have. */
  next(): T | null {
    while (!this.ended.length && this.live.length) this.round();
    return this.ended.length ? this.ended.shift() : null;
  }

  /** Cancels the tasks that have not ended. */
  stop(): void {
    for (let i = 0; i < this.live.length; i++) this.live[i].cancel();
    this.live = [];
  }

  /** Steps all tasks, then waits once: so the kernel sees a round as one batch. */
  private round(): void {
    const left = new Array<T>();
    const tickets = new Array<Ticket>();
    for (let i = 0; i < this.live.length; i++) {
      const ticket = advance(this.live[i]);
      if (ticket === null) {
        this.ended.push(this.live[i]);
        continue;
      }
      left.push(this.live[i]);
      tickets.push(ticket);
    }
    this.live = left;
    if (this.ended.length || !left.length) return;
    waitAny(tickets);
    for (let i = 0; i < tickets.length; i++) tickets[i].poll();
  }
}

/** Steps a task until it waits for work that is not done. */
function advance(task: Task): Ticket | null {
  let ticket = task.waiting;
  if (ticket !== null && !ticket.done) return ticket;
  do ticket = task.step(); while (ticket !== null && ticket.done);
  task.waiting = ticket;
  return ticket;
}
