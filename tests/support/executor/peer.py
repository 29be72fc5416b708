"""transformers on the checkpoint that a server serves, to compare the server with."""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import torch
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM, PreTrainedModel


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """Let torch use one thread.

    Two processes that compute with spinning threads on two cores slow each other down tenfold.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


@dataclass
class Peer:
    """The model and its tokenizer, in float32 on the CPU."""

    model: PreTrainedModel
    tokenizer: Tokenizer

    @classmethod
    def load(cls, weights: Path) -> Self:
        model = AutoModelForCausalLM.from_pretrained(weights, dtype=torch.float32).eval()
        return cls(model, Tokenizer.from_file(str(weights / "tokenizer.json")))

    def prompt(self, text: str) -> list[int]:
        return list(self.tokenizer.encode(text, add_special_tokens=False).ids)

    def logits(self, tokens: list[int]) -> torch.Tensor:
        """Return the [tokens, vocab] logits."""
        with torch.inference_mode():
            return self.model(torch.tensor([tokens])).logits[0]  # type: ignore[no-any-return]
