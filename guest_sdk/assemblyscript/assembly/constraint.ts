// Constraints: texts that are instances of a JSON schema, or match a regular expression or a grammar.

import { Errno, Result, errnoOf, failure, success } from "./errno";
import * as raw from "./raw";
import { decodeUtf8, encodeUtf8 } from "./utf8";

/**
 * A compiled schema, expression or grammar, for `PredOptions.constraint`. The server compiles each
 * text once and keeps it. The state of a text is each file's: it follows from the tokens that were
 * appended since the constraint was first used on it, so forks go on from where they are forked, and
 * `truncate` takes text back. One text behind another in the same file takes another constraint, or
 * `PredOptions.since`.
 */
export class Constraint {
  constructor(
    /** The server's number for it; 0 when it is closed. */
    public handle: i32,
  ) {}

  /**
   * Texts that are instances of a JSON schema, which is JSON itself. The `reason` of a failure says
   * what is wrong and where, such as `at #/properties/age: Invalid type: intger`.
   */
  static jsonSchema(schema: string): Result<Constraint> {
    return Constraint.compile(0, schema);
  }

  /** Texts that a regular expression matches from beginning to end; it has no look-around. */
  static regex(expression: string): Result<Constraint> {
    return Constraint.compile(1, expression);
  }

  /** Texts of a context-free grammar in Lark's syntax; it begins with `start`. */
  static lark(grammar: string): Result<Constraint> {
    return Constraint.compile(2, grammar);
  }

  /** Closes it; generations that use it go on. */
  close(): Errno {
    const errno = errnoOf(raw.constraint_close(this.handle));
    this.handle = 0;
    return errno;
  }

  private static compile(kind: i32, text: string): Result<Constraint> {
    const bytes = encodeUtf8(text);
    const made = raw.constraint(kind, changetype<usize>(bytes), bytes.byteLength);
    if (made > 0) return success(new Constraint(made));
    const errno = errnoOf(made);
    const told = errno == Errno.EINVAL || errno == Errno.EFBIG;
    const words = told ? lastError() : "";
    return failure<Constraint>(errno, words.length ? "constraint: " + words : "constraint");
  }
}

/** What was wrong, in words, with the last call that failed and has any. */
export function lastError(): string {
  const bytes = new ArrayBuffer(max(raw.last_error(0, 0), 0));
  raw.last_error(changetype<usize>(bytes), bytes.byteLength);
  return decodeUtf8(bytes);
}
