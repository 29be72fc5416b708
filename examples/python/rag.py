"""Answers questions about documents. Which documents stay computed is this program's decision.

It keeps those that its own statistics favour, and composes several of them in any order. A document
counts who uses its file, and closes it: Python on the server has no weak references.
"""

import asyncio
from dataclasses import dataclass

import symphony
from symphony import KvFile, Sampling, model

FADING = 0.999  # what a question counts after one more: half after seven hundred


@dataclass
class Question:
    """A question about some of the documents, in this order."""

    question: str
    documents: list[int]
    id: int = 0


@dataclass
class Answered:
    """What the model says to each question, and how often a document was computed or found."""

    texts: list[str]
    computed: int
    found: int


class Document:
    """A document's tokens, in whole pages, and its file, as long as it is kept or in use."""

    def __init__(self, tokens: list[int]) -> None:
        self.tokens = tokens
        self.file: KvFile | None = None  # while it is kept or in use
        self.kept, self.users = False, 0
        self.asks, self.asked = 0.0, 0  # how often it was asked for, as of question `asked`

    def asks_at(self, question: int) -> float:
        return self.asks * FADING ** (question - self.asked)

    def close_unused(self) -> None:
        if self.file is not None and not self.kept and not self.users:
            self.file.close()
            self.file = None


class Library:
    """The documents, the files that hold some of them, and the statistics that say which."""

    def __init__(self, documents: list[Document], keep_tokens: int) -> None:
        self.documents, self.keep_tokens = documents, keep_tokens
        self.kept_tokens = self.questions = self.computed = self.found = 0

    def take(self, wanted: list[int]) -> tuple[list[KvFile], list[asyncio.Future[None]]]:
        """Return documents' files. What is in none is begun: its passes are under way."""
        files, computing = list[KvFile](), list[asyncio.Future[None]]()
        self.questions += 1
        for number in wanted:
            document = self.documents[number]
            document.asks = document.asks_at(self.questions) + 1.0
            document.asked = self.questions
            file = document.file
            if file is not None:
                self.found += 1
            else:
                self.computed += 1
                document.file = file = KvFile.create()
                computing.append(file.prefill(document.tokens))
            document.users += 1
            self.consider(document)
            files.append(file)
        return files, computing

    def give_back(self, wanted: list[int]) -> None:
        """Close the files that no answer uses any more, and that are not kept."""
        for number in wanted:
            document = self.documents[number]
            document.users -= 1
            document.close_unused()

    def consider(self, document: Document) -> None:
        """Keep a document where there is room, or in place of what is asked for less."""
        if document.kept:
            return
        asks, room = document.asks_at(self.questions), self.keep_tokens - self.kept_tokens
        going = list[Document]()
        while room < len(document.tokens):
            kept = [each for each in self.documents if each.kept and each not in going]
            least = min(kept, key=lambda each: each.asks_at(self.questions), default=None)
            if least is None or least.asks_at(self.questions) >= asks:
                return
            room += len(least.tokens)
            going.append(least)
        for each in going:
            each.kept = False
            each.close_unused()
        self.kept_tokens = self.keep_tokens - room + len(document.tokens)
        document.kept = True


@symphony.program
async def rag(
    documents: list[str],
    questions: list[Question],
    keep_tokens: int = 8192,
    max_tokens: int = 32,
    parallel: int = 8,
) -> Answered:
    """Answer each question from its documents' files."""
    page = (await model.info()).page_size
    filler = (await model.tokenize("\n"))[-1]
    shelf = list[Document]()
    for text in documents:
        tokens = await model.tokenize(text)
        shelf.append(Document(tokens + [filler] * (-max(len(tokens), 1) % page)))
    library, turn = Library(shelf, keep_tokens), asyncio.Semaphore(parallel)

    async def answer(question: Question) -> str:
        async with turn:
            files, computing = library.take(question.documents)
            kv = files[0].fork() if len(files) == 1 else KvFile.create()
            if len(files) != 1:
                for file, number in zip(files, question.documents):  # noqa: B905 - no `strict` there
                    kv.append(file, 0, len(shelf[number].tokens))
            await asyncio.gather(*computing)
            tokens = await model.tokenize(question.question)
            text = await kv.generate(tokens, Sampling(max_tokens=max_tokens)).text()
            kv.close()
            library.give_back(question.documents)
            return text

    texts = await asyncio.gather(*map(answer, questions))
    return Answered(list(texts), library.computed, library.found)


if __name__ == "__main__":
    shelf = ["def add(a, b):\n    return a + b\n", "import json\n"]
    print(rag.run_sync(shelf, [Question("def test_", [0]), Question("def test_", [1, 0])]))
