"""Run-ahead decoding: tokens, or text, that come as the server samples them.

Until a generation has ended or was cancelled, other calls on its file answer EBUSY. The token that
was chosen last is not in the file: it would be the next pass's.
"""

import codecs
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from symphony.attached.calls import Pieces
from symphony.attached.errors import EINVAL
from symphony.sdk.handle import Handle
from symphony.sdk.model import detokenize_in
from symphony.sdk.packing import Choice, Scored, options, scored, words
from symphony.sdk.sampling import Sampling


@dataclass(frozen=True, slots=True)
class Finish:
    """Why a text ended: by a token, at a text, or at the length that was wanted."""

    token: int | None = None
    text: str | None = None

    @property
    def length(self) -> bool:
        """Whether it has as many tokens as were wanted, or the context is full."""
        return self.token is None and self.text is None


class Stream:
    """Tokens that come as the server samples them; iterate over it with `async for`.

    Cancelling it ends the generation, and so does dropping it, as a `break` out of the loop does.
    The file then holds every token that was appended; `KvFile.truncate` rolls back the rest.
    """

    def __init__(self, kv: Handle, tokens: Sequence[int], sampling: Sampling) -> None:
        self._record = 8 * (1 + sampling.logprobs)  # bytes of a token and the best ones with it
        self._ready: deque[Scored] = deque()
        self._pieces: Pieces | None = None
        self._done = sampling.max_tokens == 0
        if not self._done:
            stop = sampling.stop_tokens(kv.run.facts.info.eos)
            opts = options(sampling.options(stop))
            arguments = {"kv": kv.number, "tokens": words(tokens), "opts": opts}
            self._pieces = kv.run.calls.start_pieces("generate", arguments)

    async def next(self) -> Choice | None:
        """Return one more token, None after the last."""
        found = await self.next_scored()
        return None if found is None else found.choice

    async def next_scored(self) -> Scored | None:
        """Return one more token with the best ones that `Sampling.logprobs` asked for."""
        if not self._ready:
            await self._fill()
        return self._ready.popleft() if self._ready else None

    async def next_many(self) -> list[Choice]:
        """Return all tokens that have come and were not taken, at least one; none at the end."""
        if not self._ready:
            await self._fill()
        taken = [found.choice for found in self._ready]
        self._ready.clear()
        return taken

    async def rest(self) -> list[Choice]:
        """Return all tokens that are still to come."""
        taken = list[Choice]()
        while more := await self.next_many():
            taken += more
        return taken

    def cancel(self) -> None:
        """End the generation now; nothing is appended behind this call."""
        self._done = True
        if self._pieces is not None:
            self._pieces.cancel()

    def __del__(self) -> None:
        pieces = getattr(self, "_pieces", None)
        if pieces is not None:
            pieces.drop()

    def __aiter__(self) -> "Stream":
        return self

    async def __anext__(self) -> Choice:
        found = await self.next()
        if found is None:
            raise StopAsyncIteration
        return found

    async def _fill(self) -> None:
        if self._done or self._pieces is None:
            return
        try:
            packed = await self._pieces.next()
        except BaseException:
            self.cancel()
            raise
        self._done = not packed
        size = self._record
        self._ready.extend(scored(packed[at : at + size]) for at in range(0, len(packed), size))


class Generation:
    """A text that grows token by token at the end of a KV file.

    Iterate over its pieces with `async for`, or await `text()`.
    """

    def __init__(self, kv: Handle, prompt: Sequence[int], sampling: Sampling) -> None:
        if not prompt:
            raise EINVAL("generate", "no tokens")
        self._kv, self._prompt, self._sampling = kv, prompt, sampling
        self._stream: Stream | None = None
        self._before: int | None = None  # entries of the file with the prompt, if they are needed
        self._ends = sampling.stop_tokens(kv.run.facts.info.eos)
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")
        self._held = ""  # text that may be the beginning of one to stop at
        self.tokens: list[int] = []  # so far, with the one that ended the text
        self.logprob = 0.0  # of these tokens, in all
        self.finish: Finish | None = None  # once it has ended

    async def next_token(self) -> Choice | None:
        """Return one more token, None after the last."""
        most = self._sampling.max_tokens
        if self.finish is None and most is not None and len(self.tokens) >= most:
            self.finish = Finish()
        if self.finish is not None:
            return None
        choice = await (self._stream or await self._start()).next()
        if choice is None:
            self.finish = Finish()  # the context is full
            return None
        self.tokens.append(choice.token)
        self.logprob += choice.logprob
        if choice.token in self._ends:
            self.finish = Finish(token=choice.token)
        return choice

    async def next(self) -> str | None:
        """Return the next piece of text, of whole characters and never empty; None at the end."""
        while True:
            choice = await self.next_token()
            if choice is None:
                rest, self._held = self._held + self._utf8.decode(b"", final=True), ""
                return rest or None
            if self.finish is None:
                self._held += self._utf8.decode(await detokenize_in(self._kv.run, [choice.token]))
            ready = self._release()
            if self.finish is not None and self.finish.text is not None:
                await self._roll_back()
            if ready:
                return ready

    async def text(self) -> str:
        """Return all the text that is still to come."""
        pieces = [piece async for piece in self]
        return "".join(pieces)

    def cancel(self) -> None:
        """End the generation now."""
        if self._stream is not None:
            self._stream.cancel()

    def __aiter__(self) -> "Generation":
        return self

    async def __anext__(self) -> str:
        piece = await self.next()
        if piece is None:
            raise StopAsyncIteration
        return piece

    async def _start(self) -> Stream:
        if self._sampling.stop_texts:  # the length must be known: then the file is busy
            self._before = await self._kv.len() + len(self._prompt)
        self._stream = Stream(self._kv, self._prompt, self._sampling)
        return self._stream

    async def _roll_back(self) -> None:
        """Take back what the server computed behind a text that has ended it."""
        assert self._before is not None
        self.cancel()
        await self._kv.truncate(self._before + len(self.tokens) - 1)

    def _release(self) -> str:
        """Return what of the held text is surely not part of one to stop at."""
        if self.finish is not None:
            return ""
        stops = self._sampling.stop_texts
        starts = [(at, stop) for stop in stops if (at := self._held.find(stop)) >= 0]
        if starts:
            start, stop = min(starts, key=lambda found: found[0])
            self.finish = Finish(text=stop)
            self._utf8.reset()
            self._held = self._held[:start]
            return ""
        kept = max((_overlap(self._held, stop) for stop in stops), default=0)
        cut = len(self._held) - kept
        ready, self._held = self._held[:cut], self._held[cut:]
        return ready


def _overlap(text: str, stop: str) -> int:
    """Return the length of the longest end of `text` that is a beginning of `stop`."""
    longest = min(len(text), len(stop))
    return next((n for n in range(longest, 0, -1) if text.endswith(stop[:n])), 0)
