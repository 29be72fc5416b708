// Every typed class against a real worker and kernel: the input names the part, the messages tell what
// came, and tests/guest_sdk/test_assemblyscript_guests.py knows what had to come.

import {
  Channel, Chat, Child, Errno, Finish, Generation, KvFile, LogLevel, Plan, PredOptions, Reply,
  Rights, Sampling, SaveFlags, Session, Task, Ticket, TokenStream, check, clockMs, describe,
  detokenize, exit, fail, inputText, join, log, modelInfo, randomBytes, randomU64, recv, runTasks,
  send, sleep, tokenize, unixMs, waitAll, waitAny,
} from "symphony-lip";

export function lip_main(): i32 {
  const part = inputText();
  if (part == "process") return processPart();
  if (part == "tickets") return ticketsPart();
  if (part == "tasks") return tasksPart();
  if (part == "model") return modelPart();
  if (part == "files") return filesPart();
  if (part == "preds") return predsPart();
  if (part == "sampling") return samplingPart();
  if (part == "generation") return generationPart();
  if (part == "streams") return streamsPart();
  if (part == "sessions") return sessionsPart();
  if (part == "children") return childrenPart();
  if (part == "channels") return channelsPart();
  if (part == "errors") return errorsPart();
  if (part == "long") return longPart();
  if (part == "unwrap") KvFile.open("no/such").unwrap();
  if (part == "exit") exit(7);
  fail("there is no part " + part, 3);
  return 0;
}

function tell(text: string): void {
  check(send(text), "send");
}

function processPart(): i32 {
  log("a debug line", LogLevel.DEBUG);
  log("é😀");
  tell(`random ${randomBytes(16).byteLength} ${randomU64() != randomU64()}`);
  tell(`clocks ${clockMs() >= 0 && clockMs() < 60_000} ${unixMs() > 1_600_000_000_000}`);
  while (true) {
    const message = recv().text();
    if (!message.ok) {
      tell("end " + describe(message.errno));
      return 0;
    }
    tell("got " + message.unwrap());
  }
}

function ticketsPart(): i32 {
  const slow = sleep(60_000);
  const fast = sleep(5);
  tell(`poll ${slow.poll()}`);
  tell(`timeout ${waitAny<Ticket>([slow], 1)}`);
  tell(`any ${waitAny<Ticket>([slow, fast])} ${fast.done} ${describe(fast.status())}`);
  slow.cancel();
  tell("cancelled " + describe(slow.status()));
  const many: Ticket[] = [];
  for (let i = 0; i < 20; i++) many.push(sleep(i % 4));
  waitAll(many);
  let done = 0;
  for (let i = 0; i < 20; i++) done += many[i].done ? 1 : 0;
  tell(`all ${done}`);
  tell("never " + describe(sleep(-1).status()));
  return 0;
}

class Countdown extends Task {
  trace: string = "";

  constructor(private left: i32, private readonly pause: i64) {
    super();
  }

  step(): Ticket | null {
    this.trace += this.left.toString();
    return this.left-- ? sleep(this.pause) : null;
  }
}

function tasksPart(): i32 {
  const tasks: Countdown[] = [new Countdown(3, 1), new Countdown(0, 1), new Countdown(5, 0)];
  runTasks(tasks);
  tell(`${tasks[0].trace} ${tasks[1].trace} ${tasks[2].trace}`);
  return 0;
}

function modelPart(): i32 {
  const info = modelInfo();
  const eos = info.eos.join(",");
  tell(`${info.vocabSize} ${info.maxContext} ${info.pageSize} [${eos}] ${info.name.length > 0}`);
  const tokens = tokenize("def é😀(x):").unwrap();
  tell(detokenize(tokens).unwrap());
  tell(`empty ${tokenize("").unwrap().length} "${detokenize([]).unwrap()}"`);
  const chat = new Chat().add("user", "hello").tokens();
  tell(chat.ok ? `chat ${chat.unwrap().length > tokenize("hello").unwrap().length}` : chat.reason);
  return 0;
}

