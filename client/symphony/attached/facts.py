"""What a run's model is, and what was asked of it: a run asks for the same thing once."""

from dataclasses import dataclass, field

import msgpack


@dataclass(frozen=True, slots=True)
class Info:
    """What the model is."""

    name: str
    vocab_size: int  # tokens are below it
    eos: tuple[int, ...]  # the tokens that end a text
    bos: int | None  # the token that begins a text, where the model has one
    max_context: int  # positions are below it
    page_size: int  # entries in a page of KV
    dtype: str
    hidden_size: int  # numbers of a hidden state


@dataclass(slots=True)
class Facts:
    """What is known of a run's model."""

    info: Info
    token_bytes: dict[int, bytes] = field(default_factory=dict)
    token_lists: dict[str, list[int]] = field(default_factory=dict)  # of texts


def read_info(packed: bytes) -> Info:
    """Return what a server says of its model."""
    said = msgpack.unpackb(packed)
    known = {name: said.get(name) for name in Info.__slots__}
    return Info(**{**known, "eos": tuple(said["eos"])})
