// Each way in which an AssemblyScript program aborts: the input names it.
// tests/e2e/test_late_imports.py knows the reason that each must have.

import { Errno, Json, KvFile, check, inputText } from "../assembly/index";

class Holder {
  held: Holder | null = null;
}

export function lip_main(): i32 {
  const part = inputText();
  const none: i32[] = [];
  if (part == "bounds") return none[part.length];
  if (part == "null") return new Holder().held!.held == null ? 1 : 2;
  if (part == "unwrap") KvFile.open("no/such").unwrap();
  if (part == "check") check(Errno.ENOENT, "a call");
  if (part == "json") Json.parse("{\"a\": ");
  if (part == "assert") assert(false, "é😀");
  return 0;
}
