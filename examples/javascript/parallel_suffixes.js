/* symphony: {"description": "Continues one prefix with many suffixes at once."} */
// The program of the slides: a prefix is computed once, and each suffix goes on in a fork of it.
import { KvFile, Session, random, samplingOf, send } from "symphony";

export default async function main(input) {
  const { prefix: text, suffixes } = input;
  const sampling = samplingOf(input, "max_tokens", 16);
  const path = `parallel_suffixes/${Array.from(random(8), (byte) => byte.toString(16)).join("")}`;
  const prefix = await openPrefix(path, text);

  // Every branch makes its pass before the program waits, so a step computes all of them.
  const replies = await prefix.fanOut(suffixes.length, (branch, i) => {
    branch.append(suffixes[i]);
    return branch.reply(sampling);
  });
  replies.forEach((reply, suffix) => send({ suffix, text: reply.text }));
  KvFile.remove(path);
}

/** The prefix by its name if it is there, else computed and named. */
async function openPrefix(path, text) {
  try {
    return Session.of(KvFile.open(path));
  } catch (error) {
    if (error.name !== "ENOENT") throw error;
  }
  const session = new Session(text);
  await session.flush();
  session.file.save(path, { replace: true });
  return session;
}
