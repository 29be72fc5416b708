"""Run-ahead decoding: tokens, or text, that come as the server samples them."""

import _lip
from asyncio import Ticket
from collections import namedtuple

from symphony.errors import EINVAL
from symphony.model import known
from symphony.packing import options, scored

_Finish = namedtuple("Finish", ("token", "text"))


class Finish(_Finish):
    """Why a text ended: by a token, at a text, or at the length that was wanted."""

    @property
    def length(self):
        """Whether it has as many tokens as were wanted, or the context is full."""
        return self.token is None and self.text is None


def finish(token=None, text=None):
    return Finish(token, text)


class Utf8:
    """Bytes that come in pieces, as text that never breaks a character."""

    def __init__(self):
        self._left = b""

    def decode(self, more, final=False):
        text, self._left = decode_part(self._left + more)
        if final and self._left:
            text, self._left = text + "\ufffd", b""
        return text


def decode(data):
    """Return the text of bytes; what is no UTF-8 becomes U+FFFD."""
    return Utf8().decode(data, True)


def decode_part(data):
    """Return the text of bytes, and the beginning of a character at their end."""
    try:
        return data.decode(), b""
    except UnicodeError:
        pass
    text, at = "", 0
    while at < len(data):
        size, there = _character(data, at)
        if size and there < size and at + there == len(data):
            return text, data[at:]
        if size and there == size:
            text += data[at : at + size].decode()
            at += size
        else:
            text += "\ufffd"
            at += max(there, 1)
    return text, b""


def _character(data, at):
    """Return how many bytes the character at `at` has, 0 for none, and how many are right."""
    first = data[at]
    if first < 0x80:
        return 1, 1
    low, high = 0x80, 0xBF
    if 0xC2 <= first <= 0xDF:
        size = 2
    elif 0xE0 <= first <= 0xEF:
        size = 3
        low = 0xA0 if first == 0xE0 else low
        high = 0x9F if first == 0xED else high
    elif 0xF0 <= first <= 0xF4:
        size = 4
        low = 0x90 if first == 0xF0 else low
        high = 0x8F if first == 0xF4 else high
    else:
        return 0, 0
    there = 1
    while there < size and at + there < len(data) and low <= data[at + there] <= high:
        there, low, high = there + 1, 0x80, 0xBF
    return size, there


class Stream:
    """Tokens that come as the server samples them; iterate over it with `async for`."""

    def __init__(self, kv, tokens, sampling):
        self._kv, self._tokens, self._sampling = kv, list(tokens), sampling
        self._record = 8 * (1 + sampling.logprobs)
        self._ready = []
        self._number = None
        self._done = sampling.max_tokens == 0

    async def start(self):
        """Start the generation now; the first token would do so."""
        self._start()

    def _start(self):
        if self._number is None and not self._done:
            stop = self._sampling.stop_tokens(known().eos)
            given = options(self._sampling.options(stop))
            self._number = _lip.generate(self._kv.number, self._tokens, given)

    async def next(self):
        """Return one more token, None after the last."""
        found = await self.next_scored()
        return None if found is None else found.choice

    async def next_scored(self):
        """Return one more token with the best ones that `Sampling.logprobs` asked for."""
        if not self._ready:
            await self._fill()
        return self._ready.pop(0) if self._ready else None

    async def next_many(self):
        """Return all tokens that have come and were not taken, at least one; none at the end."""
        if not self._ready:
            await self._fill()
        taken = [found.choice for found in self._ready]
        self._ready = []
        return taken

    async def rest(self):
        """Return all tokens that are still to come."""
        taken = []
        while True:
            more = await self.next_many()
            if not more:
                return taken
            taken += more

    def cancel(self):
        """End the generation now; nothing is appended behind this call."""
        if self._number is not None and not self._done:
            _lip.cancel(self._number)
        self._done = True

    def __aiter__(self):
        return self

    async def __anext__(self):
        found = await self.next()
        if found is None:
            raise StopAsyncIteration
        return found

    def __del__(self):
        self.cancel()

    async def _fill(self):
        if self._done:
            return
        self._start()
        try:
            packed = await Ticket("generate", self._number, None, True)
        except BaseException:
            self.cancel()
            raise
        self._done = not packed
        size = self._record
        self._ready += [scored(packed[at : at + size]) for at in range(0, len(packed), size)]