function filesPart(): i32 {
  const file = KvFile.create();
  const tokens: u32[] = [];
  for (let i: u32 = 0; i < 40; i++) tokens.push(i + 1);
  file.prefill(tokens);
  const fork = file.fork();
  const cut = file.extract([0, 3, 30, 35]);
  check(cut.append(file, 10, 12), "append");
  check(fork.truncate(4), "truncate");
  tell(`lengths ${file.length().unwrap()} ${fork.length().unwrap()} ${cut.length().unwrap()}`);
  tell("tokens " + cut.tokens(0, 10).unwrap().join(","));
  check(file.save("tour/a", SaveFlags.REPLACE), "save");
  tell("again " + describe(file.save("tour/a")));
  check(fork.save("tour/b"), "save");
  const listed = KvFile.list("tour/").unwrap();
  for (let i = 0; i < listed.length; i++) tell(`named ${listed[i].path} ${listed[i].length}`);
  const view = KvFile.open("tour/a", Rights.READ | Rights.APPEND).unwrap();
  const stat = view.stat().unwrap();
  tell(`stat ${stat.length} ${stat.pages} ${stat.rights} ${stat.tier.length > 0}`);
  tell("rights " + describe(view.truncate(1)));
  check(KvFile.remove("tour/a"), "remove");
  check(KvFile.remove("tour/b"), "remove");
  tell("gone " + KvFile.open("tour/a").reason);
  tell(`still ${view.length().unwrap()}`);
  tell("unknown " + KvFile.matching(tokens).reason);
  tell(`offered ${file.offer().unwrap()} ${describe(cut.offer().errno)}`);
  const known = KvFile.matching(tokens).unwrap();
  tell(`matched ${known.length().unwrap()} ${known.tokens(30, 2).unwrap().join(",")}`);
  check(view.close(), "close");
  tell("closed " + describe(view.close()));
  return 0;
}

function predsPart(): i32 {
  const tokens = tokenize("def add(a, b):").unwrap();
  const n = tokens.length;
  const file = KvFile.create();
  const every = file.pred(tokens, new PredOptions().atAll()).choices().unwrap();
  const best = every[n - 1];
  tell(`all ${every.length == n} ${best.logprob < 0}`);

  const top = file.fork().decode(best.token, new PredOptions().top(3)).choices().unwrap();
  tell(`top ${top.length} ${top[0].logprob >= top[1].logprob && top[1].logprob >= top[2].logprob}`);
  const told = file.fork().decode(best.token, new PredOptions().logprobs(3)).choice().unwrap();
  tell(`told ${told.token == top[0].token} ${told.best.length} ${told.best[2].token == top[2].token}`);
  const stream = file.fork().generate([best.token], 2, [], new PredOptions().logprobs(2));
  const streamed = stream.rest();
  tell(`streamed ${streamed.length} ${streamed[0].best[1].token == top[1].token}`);
  const plain = file.fork().decode(best.token).choice().unwrap();
  tell(`argmax ${plain.token == top[0].token}`);
  const those = new PredOptions().of([top[2].token, top[0].token]);
  const scores = file.fork().decode(best.token, those).scores().unwrap();
  tell(`of ${scores.length} ${near(scores[0], top[2].logprob)} ${near(scores[1], top[0].logprob)}`);
  const logits = file.fork().decode(best.token, new PredOptions().logits()).scores().unwrap();
  tell(`logits ${logits.length == modelInfo().vocabSize}`);
  const biased = new PredOptions().bias(5, 1000).bias(6, -1000);
  tell(`bias ${file.fork().decode(best.token, biased).choice().unwrap().token}`);
  const mask = new Uint8Array((modelInfo().vocabSize + 7) >> 3);
  mask[1] = 1 << 3;
  const masked = new PredOptions().biasMask(mask.buffer, 1000);
  tell(`bias mask ${file.fork().decode(best.token, masked).choice().unwrap().token}`);
  const allowed = new PredOptions().allow([9, 17], modelInfo().vocabSize);
  const one = file.fork().decode(best.token, allowed).choice().unwrap().token;
  tell(`allow ${one == 9 || one == 17}`);
  file.decode(best.token, new PredOptions().dropped()).choice().unwrap();
  tell(`dropped ${file.length().unwrap() == n}`);
  const tree = new PredOptions().at([2, 0]).parents([-1, 0, 0]);
  tell(`tree ${file.fork().pred([best.token, 5, 6], tree).choices().unwrap().length}`);
  const places = [n as u32, (n + 1) as u32];
  tell(`placed ${file.fork().pred([1, 2], null, places).choice().ok}`);
  tell("misplaced " + file.fork().pred([1, 2], null, [0]).choice().reason);
  const now = file.fork().predNow([best.token, 5], new PredOptions().atAll()).choices().unwrap();
  const same = now[0].token == top[0].token && near(now[0].logprob, top[0].logprob);
  tell(`now ${now.length} ${same} ${file.fork().decodeNow(best.token).done}`);
  tell("not now " + file.fork().predNow([1, 2], null, [0]).choice().reason);
  tell("never " + KvFile.create().predNow([1], new PredOptions().at([3])).choice().reason);
  tell("nothing " + file.fork().prefill([1]).choice().reason);
  return 0;
}

