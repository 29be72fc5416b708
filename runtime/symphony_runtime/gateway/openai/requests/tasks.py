"""Jobs that generate nothing: tokens of texts and back, embeddings, scores and ranks.

A score says how likely the model finds a text behind another: the mean log-probability of its
tokens, as a share from 0 to 1 (`math.exp` of it). A rank is the score of the query behind each
document (query likelihood, as in Sachan et al., "Improving Passage Retrieval with Zero-Shot
Question Generation", 2022).
"""

import base64
import math
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import msgpack
import numpy as np
from pydantic import BaseModel, ConfigDict, Field
from symphony_kernel.protocol.limits import OPENAI_INPUTS_MAX

from symphony_runtime.gateway.openai.errors import refused
from symphony_runtime.gateway.openai.program_messages import Usage
from symphony_runtime.gateway.openai.requests.bodies import read_fields
from symphony_runtime.gateway.openai.requests.limits import Model, RequestLimits, named
from symphony_runtime.gateway.openai.requests.messages import read_messages
from symphony_runtime.gateway.openai.requests.parsing import pack, read_prompts, read_token_ids

_Texts = Annotated[list[str], Field(min_length=1, max_length=OPENAI_INPUTS_MAX)]
# Data of the program and the usage -> the answer, without its id and time.
Shape = Callable[[bytes, Usage], dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Task:
    """A job for the shipped program, and what makes an answer of its data."""

    job: bytes
    shape: Shape


class TaskBody(BaseModel):
    """The field that all tasks share."""

    model_config = ConfigDict(strict=True, frozen=True)
    model: str = ""


class TokenizeBody(TaskBody):
    """The body of `/tokenize`: a prompt, or messages for the chat template."""

    prompt: str | None = None
    messages: Any = Field(None, description="a list of messages, {role, content}")
    add_special_tokens: bool | None = None
    return_token_strs: bool = False


class DetokenizeBody(TaskBody):
    """The body of `/detokenize`."""

    tokens: Any = Field(description="token ids")


class EmbeddingBody(TaskBody):
    """The body of `/v1/embeddings`."""

    input: Any = Field(description="a string, token ids, or a list of several of either")
    encoding_format: Literal["float", "base64"] = "float"
    dimensions: int | None = Field(None, ge=1)
    pooling: Literal["last", "mean"] | None = None
    add_special_tokens: bool = True


class ScoreBody(TaskBody):
    """The body of `/v1/score`."""

    text_1: str | _Texts
    text_2: str | _Texts


class RerankBody(TaskBody):
    """The body of `/v1/rerank`."""

    query: str
    documents: Any = Field(description="a list of texts, or of objects with a `text`")
    top_n: int | None = Field(None, ge=1)
    return_documents: bool = True


# --- Tokens --------------------------------------------------------------------------------------
def parse_tokenize(body: dict[str, Any], model: Model, _: RequestLimits) -> Task:
    """Return the job of a `/tokenize` body; OpenAIError 400."""
    request = read_fields(TokenizeBody, body)
    job: dict[str, Any] = {"task": "tokenize", "texts": request.return_token_strs}
    if (request.prompt is None) == (request.messages is None):
        raise refused("the body must have either a `prompt` or `messages`", "prompt")
    if request.prompt is None:
        if request.add_special_tokens:
            raise refused("a chat template adds its own special tokens", "add_special_tokens")
        job["messages"] = pack(read_messages(request.messages, "messages"))
    else:
        job["prompts"] = [request.prompt]
        if request.add_special_tokens is not False:
            job |= {"prefix": model.prefix, "suffix": model.suffix}

    def shape(data: bytes, _: Usage) -> dict[str, Any]:
        tokens, texts = msgpack.unpackb(data)
        return {
            "count": len(tokens) // 4,
            "max_model_len": model.context,
            "tokens": list(struct.unpack(f"<{len(tokens) // 4}I", tokens)),
            "token_strs": texts and [text.decode("utf-8", "replace") for text in texts],
        }

    return Task(pack(job), shape)


def parse_detokenize(body: dict[str, Any], model: Model, _: RequestLimits) -> Task:
    """Return the job of a `/detokenize` body; OpenAIError 400."""
    request = read_fields(DetokenizeBody, body)
    ids = request.tokens and read_token_ids(request.tokens, model, "tokens")
    job = {"task": "detokenize", "prompts": [ids or b""]}
    return Task(pack(job), lambda data, _: {"prompt": data.decode("utf-8", "replace")})


# --- Embeddings ----------------------------------------------------------------------------------
def parse_embeddings(body: dict[str, Any], model: Model, limits: RequestLimits) -> Task:
    """Return the job of a `/v1/embeddings` body; OpenAIError 400."""
    request = read_fields(EmbeddingBody, body)
    prompts = read_prompts(request.input, model, "input")
    _check_count(len(prompts), "input")
    size, most = 4 * model.width * len(prompts), limits.limits["output_bytes"]
    if size > most:
        raise refused(f"the embeddings take {size} bytes, at most {most} ({named('output_bytes')})",
                      "input")  # fmt: skip
    width = _dimensions(request.dimensions, model)
    job = {
        "task": "embed",
        "prompts": prompts,
        "width": model.width,
        "mean": (request.pooling or model.pooling) == "mean",
        **_bounds(model, limits),
    }
    if request.add_special_tokens:
        job |= {"prefix": model.prefix, "suffix": model.suffix}

    def shape(data: bytes, usage: Usage) -> dict[str, Any]:
        vectors = np.frombuffer(data, "<f4").reshape(-1, model.width)[:, :width]
        lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
        units = vectors / np.maximum(lengths, np.finfo(np.float32).tiny)
        rows: list[Any] = (
            [base64.b64encode(unit.tobytes()).decode() for unit in units]
            if request.encoding_format == "base64"
            else units.tolist()
        )
        return {
            "object": "list",
            "data": [
                {"object": "embedding", "index": index, "embedding": row}
                for index, row in enumerate(rows)
            ],
            "usage": _usage(usage),
        }

    return Task(pack(job), shape)


def _dimensions(wanted: int | None, model: Model) -> int:
    """Return the length of an embedding; OpenAIError 400: the model does not say it may be cut."""
    if wanted is None or wanted == model.width:
        return model.width
    allowed = model.dimensions
    if wanted > model.width or (allowed is not None and wanted not in allowed):
        cuts = "" if not allowed else f", or one of {', '.join(map(str, allowed))}"
        words = f"`dimensions` must be {model.width}{cuts}: the model says nothing of other lengths"
        raise refused(words, "dimensions")
    return wanted


# --- Scores --------------------------------------------------------------------------------------
def parse_score(body: dict[str, Any], model: Model, limits: RequestLimits) -> Task:
    """Return the job of a `/v1/score` body; OpenAIError 400."""
    request = read_fields(ScoreBody, body)
    ours, theirs = _list(request.text_1), _list(request.text_2)
    if len(ours) not in (1, len(theirs)):
        raise refused("`text_1` must be one text, or as many as `text_2`", "text_1")
    ours = ours * len(theirs) if len(ours) == 1 else ours
    job = _score_job(list(zip(ours, theirs, strict=True)), model, limits)

    def shape(data: bytes, usage: Usage) -> dict[str, Any]:
        scores = [
            {"index": index, "object": "score", "score": score}
            for index, score in enumerate(_scores(data))
        ]
        return {"object": "list", "data": scores, "usage": _usage(usage)}

    return Task(job, shape)


def parse_rerank(body: dict[str, Any], model: Model, limits: RequestLimits) -> Task:
    """Return the job of a `/v1/rerank` body; OpenAIError 400."""
    request = read_fields(RerankBody, body)
    documents = _documents(request.documents)
    job = _score_job([(request.query, document) for document in documents], model, limits)

    def shape(data: bytes, usage: Usage) -> dict[str, Any]:
        ranked = sorted(enumerate(_scores(data)), key=lambda found: -found[1])
        results: list[dict[str, Any]] = [
            {"index": index, "relevance_score": score} for index, score in ranked[: request.top_n]
        ]
        if request.return_documents:
            results = [{**each, "document": {"text": documents[each["index"]]}} for each in results]
        return {"results": results, "usage": _usage(usage)}

    return Task(job, shape)


def _documents(value: Any) -> list[str]:
    given = value if isinstance(value, list) else []
    found = [each.get("text") if isinstance(each, dict) else each for each in given]
    texts = [text for text in found if isinstance(text, str)]
    if not texts or len(texts) != len(given):
        words = "`documents` must be a list of texts, or of objects with a `text`, one at least"
        raise refused(words, "documents")
    _check_count(len(texts), "documents")
    return texts


def _score_job(pairs: list[tuple[str, str]], model: Model, limits: RequestLimits) -> bytes:
    """Return the job that scores each (query, document): how likely the query is behind it."""
    texts = [(f"Passage: {document}\nQuery:", f" {query}") for query, document in pairs]
    job = {"task": "score", "pairs": texts, "prefix": model.prefix, **_bounds(model, limits)}
    return pack(job)


def _scores(data: bytes) -> Sequence[float]:
    return [math.exp(mean) for (mean,) in struct.iter_unpack("<f", data)]


# --- What tasks share ----------------------------------------------------------------------------
def _bounds(model: Model, limits: RequestLimits) -> dict[str, int]:
    return {
        "context": model.context,
        "tokens": limits.limits["tokens"],
        "kv_tokens": limits.limits["kv_tokens"],
    }


def _check_count(count: int, param: str) -> None:
    if count > OPENAI_INPUTS_MAX:
        raise refused(f"`{param}` has at most {OPENAI_INPUTS_MAX} texts; it has {count}", param)


def _list(value: str | list[str]) -> list[str]:
    return [value] if isinstance(value, str) else value


def _usage(usage: Usage) -> dict[str, int]:
    return {"prompt_tokens": usage.prompt, "total_tokens": usage.prompt}
