"""OpenAI's own client, and how the tests ask with it."""

from typing import Any

import openai
from openai.types import Completion

from tests.support.server.server import RunningServer

MODEL = "tiny"
PROMPT = "import os\n\n\ndef read_lines(path):\n    "
LONG_PROMPT = '"""Read and write files."""\n\nimport os\n\n' * 6
MESSAGES: Any = [{"role": "system", "content": "Code"}, {"role": "user", "content": "read a file"}]
TOKENS = 24


def connect(server: RunningServer, key: str | None = None) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key=key or server.key, max_retries=0)


def complete(client: openai.OpenAI, prompt: Any = PROMPT, **fields: Any) -> Completion:
    # Without what the tokenizer would put before a text, so that texts and tokens are the same.
    extra = {"add_special_tokens": False, **fields.pop("extra_body", {})}
    fields = {"max_tokens": TOKENS, "temperature": 0, **fields, "extra_body": extra}
    completion: Completion = client.completions.create(model=MODEL, prompt=prompt, **fields)
    return completion


def chat(client: openai.OpenAI, messages: Any = MESSAGES, **fields: Any) -> Any:
    fields = {"model": MODEL, "max_tokens": TOKENS, "temperature": 0, **fields}
    return client.chat.completions.create(messages=messages, **fields)


def respond(client: openai.OpenAI, asked: Any = "read a file", **fields: Any) -> Any:
    fields = {"model": MODEL, "max_output_tokens": TOKENS, "temperature": 0, **fields}
    return client.responses.create(input=asked, **fields)


def used(answer: Any) -> Any:
    """Return an answer's usage, which must be there."""
    assert answer.usage is not None
    return answer.usage


def logprobs_of(choice: Any) -> Any:
    """Return a choice's logprobs, which must be there."""
    assert choice.logprobs is not None
    return choice.logprobs


def text(client: openai.OpenAI, prompt: Any = PROMPT, **fields: Any) -> str:
    return complete(client, prompt, **fields).choices[0].text


def streamed(client: openai.OpenAI, prompt: Any = PROMPT, **fields: Any) -> list[Any]:
    return list(complete(client, prompt, stream=True, **fields))


def joined(chunks: list[Any]) -> str:
    return "".join(choice.text for chunk in chunks for choice in chunk.choices)