function near(left: f32, right: f32): bool {
  return abs(left - right) < 1e-3;
}

function samplingPart(): i32 {
  const prompt = tokenize("import ").unwrap();
  for (let seed: u64 = 1; seed < 3; seed++) {
    const sampling = new Sampling().withTemperature(1.5).withSeed(seed).withTopK(50).withTopP(0.95);
    const options = new PredOptions().sample(sampling.withMinP(0.001));
    const first = new Generation(KvFile.create(), prompt, 8, options);
    const second = new Generation(KvFile.create(), prompt, 8, options);
    runTasks([first, second]);
    tell(`same ${first.tokens.join() == second.tokens.join()} ${first.tokens.length}`);
  }
  return 0;
}

function generationPart(): i32 {
  const prompt = tokenize("def read(path):\n    ").unwrap();
  const whole = new Generation(KvFile.create(), prompt, 12);
  whole.stopTokens = [];
  check(whole.finish(), "finish");
  const text = whole.text().unwrap();
  tell(`whole ${whole.tokens.length} ${whole.reason == Finish.LENGTH} ${whole.meanLogprob < 0}`);
  tell(`kept ${whole.file.length().unwrap() == prompt.length + 11}`);

  const pieces = new Generation(KvFile.create(), prompt, 12);
  pieces.stopTokens = [];
  let joined = "";
  for (let piece = pieces.read(); piece !== null; piece = pieces.read()) joined += piece;
  tell(`pieces ${joined == text} ${joined == detokenize(whole.tokens).unwrap()}`);

  const stopped = new Generation(KvFile.create(), prompt, 12);
  stopped.stopTokens = [whole.tokens[3]];
  check(stopped.finish(), "finish");
  tell(`token ${stopped.tokens.length <= 3} ${stopped.reason == Finish.STOP}`);

  const middle = text.substr(text.length / 2, 2);
  const cut = new Generation(KvFile.create(), prompt, 12);
  cut.stopTokens = [];
  cut.stopTexts = [middle, "never to be seen"];
  joined = "";
  for (let piece = cut.read(); piece !== null; piece = cut.read()) joined += piece;
  const expected = text.substring(0, text.indexOf(middle));
  tell(`text ${joined == expected} ${cut.text().unwrap() == expected} ${cut.reason == Finish.STOP}`);

  const none = new Generation(KvFile.create(), [], 12);
  tell("empty " + describe(none.finish()) + " " + none.text().reason);
  return 0;
}

function streamsPart(): i32 {
  const prompt = tokenize("def read(path):\n    ").unwrap();
  const sampling = new Sampling().withTemperature(1.5).withSeed(3);
  const options = new PredOptions().sample(sampling);
  const file = KvFile.create();
  const whole = file.generate(prompt, 10, [], options, 2);
  tell("busy " + describe(file.length().errno));
  const tokens = whole.rest();
  let same = true;
  const looped = KvFile.create();
  let next = looped.pred(prompt, options).choice().unwrap();
  for (let i = 0; i < tokens.length; i++) {
    same = same && next.token == tokens[i].token && near(next.logprob, tokens[i].logprob);
    next = looped.decodeNow(next.token, options).choice().unwrap();
  }
  tell(`whole ${same} ${tokens.length} ${whole.errno} ${whole.done} ${whole.next() === null}`);
  tell(`kept ${file.length().unwrap() == prompt.length + 9}`);

  const stopped = KvFile.create().generate(prompt, 10, [5, tokens[4].token], options);
  tell(`stopped ${stopped.rest().length <= 5}`);

  const streams: TokenStream[] = [];
  for (let i = 0; i < 3; i++) streams.push(KvFile.create().generate(prompt, 4 + i, [], options));
  let count = 0;
  while (streams.length) {
    const index = waitAny(streams);
    const many = streams[index].nextMany();
    count += many.length;
    if (!many.length) streams.splice(index, 1);
  }
  tell(`together ${count}`);

  const cut = KvFile.create();
  const dropped = cut.generate(prompt, -1, [], null, 3);
  dropped.next();
  dropped.cancel();
  const length = cut.length().unwrap();
  tell(`cancelled ${length >= prompt.length && length <= prompt.length + 5} ${describe(dropped.errno)}`);
  check(cut.truncate(prompt.length), "truncate");
  tell("none " + describe(cut.generate([], 3).status()));
  tell("bad " + describe(cut.generate([1], 3, [], new PredOptions().top(2)).status()));
  return 0;
}

