// Every typed class against a real worker and kernel: the input names the part, the messages tell what
// came, and tests/guest_sdk/test_assemblyscript_guests.py knows what had to come.

import {
  BiasMask, Channel, Chat, Child, Choice, Errno, Finish, Generation, KvFile, LogLevel, PredOptions, RepetitionPenalty,
  Reply, Rights, Sampling, SaveFlags, Session, Task, Ticket, TokenBias, TokenSet, TokenStream, asCompleted, clockMs,
  describe, detokenize, exit, fail, inputText, join, log, modelInfo, randomBytes, randomU64, recv,
  runTasks, send, sleep, tokenize, tryTokenize, unixMs, waitAll, waitAny,
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
  if (part == "chats") return chatsPart();
  if (part == "completed") return completedPart();
  if (part == "children") return childrenPart();
  if (part == "channels") return channelsPart();
  if (part == "errors") return errorsPart();
  if (part == "long") return longPart();
  if (part == "open") KvFile.open("no/such");
  if (part == "exit") exit(7);
  fail("there is no part " + part, 3);
  return 0;
}

function processPart(): i32 {
  log("a debug line", LogLevel.DEBUG);
  log("é😀");
  send(`random ${randomBytes(16).byteLength} ${randomU64() != randomU64()}`);
  send(`clocks ${clockMs() >= 0 && clockMs() < 60_000} ${unixMs() > 1_600_000_000_000}`);
  for (let said = recv().text(); said !== null; said = recv().text()) send("got " + said);
  send("end " + describe(recv().tryBytes().errno));
  return 0;
}

function ticketsPart(): i32 {
  const slow = sleep(60_000);
  const fast = sleep(5);
  send(`poll ${slow.poll()}`);
  send(`timeout ${waitAny<Ticket>([slow], 1)}`);
  send(`any ${waitAny<Ticket>([slow, fast])} ${fast.done} ${describe(fast.tryFinish().errno)}`);
  slow.cancel();
  send("cancelled " + describe(slow.tryFinish().errno));
  const many: Ticket[] = [];
  for (let i = 0; i < 20; i++) many.push(sleep(i % 4));
  waitAll(many);
  let done = 0;
  for (let i = 0; i < 20; i++) done += many[i].done ? 1 : 0;
  send(`all ${done}`);
  send("never " + sleep(-1).tryFinish().reason);
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
  send(`${tasks[0].trace} ${tasks[1].trace} ${tasks[2].trace}`);
  return 0;
}

function modelPart(): i32 {
  const info = modelInfo();
  const eos = info.eos.join(",");
  send(`${info.vocabSize} ${info.maxContext} ${info.pageSize} [${eos}] ${info.name.length > 0}`);
  const tokens = tokenize("def é😀(x):");
  send(detokenize(tokens));
  send(`empty ${tokenize("").length} "${detokenize([])}"`);
  const chat = new Chat().add("user", "hello").tokens();
  send(`chat ${chat.length > tokenize("hello").length}`);
  return 0;
}

function filesPart(): i32 {
  const file = KvFile.create();
  const tokens: u32[] = [];
  for (let i: u32 = 0; i < 40; i++) tokens.push(i + 1);
  file.prefill(tokens);
  const fork = file.fork();
  const cut = file.extract([0, 3, 30, 35]);
  cut.append(file, 10, 12);
  fork.truncate(4);
  send(`lengths ${file.length()} ${fork.length()} ${cut.length()}`);
  send("tokens " + cut.tokens(0, 10).join(","));
  file.save("tour/a", SaveFlags.REPLACE);
  send("again " + file.trySave("tour/a").reason);
  fork.save("tour/b");
  const listed = KvFile.list("tour/");
  for (let i = 0; i < listed.length; i++) send(`named ${listed[i].path} ${listed[i].length}`);
  const view = KvFile.open("tour/a", Rights.READ | Rights.APPEND);
  const stat = view.stat();
  send(`stat ${stat.length} ${stat.pages} ${stat.rights} ${stat.tier.length > 0}`);
  send("rights " + view.tryTruncate(1).reason);
  KvFile.remove("tour/a");
  KvFile.remove("tour/b");
  send("gone " + KvFile.tryOpen("tour/a").reason);
  send("gone " + KvFile.tryRemove("tour/a").reason);
  send(`still ${view.length()}`);
  send(`unknown ${KvFile.matching(tokens) === null}`);
  send(`offered ${file.offer()} ${cut.tryOffer().errno == Errno.EINVAL}`);
  const known = KvFile.matching(tokens)!;
  send(`matched ${known.length()} ${known.tokens(30, 2).join(",")}`);
  view.close();
  send("closed " + view.tryClose().reason);
  return 0;
}

