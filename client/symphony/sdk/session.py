"""A text or a chat that grows: a KV file, its tokens, what is added and what the model replies."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass
from itertools import takewhile
from types import TracebackType
from typing import Any, TypeVar

from symphony.attached.errors import EINVAL
from symphony.attached.run import AttachedRun, current
from symphony.sdk.kv import KvFile
from symphony.sdk.model import detokenize_in, tokenize_in
from symphony.sdk.prompt import Turns
from symphony.sdk.sampling import Sampling
from symphony.sdk.score import score_answers
from symphony.sdk.stream import Finish

T = TypeVar("T")
_CHUNK = 1024  # tokens that the server may be ahead of a reply that is read as a whole


@dataclass
class Usage:
    """How many tokens a session and its branches had computed."""

    prefilled: int = 0  # that the program gave: prompts, and what was scored
    generated: int = 0  # that the model chose


@dataclass(frozen=True, slots=True)
class Reply:
    """What the model said."""

    text: str  # without what ended it
    tokens: list[int]  # what the session holds of the reply
    logprob: float  # of all that the model chose
    finish: Finish


class Session:
    """A text or a chat that grows at the end of a KV file: the program adds, the model replies.

    What is added is computed with the reply that follows it. A fork shares what is computed; forks
    and their origin count into one `Usage`. A session is one task's: branches are forks.
    """

    def __init__(self, text: str = "", *, kv: KvFile | None = None) -> None:
        """Begin a text in a new file, or in `kv`, which is empty."""
        self._run: AttachedRun = current() if kv is None else kv.run
        self.kv = kv or KvFile.create()
        self._tokens: list[int] = []
        self._added: list[str] = [text] if text else []  # after the tokens, not tokenized yet
        self._computed = 0  # so many of the tokens are in the file
        self._turns: Turns | None = None
        self._answer: int | None = None  # where the assistant's part begins in the tokens
        self.usage = Usage()

    @classmethod
    def chat(cls, system: str = "") -> "Session":
        """Begin a chat: its turns go through the model's chat template."""
        session = cls()
        session._turns = Turns().system(system) if system else Turns()
        return session

    @classmethod
    async def of(cls, kv: KvFile) -> "Session":
        """Continue after a file that is there, such as one opened by name."""
        session = cls(kv=kv)
        session._tokens = await kv.tokens(0, await kv.len())
        session._computed = len(session._tokens)
        return session

    @classmethod
    async def copy(cls, kv: KvFile) -> "Session":
        """Continue after a copy of a file, which needs no right but to read it."""
        copy = KvFile.create()
        await copy.append(kv, 0, await kv.len())
        return await cls.of(copy)

    async def tokens(self) -> list[int]:
        """Return the tokens of the whole text; of a chat, as it was rendered last."""
        await self._tokenize()
        return list(self._tokens)

    def close(self) -> None:
        """Close the file."""
        self.kv.close()

    async def __aenter__(self) -> "Session":
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    # -- What the program adds -----------------------------------------------------------------
    def append(self, text: str) -> None:
        """Add to the text; in a chat, to the beginning of the assistant's answer."""
        if text:
            self._added.append(text)

    async def append_tokens(self, tokens: Sequence[int]) -> None:
        """Add tokens to the text."""
        await self.render()
        self._tokens.extend(tokens)

    async def user(self, text: str) -> None:
        """Add the user's turn to a chat; EINVAL: the session has a text of its own."""
        await self.turn("user", text)

    async def turn(self, role: str, text: str) -> None:
        """Add a turn of any role to a chat, such as "tool"."""
        (await self.turns()).turn(role, text)

    async def turns(self) -> Turns:
        """Return the turns of a chat, the model's replies with them, to read or to change."""
        if self._turns is None and not self._tokens and not self._added:
            self._turns = Turns()
        if self._turns is None:
            raise EINVAL("chat", "the session is a plain text")
        if self._added:
            await self.render()  # what was appended belongs to the answer before
        if self._answer is not None:
            begin, self._answer = self._answer, None
            if answer := self._tokens[begin:]:
                said = await detokenize_in(self._run, answer)
                self._turns.assistant(said.decode(errors="replace"))
        return self._turns

    async def render(self) -> int:
        """Render a chat's turns now, as the next reply would.

        Return how many of the tokens are computed already.
        """
        if self._turns is not None and self._answer is None:
            tokens = await self._turns.tokens_in(self._run)
            known = await self._replace(tokens)
            self._answer = len(tokens)
            await self._tokenize()
            return known
        await self._tokenize()
        return self._computed

    async def rewrite(self, tokens: Sequence[int]) -> int:
        """Make the text these tokens, and the session one of a plain text.

        What both begin with is not computed again; return how many tokens that are.
        """
        self._turns = None
        self._added.clear()
        return await self._replace(list(tokens))

    async def _tokenize(self) -> None:
        if self._added and (self._turns is None or self._answer is not None):
            added, self._added = self._added, []
            for tokens in await asyncio.gather(*(tokenize_in(self._run, each) for each in added)):
                self._tokens += tokens

    async def _replace(self, tokens: list[int]) -> int:
        pairs = zip(self._tokens[: self._computed], tokens, strict=False)
        common = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
        known = min(common, max(len(tokens) - 1, 0))  # a pass needs a token to look at
        self._cut(known)
        self._tokens = list(tokens)
        return known

    def _cut(self, computed: int) -> None:
        if computed < self._computed:
            self.kv.truncate(computed)
            self._computed = computed

    # -- What the model replies ----------------------------------------------------------------
    async def reply(self, sampling: Sampling | None = None) -> Reply:
        """Let the model continue. A text without any token is EINVAL."""
        sampling = sampling or Sampling()
        if sampling.stop_texts:
            return await self.stream(sampling, lambda _: None)
        ends = sampling.stop_tokens(self._run.facts.info.eos)
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
        text = (await detokenize_in(self._run, said)).decode(errors="replace")
        finish = Finish(token=tokens[-1]) if ended else Finish()
        return await self._replied(tokens, text, finish, sum(each.logprob for each in chosen))

    async def stream(
        self, sampling: Sampling, each: Callable[[str], Awaitable[None] | None]
    ) -> Reply:
        """Let the model continue; `each` gets the text in pieces, as they come."""
        pending = await self._pending()
        generation = self.kv.generate(pending, sampling)
        text = ""
        try:
            async for piece in generation:
                if (waits := each(piece)) is not None:
                    await waits
                text += piece
        except BaseException:
            generation.cancel()
            self._take_back()
            raise
        finish = generation.finish or Finish()
        return await self._replied(generation.tokens, text, finish, generation.logprob)

    def _take_back(self) -> None:
        """Roll the file back to the text that the session had before work that was dropped."""
        self.kv.truncate(self._computed).add_done_callback(_seen)

    async def _pending(self) -> list[int]:
        """Return the tokens that the next pass begins with: at least one."""
        await self.render()
        if not self._tokens:
            raise EINVAL("generate", "no tokens")
        self._cut(len(self._tokens) - 1)
        return self._tokens[self._computed :]

    async def _replied(self, chosen: list[int], text: str, finish: Finish, logprob: float) -> Reply:
        """Note that the file has all that was pending and chosen, without the last."""
        begin = len(self._tokens)
        if chosen:
            self._count(begin - self._computed, len(chosen))
            self._tokens += chosen[:-1]
            self._computed = len(self._tokens)
            if finish.length:
                self._tokens.append(chosen[-1])
            elif finish.text is not None:
                await self._end_with(begin, text)
        return Reply(text, self._tokens[begin:], logprob, finish)

    async def _end_with(self, begin: int, text: str) -> None:
        """Cut the tokens from `begin` on to those of `text`, whose end may be inside of one."""
        end = len(self._tokens)
        while True:
            said = await detokenize_in(self._run, self._tokens[begin:end])
            if text.startswith(decoded := said.decode(errors="replace")):
                break
            end -= 1
        del self._tokens[end:]
        self._cut(end)
        self._tokens += await tokenize_in(self._run, text[len(decoded) :])

    def _count(self, prefilled: int, generated: int) -> None:
        self.usage.prefilled += prefilled
        self.usage.generated += generated

    # -- Branches ------------------------------------------------------------------------------
    async def prefill(self) -> None:
        """Compute what was added, up to the last token: a reply or a branch begins with it."""
        await self._compute(1)

    async def flush(self) -> None:
        """Compute all that was added, so that the file holds the whole text."""
        await self._compute(0)

    async def _compute(self, without: int) -> None:
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

    def fork(self) -> "Session":
        """Make a session of its own with the same text; it shares what is computed."""
        fork = Session(kv=self.kv.fork())
        fork._tokens, fork._added = list(self._tokens), list(self._added)
        fork._computed, fork._answer = self._computed, self._answer
        fork._turns = self._turns and self._turns.copy()
        fork.usage = self.usage
        return fork

    async def fan_out(
        self, count: int, branch: Callable[[int, "Session"], Coroutine[Any, Any, T]]
    ) -> list[T]:
        """Fork the session and run `branch` on each fork, with its number, side by side.

        The results are in that order. The first error stops the other branches.
        """
        await self.prefill()
        works = [asyncio.ensure_future(branch(i, self.fork())) for i in range(count)]
        try:
            return list(await asyncio.gather(*works))
        except BaseException:
            for work in works:
                work.cancel()
            await asyncio.gather(*works, return_exceptions=True)
            raise

    async def fan_out_as_completed(
        self, count: int, branch: Callable[[int, "Session"], Coroutine[Any, Any, T]]
    ) -> AsyncIterator[tuple[int, T]]:
        """Do the same, and yield each branch's number and result as it ends.

        Leaving the loop stops the branches that are left.
        """
        await self.prefill()

        async def numbered(i: int) -> tuple[int, T]:
            return i, await branch(i, self.fork())

        left = {asyncio.ensure_future(numbered(i)) for i in range(count)}
        try:
            while left:
                done, left = await asyncio.wait(left, return_when=asyncio.FIRST_COMPLETED)
                for work in sorted(done, key=id):
                    yield work.result()
        finally:
            for work in left:
                work.cancel()
            await asyncio.gather(*left, return_exceptions=True)

    async def merge(self, branches: Sequence["Session"]) -> "Session":
        """Return one session of several branches of this one: this text, then what each has added.

        Each branch's part has seen this text and itself; what is added next sees all of them.
        """
        await asyncio.gather(*(branch.flush() for branch in branches))
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
    async def score(self, question: str, answers: Sequence[str]) -> list[float]:
        """Return the log-probability of each answer after this text and `question`.

        The text stays as it is, and one pass answers for all of them where they are short.
        """
        await self.prefill()
        asked, *answered = await asyncio.gather(
            *(tokenize_in(self._run, text) for text in (question, *answers))
        )
        begin = [*await self._pending(), *asked]
        scores, computed = await score_answers(self.kv, begin, answered)
        self._count(computed, 0)
        return scores

    async def log_odds(self, question: str, good: str, bad: str) -> float:
        """Return how much likelier the model finds one answer than another: a difference."""
        likely, unlikely = await self.score(question, [good, bad])
        return likely - unlikely


def _seen(ticket: "asyncio.Future[None]") -> None:
    """Take a ticket's error: the file's next call would have it, too."""
    if not ticket.cancelled():
        ticket.exception()
