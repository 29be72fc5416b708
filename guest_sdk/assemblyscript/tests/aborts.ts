// Each way in which an AssemblyScript program aborts: the input names it.
// tests/e2e/test_late_imports.py knows the reason that each must have.

import { Json, KvFile, inputText, tokenize } from "symphony-lip";

class Holder {
  held: Holder | null = null;
}

function nested(part: string): void {
  const file = KvFile.create();
  file.prefill(tokenize(part));
  file.truncate(1000);
}

export function lip_main(): i32 {
  const part = inputText();
  const none: i32[] = [];
  if (part == "bounds") return none[part.length];
  if (part == "null") return new Holder().held!.held == null ? 1 : 2;
  if (part == "open") KvFile.open("no/such");
  if (part == "nested") nested(part);
  if (part == "json") Json.parse("{\"a\": ");
  if (part == "assert") assert(false, "é😀");
  return 0;
}