function predsPart(): i32 {
  const tokens = tokenize("def add(a, b):");
  const n = tokens.length;
  const file = KvFile.create();
  const every = file.pred(tokens, new PredOptions().atAll()).choices();
  const best = every[n - 1];
  send(`all ${every.length == n} ${best.logprob < 0}`);

  const top = file.fork().decode(best.token, new PredOptions().top(3)).choices();
  send(`top ${top.length} ${top[0].logprob >= top[1].logprob && top[1].logprob >= top[2].logprob}`);
  const scored = chosen(file, best.token, { logprobs: 3 });
  send(`told ${scored.token == top[0].token} ${scored.best.length} ${scored.best[2].token == top[2].token}`);
  const streamed = file.fork().stream([best.token], { maxTokens: 2, logprobs: 2 }).rest();
  send(`streamed ${streamed.length} ${streamed[0].best[1].token == top[1].token}`);
  const plain = file.fork().decode(best.token).choice();
  send(`argmax ${plain.token == top[0].token}`);
  const those = new PredOptions().of([top[2].token, top[0].token]);
  const scores = file.fork().decode(best.token, those).scores();
  send(`of ${scores.length} ${near(scores[0], top[2].logprob)} ${near(scores[1], top[0].logprob)}`);
  const logits = file.fork().decode(best.token, new PredOptions().logits()).scores();
  send(`logits ${logits.length == modelInfo().vocabSize}`);
  const bias: TokenBias[] = [{ token: 5, bias: 1000 }, { token: 6, bias: -1000 }];
  send(`bias ${chosen(file, best.token, { logitBias: bias }).token}`);
  const mask: BiasMask = { tokens: TokenSet.of([11]), bias: 1000 };
  send(`bias mask ${chosen(file, best.token, { biasMask: mask }).token}`);
  const seen: RepetitionPenalty = { tokens: TokenSet.of([top[0].token]), penalty: 1000 };
  const penalized = chosen(file, best.token, { repetitionPenalty: seen }).token;
  const generated = file.fork().stream([best.token], { maxTokens: 1, repetitionPenalty: seen }).rest();
  send(`penalty ${penalized != top[0].token} ${generated[0].token == penalized}`);
  const hidden = new PredOptions().atAll().dropped().hidden();
  send(`hidden ${file.fork().pred(tokens, hidden).scores().length == n * modelInfo().hiddenSize}`);
  const allowed = TokenSet.of([9, 17]);
  const one = chosen(file, best.token, { allowedTokens: allowed }).token;
  send(`allow ${one == 9 || one == 17} ${allowed.contains(17)} ${allowed.contains(18)}`);
  const limits = new PredOptions().top(2).limits({ allowedTokens: allowed });
  const both = file.fork().decode(best.token, limits).choices();
  send(`limits ${both[0].token + both[1].token}`);
  file.decode(best.token, new PredOptions().dropped()).choice();
  send(`dropped ${file.length() == n}`);
  const tree = new PredOptions().at([2, 0]).parents([-1, 0, 0]);
  send(`tree ${file.fork().pred([best.token, 5, 6], tree).choices().length}`);
  const places = [n as u32, (n + 1) as u32];
  send(`placed ${file.fork().pred([1, 2], null, places).tryChoice().ok}`);
  const now = file.fork().predBlocking([best.token, 5], new PredOptions().atAll()).choices();
  const same = now[0].token == top[0].token && near(now[0].logprob, top[0].logprob);
  send(`now ${now.length} ${same} ${file.fork().decodeBlocking(best.token).done}`);
  send("never " + KvFile.create().predBlocking([1], new PredOptions().at([3])).tryChoice().reason);
  send("nothing " + file.fork().prefill([1]).tryChoice().reason);
  send("no tokens " + file.fork().pred([]).tryChoice().reason);
  const long = new Array<u32>(modelInfo().maxContext + 1);
  send("too long " + file.fork().prefill(long).tryFinish().reason);
  return 0;
}

