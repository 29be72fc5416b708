// Keeps the AssemblyScript compiler warm: asc itself takes most of a second to load. It reads a
// JSON list of arguments a line, and answers each with a line {ok, stdout, stderr}.

import { createInterface } from "node:readline";
import { pathToFileURL } from "node:url";

const asc = await import(pathToFileURL(process.argv[2]).href);

class Kept {
  text = "";
  write(chunk) {
    this.text += typeof chunk === "string" ? chunk : Buffer.from(chunk).toString("utf8");
  }
}

for await (const line of createInterface({ input: process.stdin })) {
  const stdout = new Kept();
  const stderr = new Kept();
  const { error } = await asc.main(JSON.parse(line), { stdout, stderr });
  const answer = { ok: !error, stdout: stdout.text, stderr: stderr.text || String(error ?? "") };
  process.stdout.write(JSON.stringify(answer) + "\n");
}