class Generation:
    """A text that grows token by token at the end of a KV file.

    Iterate over its pieces with `async for`, or await `text()`.
    """

    def __init__(self, kv, prompt, sampling):
        if not prompt:
            raise EINVAL("generate", "no tokens")
        self._kv, self._prompt, self._sampling = kv, prompt, sampling
        self._stream = Stream(kv, prompt, sampling)
        self._before = None
        self._ends = None
        self._utf8 = Utf8()
        self._held = ""  # text that may be the beginning of one to stop at
        self.tokens = []  # so far, with the one that ended the text
        self.logprob = 0.0  # of these tokens, in all
        self.finish = None  # once it has ended

    async def next_token(self):
        """Return one more token, None after the last."""
        most = self._sampling.max_tokens
        if self.finish is None and most is not None and len(self.tokens) >= most:
            self.finish = finish()
        if self.finish is not None:
            return None
        await self._prepare()
        choice = await self._stream.next()
        if choice is None:
            self.finish = finish()  # the context is full
            return None
        self.tokens.append(choice.token)
        self.logprob += choice.logprob
        if choice.token in self._ends:
            self.finish = finish(token=choice.token)
        return choice

    async def next(self):
        """Return the next piece of text, never empty and never half a character; None at the end."""
        while True:
            choice = await self.next_token()
            if choice is None:
                rest, self._held = self._held + self._utf8.decode(b"", True), ""
                return rest or None
            if self.finish is None:
                self._held += self._utf8.decode(_lip.detokenize([choice.token]))
            ready = self._release()
            if self.finish is not None and self.finish.text is not None:
                await self._roll_back()
            if ready:
                return ready

    async def text(self):
        """Return all the text that is still to come."""
        pieces = []
        while True:
            piece = await self.next()
            if piece is None:
                return "".join(pieces)
            pieces.append(piece)

    def cancel(self):
        """End the generation now."""
        self._stream.cancel()

    def __aiter__(self):
        return self

    async def __anext__(self):
        piece = await self.next()
        if piece is None:
            raise StopAsyncIteration
        return piece

    async def _prepare(self):
        """Ask for what must be known before it starts: then the file is busy."""
        if self._ends is None:
            self._ends = self._sampling.stop_tokens(known().eos)
            if self._sampling.stop_texts:
                self._before = await self._kv.len() + len(self._prompt)

    async def _roll_back(self):
        """Take back what the server computed behind a text that has ended it."""
        self._stream.cancel()
        await self._kv.truncate(self._before + len(self.tokens) - 1)

    def _release(self):
        """Return what of the held text is surely not part of one to stop at."""
        if self.finish is not None:
            return ""
        stops = self._sampling.stop_texts
        found = [(self._held.find(stop), stop) for stop in stops]
        starts = [each for each in found if each[0] >= 0]
        if starts:
            start, stop = min(starts, key=lambda each: each[0])
            self.finish = finish(text=stop)
            self._utf8 = Utf8()
            self._held = self._held[:start]
            return ""
        kept = max([_overlap(self._held, stop) for stop in stops]) if stops else 0
        cut = len(self._held) - kept
        ready, self._held = self._held[:cut], self._held[cut:]
        return ready


def _overlap(text, stop):
    """Return the length of the longest end of `text` that is a beginning of `stop`."""
    for length in range(min(len(text), len(stop)), 0, -1):
        if text.endswith(stop[:length]):
            return length
    return 0