function chosen(file: KvFile, token: u32, sampling: Sampling): Choice {
  return file.fork().decode(token, new PredOptions().sample(sampling)).choice();
}

function near(left: f32, right: f32): bool {
  return abs(left - right) < 1e-3;
}

function samplingPart(): i32 {
  const prompt = tokenize("import ");
  for (let seed = 1; seed < 3; seed++) {
    const sampling: Sampling = {
      maxTokens: 8, temperature: 1.5, seed, topK: 50, topP: 0.95, minP: 0.001,
    };
    const first = KvFile.create().generate(prompt, sampling);
    const second = KvFile.create().generate(prompt, sampling);
    runTasks([first, second]);
    send(`same ${first.tokens.join() == second.tokens.join()} ${first.tokens.length}`);
  }
  return 0;
}

function generationPart(): i32 {
  const prompt = tokenize("def read(path):\n    ");
  const whole = KvFile.create().generate(prompt, { maxTokens: 12 });
  const text = whole.text();
  send(`whole ${whole.tokens.length} ${whole.finish == Finish.LENGTH} ${whole.logprob < 0}`);
  send(`kept ${whole.file.length() == prompt.length + 11}`);

  const pieces = KvFile.create().generate(prompt, { maxTokens: 12 });
  let joined = "";
  for (let piece = pieces.next(); piece !== null; piece = pieces.next()) joined += piece;
  send(`pieces ${joined == text} ${joined == detokenize(whole.tokens)}`);

  const stopped = KvFile.create().generate(prompt, { maxTokens: 12, stopTokenIds: [whole.tokens[3]] });
  stopped.text();
  send(`token ${stopped.tokens.length <= 3} ${stopped.finish == Finish.STOP}`);

  const middle = text.substr(text.length / 2, 2);
  const sampling: Sampling = { maxTokens: 12, stop: [middle, "never to be seen"] };
  const cut = KvFile.create().generate(prompt, sampling);
  joined = "";
  for (let piece = cut.next(); piece !== null; piece = cut.next()) joined += piece;
  const expected = text.substring(0, text.indexOf(middle));
  send(`text ${joined == expected} ${cut.text() == expected} ${cut.finish == Finish.STOP}`);
  sampling.exact = true;
  send(`exact ${KvFile.create().generate(prompt, sampling).text() == text}`);
  const unbounded = KvFile.create().generate(prompt, { stop: [middle] });
  send(`unbounded ${unbounded.text() == expected} ${unbounded.file.length() < 40}`);
  send(`no token "${KvFile.create().generate(prompt, { maxTokens: 0 }).text()}"`);

  send("empty " + KvFile.create().generate([]).tryText().reason);
  return 0;
}

