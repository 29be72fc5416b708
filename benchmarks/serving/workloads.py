"""What is asked of each server: how many requests, how long, and when they come."""

import json
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer


class Column(StrEnum):
    """The figure of a workload that servers are compared by."""

    DECODE = "decode"  # tokens/s after each request's first, from its first to its last, summed
    WHOLE = "whole"  # all new tokens over the time from the first request to the last answer, /s
    PREFILL = "prefill"  # prompt tokens over the time to the first token, /s
    REQUESTS = "requests"  # requests/s
    LATENCY = "latency"  # seconds from a request to the end of its answer, median
    FIRST = "first"  # seconds from a request to its first token, median

    @property
    def more_is_better(self) -> bool:
        """Whether it is a rate, and no time."""
        return self not in (Column.LATENCY, Column.FIRST)

    @property
    def words(self) -> str:
        """What a reader calls it."""
        return _WORDS[self]

    @property
    def unit(self) -> str:
        """As it is printed; times are printed in milliseconds."""
        if not self.more_is_better:
            return "ms"
        return "requests/s" if self is Column.REQUESTS else "tokens/s"


_WORDS = {
    Column.DECODE: "decoding",
    Column.WHOLE: "new tokens, with prefill",
    Column.PREFILL: "prefill",
    Column.REQUESTS: "requests",
    Column.LATENCY: "time of a request",
    Column.FIRST: "time to the first token",
}


@dataclass(frozen=True, slots=True)
class Workload:
    """What one round asks of a server.

    Closed loop: `streams` requests are in flight at any time until `requests` are done. Open loop,
    where `rate` is given: `requests` come by themselves, so many a second on average, whether the
    server keeps up or not. Each request has a prompt of its own, of `prompt` tokens, and must be
    answered with exactly `new` tokens.
    """

    name: str
    prompt: int
    new: int
    column: Column
    streams: int = 1
    requests: int = 1
    rate: float | None = None

    def __post_init__(self) -> None:
        """Refuse what cannot be done."""
        if min(self.prompt, self.new, self.streams, self.requests) < 1:
            raise ValueError(f"{self.name}: prompt, new, streams and requests are at least 1")
        if self.rate is not None and self.rate <= 0:
            raise ValueError(f"{self.name}: a rate is above 0")


WORKLOADS = {
    workload.name: workload
    for workload in (
        Workload("one", 128, 128, Column.DECODE),
        Workload("prefill", 1024, 1, Column.PREFILL, requests=3),
        Workload("sixteen", 128, 128, Column.WHOLE, streams=16, requests=16),
        Workload("latency", 8, 1, Column.LATENCY, requests=30),
        Workload("requests", 8, 1, Column.REQUESTS, streams=16, requests=480),
        Workload("open", 128, 64, Column.FIRST, requests=24, rate=1.0),
    )
}


def parse_workload(text: str) -> Workload:
    """Return a workload as `one` names it, or changed: `sixteen:streams=8:new=64`.

    A name of one's own is given as `of`: `eight:of=sixteen:streams=8`.

    Raises:
        ValueError: The name, a field or a value is none.
    """
    name, *changes = text.split(":")
    given = dict(change.partition("=")[::2] for change in changes)
    known = given.pop("of", name)
    if known not in WORKLOADS:
        raise ValueError(f"{known!r} is no workload; there are {', '.join(WORKLOADS)}")
    changed: dict[str, object] = {"name": name}
    for key, value in given.items():
        if key in ("prompt", "new", "streams", "requests"):
            changed[key] = int(value)
        elif key == "rate":
            changed[key] = float(value)
        elif key == "column":
            changed[key] = Column(value)
        else:
            raise ValueError(f"{key!r} is no field of a workload")
    return replace(WORKLOADS[known], **changed)  # type: ignore[arg-type]


def arrivals(rate: float, count: int, seed: int) -> list[float]:
    """Return the times of `count` Poisson arrivals, in seconds after the start."""
    gaps = np.random.default_rng(seed).exponential(1.0 / rate, count)
    return [float(time) for time in np.cumsum(gaps)]


# --- Prompts -------------------------------------------------------------------------------------


class Prompts:
    """Prompts of exact length that no two requests share the beginning of.

    The same (seed, workload, round, index) gives the same prompt, so that all servers are asked the
    same in a round and none finds anything of it in a cache.
    """

    def __init__(self, model: Path, seed: int = 0) -> None:
        config = json.loads((model / "config.json").read_text(encoding="utf-8"))
        self._tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
        self._vocabulary = min(int(config["vocab_size"]), self._tokenizer.get_vocab_size())
        special = {i for i, t in self._tokenizer.get_added_tokens_decoder().items() if t.special}
        self._ids = np.array([i for i in range(self._vocabulary) if i not in special])
        self._seed = seed

    def tokens(self, workload: Workload, turn: int, index: int) -> list[int]:
        """Return a prompt as token ids."""
        return [
            int(i) for i in self._draw(workload, turn, index).choice(self._ids, workload.prompt)
        ]

    def text(self, workload: Workload, turn: int, index: int) -> str:
        """Return a prompt as text that the model's tokenizer makes `workload.prompt` ids of."""
        random = self._draw(workload, turn, index)
        letters = np.array(list("abcdefghijklmnopqrstuvwxyz"))
        for _ in range(100):
            words = ("".join(random.choice(letters, 5)) for _ in range(workload.prompt))
            ids = self._tokenizer.encode(" ".join(words)).ids[: workload.prompt]
            text = self._tokenizer.decode(ids)
            if len(self._tokenizer.encode(text).ids) == workload.prompt:
                return text
        raise RuntimeError("no text of the wanted number of tokens was found")

    def _draw(self, workload: Workload, turn: int, index: int) -> np.random.Generator:
        name = int.from_bytes(workload.name.encode()[:8].ljust(8), "big")
        return np.random.default_rng([self._seed, name, turn, index])
