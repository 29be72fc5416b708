"""A text or a chat that grows: a KV file, its tokens, what is added and what the model replies."""

import _lip
import asyncio

from symphony.errors import EINVAL
from symphony.kv import KvFile
from symphony.model import known
from symphony.packing import Record
from symphony.prompt import Turns
from symphony.sampling import Sampling
from symphony.score import score_answers
from symphony.stream import decode, finish

_CHUNK = 1024  # tokens that the server may be ahead of a reply that is read as a whole


class Usage(Record):
    """How many tokens a session and its branches had computed."""

    def __init__(self):
        super().__init__(prefilled=0, generated=0)


class Reply(Record):
    """What the model said: `text`, `tokens`, `logprob` and `finish`."""


class Session:
    """A text or a chat that grows at the end of a KV file: the program adds, the model replies.

    What is added is computed with the reply that follows it. A fork shares what is computed; forks
    and their origin count into one `Usage`. A session is one task's: branches are forks.
    """

    def __init__(self, text="", *, kv=None):
        """Begin a text in a new file, or in `kv`, which is empty."""
        self.kv = kv or KvFile.create()
        self._tokens = []
        self._added = [text] if text else []  # after the tokens, not tokenized yet
        self._computed = 0  # so many of the tokens are in the file
        self._turns = None
        self._answer = None  # where the assistant's part begins in the tokens
        self.usage = Usage()

    @classmethod
    def chat(cls, system=""):
        """Begin a chat: its turns go through the model's chat template."""
        session = cls()
        session._turns = Turns().system(system) if system else Turns()
        return session

    @classmethod
    async def of(cls, kv):
        """Continue after a file that is there, such as one opened by name."""
        session = cls(kv=kv)
        session._tokens = await kv.tokens(0, await kv.len())
        session._computed = len(session._tokens)
        return session

    @classmethod
    async def copy(cls, kv):
        """Continue after a copy of a file, which needs no right but to read it."""
        copy = KvFile.create()
        await copy.append(kv, 0, await kv.len())
        return await cls.of(copy)

    async def tokens(self):
        """Return the tokens of the whole text; of a chat, as it was rendered last."""
        self._tokenize()
        return list(self._tokens)

    def close(self):
        """Close the file."""
        self.kv.close()

    async def __aenter__(self):
        return self

    async def __aexit__(self, kind, error, traceback):
        self.close()

    # -- What the program adds -----------------------------------------------------------------
    def append(self, text):
        """Add to the text; in a chat, to the beginning of the assistant's answer."""
        if text:
            self._added.append(text)

    async def append_tokens(self, tokens):
        """Add tokens to the text."""
        await self.render()
        self._tokens.extend(tokens)

    async def user(self, text):
        """Add the user's turn to a chat; EINVAL: the session has a text of its own."""
        await self.turn("user", text)

    async def turn(self, role, text):
        """Add a turn of any role to a chat, such as "tool"."""
        (await self.turns()).turn(role, text)

    async def turns(self):
        """Return the turns of a chat, the model's replies with them, to read or to change."""
        if self._turns is None and not self._tokens and not self._added:
            self._turns = Turns()
        if self._turns is None:
            raise EINVAL("chat", "the session is a plain text")
        self._tokenize()
        if self._answer is not None:
            begin, self._answer = self._answer, None
            answer = self._tokens[begin:]
            if answer:
                self._turns.assistant(decode(_lip.detokenize(answer)))
        return self._turns

    async def render(self):
        """Render a chat's turns now, as the next reply would.

        Return how many of the tokens are computed already.
        """
        if self._turns is not None and self._answer is None:
            tokens = await self._turns.tokens()
            computed = self._replace(tokens)
            self._answer = len(tokens)
            self._tokenize()
            return computed
        self._tokenize()
        return self._computed

    async def rewrite(self, tokens):
        """Make the text these tokens, and the session one of a plain text.

        What both begin with is not computed again; return how many tokens that are.
        """
        self._turns = None
        self._added.clear()
        return self._replace(list(tokens))

    def _tokenize(self):
        if self._added and (self._turns is None or self._answer is not None):
            added, self._added = self._added, []
            for text in added:
                self._tokens += _lip.tokenize(text)

    def _replace(self, tokens):
        common = 0
        for held, wanted in zip(self._tokens[: self._computed], tokens):
            if held != wanted:
                break
            common += 1
        computed = min(common, max(len(tokens) - 1, 0))  # a pass needs a token to look at
        self._cut(computed)
        self._tokens = list(tokens)
        return computed

    def _cut(self, computed):
        if computed < self._computed:
            _lip.kv_truncate(self.kv.number, computed)
            self._computed = computed

    # -- What the model replies ----------------------------------------------------------------
    async def reply(self, sampling=None):
        """Let the model continue. A text without any token is EINVAL."""
        sampling = sampling or Sampling()
        if sampling.stop_texts:
            return await self.stream(sampling, lambda _: None)
        ends = sampling.stop_tokens(known().eos)
        pending = await self._pending()
        most = sampling.max_tokens
        chunk = _CHUNK if most is None else min(max(most, 1), _CHUNK)
        stream = self.kv.stream(pending, sampling.chunked(chunk))
        try:
            chosen = await stream.rest()
        except BaseException:
            self._take_back()
            raise
        tokens = [each.token for each in chosen]
        ended = bool(tokens) and tokens[-1] in ends
        said = tokens[:-1] if ended else tokens
        text = decode(_lip.detokenize(said))
        why = finish(token=tokens[-1]) if ended else finish()
        logprob = sum([each.logprob for each in chosen], 0.0)
        return self._replied(tokens, text, why, logprob)

    async def stream(self, sampling, each):
        """Let the model continue; `each` gets the text in pieces, as they come."""
        pending = await self._pending()
        generation = self.kv.generate(pending, sampling)
        text = ""
        try:
            while True:
                piece = await generation.next()
                if piece is None:
                    break
                waits = each(piece)
                if waits is not None:
                    await waits
                text += piece
        except BaseException:
            generation.cancel()
            self._take_back()
            raise
        why = generation.finish or finish()
        return self._replied(generation.tokens, text, why, generation.logprob)

    def _take_back(self):
        """Roll the file back to the text that the session had before work that was dropped."""
        try:
            _lip.kv_truncate(self.kv.number, self._computed)
        except Exception:
            pass  # the file's next call has the error, too

    async def _pending(self):
        """Return the tokens that the next pass begins with: at least one."""
        await self.render()
        if not self._tokens:
            raise EINVAL("generate", "no tokens")
        self._cut(len(self._tokens) - 1)
        return self._tokens[self._computed :]

    def _replied(self, chosen, text, why, logprob):
        """Note that the file has all that was pending and chosen, without the last."""
        begin = len(self._tokens)
        if chosen:
            self._count(begin - self._computed, len(chosen))
            self._tokens += chosen[:-1]
            self._computed = len(self._tokens)
            if why.length:
                self._tokens.append(chosen[-1])
            elif why.text is not None:
                self._end_with(begin, text)
        return Reply(text=text, tokens=self._tokens[begin:], logprob=logprob, finish=why)

    def _end_with(self, begin, text):
        """Cut the tokens from `begin` on to those of `text`, whose end may be inside of one."""
        end = len(self._tokens)
        while True:
            said = decode(_lip.detokenize(self._tokens[begin:end]))
            if text.startswith(said):
                break
            end -= 1
        self._tokens = self._tokens[:end]
        self._cut(end)
        self._tokens += _lip.tokenize(text[len(said) :])

    def _count(self, prefilled, generated):
        self.usage.prefilled += prefilled
        self.usage.generated += generated

    # -- Branches ------------------------------------------------------------------------------
    async def prefill(self):
        """Compute what was added, up to the last token: what comes next begins with that one."""
        await self._compute(1)

    async def flush(self):
        """Compute what was added, all of it, so that the file holds the whole text."""
        await self._compute(0)

    async def _compute(self, without):
        await self.render()
        end = max(len(self._tokens) - without, 0)
        if self._computed < end:
            try:
                await self.kv.prefill(self._tokens[self._computed : end])
            except BaseException:
                self._take_back()
                raise
            self._count(end - self._computed, 0)
            self._computed = end

    def fork(self):
        """Make a session of its own with the same text; it shares what is computed."""
        fork = Session(kv=self.kv.fork())
        fork._tokens, fork._added = list(self._tokens), list(self._added)
        fork._computed, fork._answer = self._computed, self._answer
        fork._turns = self._turns and self._turns.copy()
        fork.usage = self.usage
        return fork

    async def fan_out(self, count, branch):
        """Fork the session and run `branch` on each fork, with its number, side by side.

        The results are in that order. The first error stops the other branches.
        """
        await self.prefill()
        works = [asyncio.create_task(branch(i, self.fork())) for i in range(count)]
        try:
            return await asyncio.gather(*works)
        except BaseException:
            for work in works:
                work.cancel()
            await asyncio.gather(*works, return_exceptions=True)
            raise

    async def fan_out_as_completed(self, count, branch):
        """Do the same, and return the awaitables of each number and result, as the branches end."""
        await self.prefill()

        async def numbered(i, fork):
            return i, await branch(i, fork)

        return asyncio.as_completed([numbered(i, self.fork()) for i in range(count)])

    async def merge(self, branches):
        """Return one session of several branches of this one: this text, then what each has added.

        Each branch's part has seen this text and itself; what is added next sees all of them.
        """
        await asyncio.gather(*[branch.flush() for branch in branches])
        if not branches:
            return self.fork()
        merged = branches[0].fork()
        merged._turns = merged._answer = None  # a plain text
        for branch in branches[1:]:
            begin, end = len(self._tokens), len(branch._tokens)
            await merged.kv.append(branch.kv, begin, end)
            merged._tokens += branch._tokens[begin:end]
        merged._computed = len(merged._tokens)
        return merged

    # -- Scores --------------------------------------------------------------------------------
    async def score(self, question, answers):
        """Return the log-probability of each answer after this text and `question`.

        The text stays as it is, and one pass answers for all of them where they are short.
        """
        await self.prefill()
        begin = await self._pending() + _lip.tokenize(question)
        answered = [_lip.tokenize(answer) for answer in answers]
        scores, computed = await score_answers(self.kv, begin, answered)
        self._count(computed, 0)
        return scores

    async def log_odds(self, question, good, bad):
        """Return how much likelier the model finds one answer than another: a difference."""
        likely, unlikely = await self.score(question, [good, bad])
        return likely - unlikely