function streamsPart(): i32 {
  const prompt = tokenize("def read(path):\n    ");
  const sampling: Sampling = { maxTokens: 10, temperature: 1.5, seed: 3, lookahead: 2 };
  const options = new PredOptions().sample(sampling);
  const file = KvFile.create();
  const whole = file.stream(prompt, sampling);
  send("busy " + file.tryLength().reason);
  const tokens = whole.rest();
  let same = true;
  const looped = KvFile.create();
  let next = looped.pred(prompt, options).choice();
  for (let i = 0; i < tokens.length; i++) {
    same = same && next.token == tokens[i].token && near(next.logprob, tokens[i].logprob);
    next = looped.decodeBlocking(next.token, options).choice();
  }
  send(`whole ${same} ${tokens.length} ${whole.errno} ${whole.done} ${whole.next() === null}`);
  send(`kept ${file.length() == prompt.length + 9}`);

  sampling.stopTokenIds = [5, tokens[4].token];
  send(`stopped ${KvFile.create().stream(prompt, sampling).rest().length <= 5}`);

  const streams: TokenStream[] = [];
  for (let i = 0; i < 3; i++) streams.push(KvFile.create().stream(prompt, { maxTokens: 4 + i, chunk: 3 }));
  let count = 0;
  while (streams.length) {
    const index = waitAny(streams);
    const many = streams[index].nextMany();
    count += many.length;
    if (!many.length) streams.splice(index, 1);
  }
  send(`together ${count}`);

  const cut = KvFile.create();
  const dropped = cut.stream(prompt, { lookahead: 3 });
  dropped.next();
  dropped.cancel();
  const length = cut.length();
  send(`cancelled ${length >= prompt.length && length <= prompt.length + 5} ${describe(dropped.errno)}`);
  cut.truncate(prompt.length);
  send("none " + cut.stream([], { maxTokens: 3 }).tryFinish().reason);
  send("bad " + cut.stream([1], { logprobs: 21 }).tryFinish().reason);

  const long: u32[] = [];
  for (let i: u32 = 0; i < 40; i++) long.push(i + 1);
  const first = KvFile.create();
  first.pred(long, new PredOptions().shared()).choice();
  const second = KvFile.create();
  second.stream(long, { maxTokens: 2, share: true }).rest();
  send(`shared ${first.stat().cached} ${second.stat().cached}`);
  return 0;
}

/** A child: says its input and the length of the file that it was granted, and appends to it. */
export function child(): i32 {
  const file = KvFile.granted("notes");
  send(`${inputText()} ${file.length()} ${file.tryTruncate(0).errno == Errno.EACCES}`);
  return file.decode(7).tryFinish().ok ? 5 : 6;
}

function sessionsPart(): i32 {
  const session = new Session("def add(a, b):");
  session.prefill();
  send(`settled ${session.tokens.length} ${session.file.length()} ${session.usage.prefilled}`);
  const alone = session.fork();
  const said = alone.reply({ maxTokens: 6 }).text();
  send(`reply ${said.length > 0} ${alone.tokens.length} ${alone.file.length()}`);

  // Branches in one batch say what they say alone, and share what is computed.
  const drawn: Sampling = { maxTokens: 6, temperature: 1, seed: 3 };
  const replies: Reply[] = [];
  const branches = session.fanOut(3);
  for (let i = 0; i < 3; i++) {
    replies.push(branches[i].reply(i ? drawn.branch(i) : { maxTokens: 6 }));
  }
  runTasks(replies);
  const other = session.fork().reply(drawn.branch(2)).text();
  const three = [replies[0].text(), replies[1].text(), replies[2].text()];
  send(`branches ${three[0] == said} ${three[2] == other} ${three[1] != other}`);
  send(`used ${session.usage.prefilled} ${session.usage.generated}`);

  // What was replied is part of the text: what follows is as if it had been appended.
  alone.append("!");
  const again = new Session("def add(a, b):");
  again.appendTokens(replies[0].tokens);
  again.append("!");
  send(`on ${alone.reply({ maxTokens: 4 }).text() == again.reply({ maxTokens: 4 }).text()}`);

  // A text to stop at is cut off, of the tokens, too, and what is rewritten keeps its beginning.
  const stop = session.fork();
  const cut = stop.reply({ maxTokens: 6, stop: [said.charAt(3)] }).text();
  const held = detokenize(stop.tokens) == "def add(a, b):" + cut;
  send(`stopped ${said.startsWith(cut) && cut.length <= 3} ${held}`);
  const known = stop.rewrite(tokenize("def add(a, c):"));
  send(`rewritten ${known} ${stop.file.length()} ${stop.reply({ maxTokens: 2 }).text().length > 0}`);
  const copy = Session.of(again.file.fork());
  send(`of ${copy.tokens.length == again.file.length()}`);

  // A reply that nothing reads is there all the same once the session is used again.
  const unread = session.fork();
  unread.reply({ maxTokens: 6 });
  send(`unread ${detokenize(unread.tokens) == "def add(a, b):" + said}`);
  unread.flush();
  send(`flushed ${unread.file.length() == unread.tokens.length}`);
  send("empty " + new Session().reply({ maxTokens: 1 }).tryText().reason);
  return 0;
}