/** A child: says its input and the length of the file that it was granted, and appends to it. */
export function child(): i32 {
  const file = KvFile.granted("notes").unwrap();
  tell(`${inputText()} ${file.length().unwrap()} ${describe(file.truncate(0))}`);
  return file.decode(7).status() == Errno.OK ? 5 : 6;
}

function sessionsPart(): i32 {
  const session = new Session("def add(a, b):");
  check(session.settle(), "settle");
  tell(`settled ${session.tokens.length} ${session.file.length().unwrap()} ${session.usage.prefilled}`);
  const alone = session.fork();
  const said = alone.reply(new Plan(6));
  tell(`reply ${said.length > 0} ${alone.tokens.length} ${alone.file.length().unwrap()}`);

  // Branches side by side say what they say alone, and share what is computed.
  const drawn = new Plan(6).withTemperature(1).withSeed(3);
  const replies: Reply[] = [];
  for (let i = 0; i < 3; i++) replies.push(session.fork().begin(i ? drawn.branch(i) : new Plan(6)));
  runTasks(replies);
  const other = session.fork().reply(drawn.branch(2));
  tell(`branches ${replies[0].text == said} ${replies[2].text == other} ${replies[1].text != other}`);
  tell(`used ${session.usage.prefilled} ${session.usage.generated}`);

  // What was replied is part of the text: going on is as if it had been said.
  alone.say("!");
  const again = new Session("def add(a, b):");
  again.push(replies[0].tokens);
  again.say("!");
  tell(`on ${alone.reply(new Plan(4)) == again.reply(new Plan(4))}`);

  // A text to stop at is cut off, of the tokens, too, and what is rewritten keeps its beginning.
  const stop = session.fork();
  const cut = stop.reply(new Plan(6).stop(said.charAt(3)));
  const held = detokenize(stop.tokens).unwrap() == "def add(a, b):" + cut;
  tell(`stopped ${said.startsWith(cut) && cut.length <= 3} ${held}`);
  const known = stop.rewrite(tokenize("def add(a, c):").unwrap());
  tell(`rewritten ${known} ${stop.file.length().unwrap()} ${stop.reply(new Plan(2)).length > 0}`);
  const copy = Session.of(again.file.fork());
  tell(`of ${copy.tokens.length == again.file.length().unwrap()}`);
  tell("empty " + describe(new Session().begin(new Plan(1)).finish()));
  return 0;
}

function childrenPart(): i32 {
  const file = KvFile.create();
  file.prefill([1, 2, 3]);
  const plan = new Child();
  plan.entry = "child";
  plan.input = String.UTF8.encode("hällo");
  const spawned = plan.grant(file, Rights.READ | Rights.APPEND, "notes").spawn();
  const pid = spawned.pid().unwrap();
  const ended = join(pid).ended().unwrap();
  tell(`child ${pid > 0} ${ended.code} ${ended.text}`);
  tell(`file ${file.length().unwrap()}`);
  tell("granted " + KvFile.granted("notes").reason);
  tell("again " + join(pid).ended().reason);
  return 0;
}

function channelsPart(): i32 {
  const channel = new Channel("tour");
  const first = channel.recv();
  check(channel.send("one"), "channel_send");
  check(channel.send("zwölf"), "channel_send");
  tell(`${first.text().unwrap()} ${channel.recv().text().unwrap()}`);
  return 0;
}

function errorsPart(): i32 {
  const none = KvFile.open("no/such");
  tell(`${none.ok} ${none.reason}`);
  tell(`or ${tokenize("x").or([]).length > 0}`);
  const missing = new KvFile(-Errno.EDQUOT);
  tell(`missing ${describe(missing.close())} | ${missing.fork().length().reason}`);
  tell("pred " + missing.decode(1).choice().reason);
  tell("foreign " + new KvFile(0x7fff0001).length().reason);
  tell("name " + describe(KvFile.create().save("")));
  tell("past " + KvFile.create().pred([1], new PredOptions().at([3])).choice().reason);
  return 0;
}

/** Thousands of tickets, results and strings: the collector must keep up. */
function longPart(): i32 {
  const generation = new Generation(KvFile.create(), tokenize("x").unwrap(), 3000);
  let bytes = 0;
  for (let piece = generation.read(); piece !== null; piece = generation.read()) {
    bytes += piece.length;
  }
  tell(`long ${generation.tokens.length} ${bytes == generation.text().unwrap().length}`);
  return 0;
}
