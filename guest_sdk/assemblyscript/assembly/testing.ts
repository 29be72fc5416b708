// What tests use that `symphony test` runs; programs do not import it.

import { Child, Ended, join } from "./process";
import { encodeUtf8 } from "./utf8";

/** Runs the project's program to its end with this input, as a child of the test. */
export function runProgram(input: string): Ended {
  const child = new Child();
  child.entry = "lip_main";
  child.input = encodeUtf8(input);
  return join(child.spawn().pid()).ended();
}

/** Ends the test as failed unless both are equal; numbers, booleans and strings. */
export function expectEqual<T>(actual: T, expected: T): void {
  if (actual == expected) return;
  assert(false, `expected ${shown<T>(expected)}, got ${shown<T>(actual)}`);
}

/** Ends the test as failed unless the text contains the part. */
export function expectContains(text: string, part: string): void {
  assert(text.includes(part), `expected ${shown<string>(part)} in ${shown<string>(text)}`);
}

function shown<T>(value: T): string {
  if (isString<T>()) return `"${value}"`;
  return `${value}`;
}
