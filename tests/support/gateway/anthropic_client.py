"""Anthropic's own client, and how the tests ask with it."""

from typing import Any

import anthropic

from tests.support.server.server import RunningServer

MODEL = "tiny"
ASKED: Any = [{"role": "user", "content": "read a file"}]
TOKENS = 24
# Fields of the API that the client's types do not have.
GREEDY: dict[str, Any] = {"temperature": 0}


def connect(server: RunningServer, key: str | None = None) -> anthropic.Anthropic:
    return anthropic.Anthropic(base_url=server.url, api_key=key or server.key, max_retries=0)


def wanted(messages: Any = ASKED, **fields: Any) -> dict[str, Any]:
    """Return a request, greedy unless `extra_body` says more."""
    extra = {**GREEDY, **fields.pop("extra_body", {})}
    return {"model": MODEL, "max_tokens": TOKENS, "messages": messages, "extra_body": extra,
            **fields}  # fmt: skip


def ask(client: anthropic.Anthropic, messages: Any = ASKED, **fields: Any) -> Any:
    return client.messages.create(**wanted(messages, **fields))


def events(client: anthropic.Anthropic, messages: Any = ASKED, **fields: Any) -> list[Any]:
    return list(client.messages.create(**wanted(messages, **fields), stream=True))


def stream(client: anthropic.Anthropic, messages: Any = ASKED, **fields: Any) -> Any:
    """Return the message that the client's helper makes of a stream."""
    with client.messages.stream(**wanted(messages, **fields)) as streamed:
        return streamed.get_final_message()


def text_of(message: Any) -> str:
    return "".join(block.text for block in message.content if block.type == "text")


def comparable(message: Any) -> dict[str, Any]:
    """Return what answers to equal requests have in common."""
    document: dict[str, Any] = message.model_dump(exclude={"id", "usage"})
    for block in document["content"]:
        for name in ("id", "signature", "parsed_output"):
            block.pop(name, None)
    return document