function chatsPart(): i32 {
  const talk = Session.chat("Be brief.").user("hello");
  const first = talk.reply({ maxTokens: 5 });
  let pieces = "";
  for (let piece = first.next(); piece !== null; piece = first.next()) pieces += piece;
  const asked = new Chat().add("system", "Be brief.").add("user", "hello");
  const prompt = asked.tokens().length;
  send(`first ${pieces == first.text()} ${talk.usage.prefilled == prompt} ${talk.usage.generated}`);
  const other = talk.fork().user("and more");
  const second = talk.user("and more").reply({ maxTokens: 5 }).text();
  const whole = asked.add("assistant", first.text()).add("user", "and more").tokens();
  send(`kept ${talk.usage.prefilled > prompt} ${talk.usage.prefilled <= whole.length}`);
  const same = KvFile.create().generate(whole, { maxTokens: 5 }).text();
  send(`second ${second == same} ${other.reply({ maxTokens: 5 }).text() == same}`);
  return 0;
}

/** As many replies as branches, each longer than the one before; the last ones are stopped. */
function completedPart(): i32 {
  const prefix = new Session("def add(a, b):");
  const branches = prefix.fanOut(6);
  const replies: Reply[] = [];
  for (let i = 0; i < 6; i++) replies.push(branches[i].reply({ maxTokens: 3 + 400 * i, lookahead: 2 }));
  const completed = asCompleted(replies);
  const first = completed.next()!;
  send(`first ${first == replies[0]} ${first.tokens.length}`);
  const second = completed.next()!;
  send(`second ${second == replies[1]} ${second.tokens.length}`);
  completed.stop();
  send(`rest ${completed.next() === null} ${replies[5].finish == Finish.CANCELLED}`);
  let held = 0;
  for (let i = 0; i < 6; i++) held += branches[i].tokens.length;
  const usage = prefix.usage;
  send(`text ${detokenize(branches[5].tokens) == "def add(a, b):" + replies[5].text()}`);
  send(`held ${held - 6 * prefix.tokens.length <= usage.generated}`);
  // A branch that was stopped can be used like any other.
  send(`after ${branches[5].reply({ maxTokens: 2 }).text().length > 0}`);
  send(`${usage.prefilled + usage.generated}`);
  return 0;
}

function childrenPart(): i32 {
  const file = KvFile.create();
  file.prefill([1, 2, 3]);
  const plan = new Child();
  plan.entry = "child";
  plan.input = String.UTF8.encode("hällo");
  const spawned = plan.grant(file, Rights.READ | Rights.APPEND, "notes").spawn();
  const pid = spawned.pid();
  const ended = join(pid).ended();
  send(`child ${pid > 0} ${ended.code} ${ended.text}`);
  send(`file ${file.length()}`);
  send("granted " + KvFile.tryGranted("notes").reason);
  send(`again ${join(pid).tryEnded().errno == Errno.ENOENT}`);
  return 0;
}

function channelsPart(): i32 {
  const channel = new Channel("tour");
  const first = channel.recv();
  channel.send("one");
  channel.send("zwölf");
  send(`${first.text()} ${channel.recv().text()}`);
  return 0;
}

function errorsPart(): i32 {
  const none = KvFile.tryOpen("no/such");
  send(`${none.ok} ${none.reason}`);
  send(`or ${tryTokenize("x").or([]).length > 0}`);
  send("foreign " + new KvFile(0x7fff0001).tryLength().reason);
  send("name " + KvFile.create().trySave("").reason);
  send("odd " + KvFile.create().tryExtract([1]).reason);
  send("past " + KvFile.create().pred([1], new PredOptions().at([3])).tryChoice().reason);
  return 0;
}

/** Thousands of tickets, results and strings: the collector must keep up. */
function longPart(): i32 {
  const generation = KvFile.create().generate(tokenize("x"), { maxTokens: 3000 });
  let bytes = 0;
  for (let piece = generation.next(); piece !== null; piece = generation.next()) bytes += piece.length;
  send(`long ${generation.tokens.length} ${bytes == generation.text().length}`);
  return 0;
}
