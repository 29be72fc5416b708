// Constraints: texts that are instances of a JSON schema, or match a regular expression or a grammar.

import { Errno, Outcome, Result } from "./errno";
import { errnoOf, failure, outcome, success } from "./failure";
import * as raw from "./raw";
import { decodeUtf8, encodeUtf8 } from "./utf8";

/**
 * A compiled schema, expression or grammar, for `Sampling.constraint`. The server compiles each
 * text once and keeps it. The state of a text is each file's: it follows from the tokens that were
 * appended since the constraint was first used on it, so forks continue from where they are forked, and
 * `truncate` takes text back. One text behind another in the same file takes another constraint, or
 * `Sampling.constraintSince`.
 */
export class Constraint {
  constructor(
    /** The server's number for it; 0 when it is closed. */
    public handle: i32,
  ) {}

  /**
   * Texts that are instances of a JSON schema, which is JSON itself. The words of a failure say what is
   * wrong and where, such as `at #/properties/age: Invalid type: intger`.
   */
  static jsonSchema(schema: string): Constraint {
    return Constraint.tryJsonSchema(schema).value;
  }

  static tryJsonSchema(schema: string): Result<Constraint> {
    return compile(0, schema, "Constraint.jsonSchema");
  }

  /** Texts that a regular expression matches from beginning to end; it has no look-around. */
  static regex(expression: string): Constraint {
    return Constraint.tryRegex(expression).value;
  }

  static tryRegex(expression: string): Result<Constraint> {
    return compile(1, expression, "Constraint.regex");
  }

  /** Texts of a context-free grammar in Lark's syntax; it begins with `start`. */
  static lark(grammar: string): Constraint {
    return Constraint.tryLark(grammar).value;
  }

  static tryLark(grammar: string): Result<Constraint> {
    return compile(2, grammar, "Constraint.lark");
  }

  /** Closes it; generations that use it continue. */
  close(): void {
    this.tryClose().demand();
  }

  tryClose(): Outcome {
    const closed = outcome(raw.constraint_close(this.handle), "Constraint.close");
    this.handle = 0;
    return closed;
  }
}

function compile(kind: i32, text: string, call: string): Result<Constraint> {
  const bytes = encodeUtf8(text);
  const made = raw.constraint(kind, changetype<usize>(bytes), bytes.byteLength);
  if (made > 0) return success(new Constraint(made));
  const errno = errnoOf(made);
  const told = errno == Errno.EINVAL || errno == Errno.EFBIG;
  return failure<Constraint>(errno, call, told ? lastError() : "");
}

/** What was wrong, in words, with the last call that failed and has any. */
export function lastError(): string {
  const bytes = new ArrayBuffer(max(raw.last_error(0, 0), 0));
  raw.last_error(changetype<usize>(bytes), bytes.byteLength);
  return decodeUtf8(bytes);
}
