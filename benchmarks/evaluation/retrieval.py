"""Questions about documents: a program that keeps what it likes, and clients with whole prompts.

The program is the retrieval example itself: one run that all clients send their questions to. It
composes documents in any order, each computed alone; a prompt server finds a document only behind
those that stood before it then.
"""

import asyncio
import json
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

import numpy as np
from symphony import AsyncClient
from symphony_runtime.cli.projects import build

from benchmarks.evaluation.applications import Tokens
from benchmarks.evaluation.clients import Seen
from benchmarks.evaluation.tasks import Material
from benchmarks.serving.client import Endpoint, MeasureError
from benchmarks.serving.servers import REPOSITORY

_PAGE_TOKENS = 16
_LETTERS = np.array(list("abcdefghijklmnopqrstuvwxyz      \n"))
_QUESTION = "{} {:05} what does it say of this?"  # each is another one
_PARALLEL = 64  # questions that the program answers at a time


@dataclass(frozen=True, slots=True)
class Shelf:
    """How many documents there are, how long, and how unevenly they are asked for.

    Attributes:
        documents: Of the library.
        tokens: Of a document, whole pages.
        kept: Documents that the program keeps.
        held: Documents that questions may use at once, kept ones among them: what the memory has
            room for beside as many answers.
        index: Of Pareto's distribution: the smaller, the more questions are about few documents.
        answer: Tokens of an answer.
    """

    documents: int = 200
    tokens: int = 256
    kept: int = 60
    held: int = 80
    index: float = 0.75
    answer: int = 16


@dataclass(frozen=True, slots=True)
class Question:
    """Documents by their numbers, in the order of the prompt, and a text."""

    documents: list[int]
    text: str


class Library:
    """The documents, the same for all systems."""

    def __init__(self, shelf: Shelf, material: Material, seed: int = 0) -> None:
        self.shelf = shelf
        self._material = material
        self._seed = seed
        random = np.random.default_rng(seed)
        middles = (np.arange(shelf.documents) + 0.5) / shelf.documents
        weights = (1 - middles) ** (-1 / shelf.index)
        self._shares = random.permutation(weights / weights.sum())
        self.texts = [self._text(random) for _ in range(shelf.documents)]
        self._tokens = [self._padded(self._material.encode(text)) for text in self.texts]

    def _text(self, random: np.random.Generator) -> str:
        """Return a text of as many tokens as a document has, or a few less."""
        text = "".join(random.choice(_LETTERS, 8 * self.shelf.tokens))
        ends = [end for _, end in self._material.tokenizer.encode(text).offsets]
        text = text[: ends[self.shelf.tokens - 3]]
        count = len(self._material.encode(text))
        assert self.shelf.tokens - _PAGE_TOKENS < count <= self.shelf.tokens, count
        return text

    def _padded(self, tokens: Tokens) -> Tokens:
        """Fill a document up to whole pages, as the program does."""
        return tokens + [self._material.encode("\n")[-1]] * (self.shelf.tokens - len(tokens))

    def questions(self, documents: int, count: int, words: str) -> list[Question]:
        """Return `count` questions about so many documents each; other `words`, other questions."""
        random = np.random.default_rng([self._seed, *words.encode()])
        drawn = [
            random.choice(len(self.texts), documents, replace=False, p=self._shares).tolist()
            for _ in range(count)
        ]
        return [
            Question(each, _QUESTION.format(words, number)) for number, each in enumerate(drawn)
        ]

    def prompt(self, question: Question) -> Tokens:
        """Return the documents and the question as a prompt server gets them."""
        documents = [token for number in question.documents for token in self._tokens[number]]
        return documents + self._material.encode(question.text)


def build_example() -> bytes:
    """Compile the retrieval example (it needs a Rust toolchain)."""
    examples = REPOSITORY / "examples"
    folders = [examples / "rag" / "rust", examples / "retrieval"]
    return build(_first(folders)).read_bytes()


def _first(folders: list[Path]) -> Path:
    return next(folder for folder in folders if (folder / "Cargo.toml").exists())


class Desk:
    """One run of the example, and the clients that ask it."""

    def __init__(self, endpoint: Endpoint, library: Library, wasm: bytes) -> None:
        self._client = AsyncClient(endpoint.url, endpoint.key, retries=0)
        self._library = library
        self._wasm = wasm
        self._run = ""
        self._reading: asyncio.Task[None]
        self._waiting: dict[int, asyncio.Future[str]] = {}
        self._asked = 0
        self.seen = Seen()

    async def __aenter__(self) -> Self:
        """Start the run."""
        await self._client.__aenter__()
        shelf = self._library.shelf
        given = {
            "documents": self._library.texts,
            "keep_tokens": shelf.kept * shelf.tokens,
            "hold_tokens": shelf.held * shelf.tokens,
            "max_tokens": shelf.answer,
            "parallel": _PARALLEL,
        }
        program = (await self._client.programs.upload(self._wasm, "retrieval"))["id"]
        self._run = await self._client.start(program, input=json.dumps(given))
        self._reading = asyncio.create_task(self._read())
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """End the run."""
        if not self._reading.done():
            await self._client.runs.send(self._run, b"", close=True)
            await self._reading
        await self._client.__aexit__(kind, error, traceback)

    async def _read(self) -> None:
        async for event in self._client.runs.events(self._run):
            if event.kind == "message":
                answer = json.loads(event.message())
                # Who asked may have given up.
                waiting = self._waiting.pop(answer["id"], None)
                if waiting is not None and not waiting.done():
                    waiting.set_result(answer["text"])
        for waiting in self._waiting.values():
            waiting.set_exception(MeasureError("the program ended before it had answered"))

    async def ask(self, question: Question, delay: float) -> str:
        """Return the answer's text.

        Raises:
            MeasureError: The program has ended.
        """
        if delay:
            await asyncio.sleep(delay)
        if self._reading.done():
            raise MeasureError(f"the program ended: {await self._client.runs.get(self._run)}")
        self._asked += 1
        number = self._asked
        answer = asyncio.get_running_loop().create_future()
        self._waiting[number] = answer
        message = {"id": number, "documents": question.documents, "question": question.text}
        await self._client.runs.send(self._run, json.dumps(message).encode())
        text: str = await answer
        self.seen.requests += 1
        self.seen.generated += self._library.shelf.answer
        return text
