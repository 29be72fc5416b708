import { Generation, KvFile, check, inputText, send, tokenize } from "symphony-lip";

export function lip_main(): i32 {
  const prompt = tokenize(inputText()).unwrap();
  if (!prompt.length) {
    check(send("Give me a text to continue."), "send");
    return 0;
  }
  const generation = new Generation(KvFile.create(), prompt, 64);

  for (let text = generation.read(); text !== null; text = generation.read()) {
    check(send(text), "send");
  }
  check(generation.errno, "generation");
  return 0;
}
