// How the SDK makes and ends at failures; programs see `Outcome` and `Result`.

import { Errno, Outcome, Result } from "./errno";

/** The error in a call's raw result; `OK` for zero and above. */
export function errnoOf(result: i32): Errno {
  return result < 0 ? -result : Errno.OK;
}

/** Ends the run when a raw result is an error; `call` names the call and its operand. */
export function demand(result: i32, call: string): void {
  if (result < 0) new Outcome(errnoOf(result), call).demand();
}

/** The outcome of a raw result. */
export function outcome(result: i32, call: string): Outcome {
  return new Outcome(errnoOf(result), call);
}

/** A result with a value. */
export function success<T>(value: T): Result<T> {
  return new Result<T>(value, Errno.OK);
}

/** A result without one; `detail` replaces the error's general words. */
export function failure<T>(errno: Errno, call: string, detail: string = ""): Result<T> {
  // Nothing reads the content of a failed result, so a reference in it may be null.
  if (isReference<T>()) return new Result<T>(changetype<T>(0), errno, call, detail);
  return new Result<T>(<T>0, errno, call, detail);
}

/** A call of one named thing, for messages: `call("name")`. */
export function named(call: string, name: string): string {
  return call + '("' + name + '")';
}

/** A number of tokens, for messages. */
export function tokenCount(count: i32): string {
  return count == 1 ? "1 token" : `${count} tokens`;
}
