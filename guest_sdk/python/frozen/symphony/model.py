"""The model: what it is, its tokens, its chat template."""

import _lip
from collections import namedtuple

Message = namedtuple("Message", ("role", "content"))
Info = namedtuple(
    "Info",
    ("name", "vocab_size", "eos", "bos", "max_context", "page_size", "dtype", "hidden_size"),
)
_known = None


def known():
    """Return what the model is."""
    global _known
    if _known is None:
        said = _lip.unpack(_lip.model_info())
        said["eos"] = tuple(said["eos"])
        _known = Info(*(said.get(name) for name in (
            "name", "vocab_size", "eos", "bos", "max_context", "page_size", "dtype", "hidden_size"
        )))  # fmt: skip
    return _known


async def info():
    """Return what the model is."""
    return known()


async def tokenize(text):
    """Return the tokens of a text. No special tokens are added, and their spellings stay text."""
    return _lip.tokenize(text)


async def detokenize(tokens):
    """Return the bytes of tokens. A token may end inside of a character."""
    return _lip.detokenize(list(tokens))


def chat_now(messages):
    listed = [
        {"role": m.role, "content": m.content} if isinstance(m, Message) else dict(m)
        for m in messages
    ]
    return _lip.chat(_lip.pack(listed))


async def chat(messages):
    """Return the tokens of a conversation in the model's own chat template."""
    return chat_now(messages)


async def chat_with(conversation):
    """Return the tokens of a conversation with tools, a mapping as the ABI has it."""
    return _lip.chat_with(_lip.pack(dict(conversation)))
