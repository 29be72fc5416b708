"""Jobs for the shipped program, from bodies of the OpenAI routes."""

import struct
from dataclasses import dataclass, replace
from typing import Any

import msgpack
from symphony_kernel.protocol.limits import (
    OPENAI_COMPLETION_TOKENS_DEFAULT,
    OPENAI_METADATA_CHARACTERS_MAX,
    OPENAI_PROGRAM_CHOICES_MAX,
    PRED_BIAS_MAX,
)

from symphony_runtime.gateway.openai.errors import OpenAIError, refused
from symphony_runtime.gateway.openai.requests.bodies import (
    Body,
    ChatBody,
    CompletionBody,
    ConversationBody,
    GenerationBody,
    ResponseBody,
    read_body,
)
from symphony_runtime.gateway.openai.requests.constraints import read_constraint
from symphony_runtime.gateway.openai.requests.conversation import conversation_of, put_format
from symphony_runtime.gateway.openai.requests.limits import Model, RequestLimits
from symphony_runtime.gateway.openai.requests.messages import read_messages
from symphony_runtime.gateway.openai.requests.response_items import read_items
from symphony_runtime.gateway.openai.requests.response_tools import check_kinds, read_tools
from symphony_runtime.gateway.openai.requests.tools import ToolUse, read_tool_use
from symphony_runtime.malloc import PACK_BUFFER_BYTES

_LOGPROBS = "message.output_text.logprobs"


@dataclass(frozen=True, slots=True)
class ParsedRequest:
    """A request for a program. `choices`: how many answers it gets, `n` to each prompt.

    `call_id_characters` are those of the ids of tool calls.
    """

    job: bytes
    choices: int
    stream: bool
    include_usage: bool
    call_id_characters: int = 24
    n: int = 1


def parse_completion(body: dict[str, Any], model: Model, limits: RequestLimits) -> ParsedRequest:
    """Return the job of a `/v1/completions` body; OpenAIError 400."""
    request = read_body(CompletionBody, body)
    prompts = read_prompts(request.prompt, model, "prompt")
    job = _common(request, "max_completion_tokens", model, limits)
    if job["max"] is None:
        job["max"] = OPENAI_COMPLETION_TOKENS_DEFAULT
    job["prompts"] = prompts
    if request.add_special_tokens:
        job["prefix"] = model.prefix
    job["echo"] = request.echo
    job["ids"] = request.return_token_ids
    read_constraint(request, "response_format", request.response_format, job, model)
    best_of = request.n if request.best_of is None else request.best_of
    most, limit = limits.answers_max()
    limits.check_field("best_of", best_of, limit, most)
    if best_of < request.n:
        raise refused(f"`best_of` must be at least `n`, {request.n}; it is {best_of}", "best_of")
    if request.logprobs is not None:
        job["logprobs"] = request.logprobs
    _read_infill(request, job, model)
    _read_prompt_logprobs(request, job)
    if best_of > request.n and request.stream:
        raise refused("`best_of` cannot be streamed", "best_of")
    if request.return_token_ids and request.stream:
        raise refused("`return_token_ids` is for answers that are not streamed", "return_token_ids")
    job["best_of"] = best_of
    limits.check_answers(len(prompts), best_of, request.logprobs)
    return _parsed(job, len(prompts) * request.n, request)


def parse_chat(body: dict[str, Any], model: Model, limits: RequestLimits) -> ParsedRequest:
    """Return the job of a `/v1/chat/completions` body; OpenAIError 400."""
    request = read_body(ChatBody, body)
    messages = read_messages(request.messages, "messages")
    job = chat_job(request, messages, model, limits)
    parsed = _parsed(job, request.n, request)
    return replace(parsed, call_id_characters=model.answers.tools.id_characters)


def chat_job(
    request: ChatBody, messages: list[dict[str, Any]], model: Model, limits: RequestLimits
) -> dict[str, Any]:
    """Return the job that answers a conversation, which is checked; OpenAIError 400."""
    job = _common(request, "max_completion_tokens", model, limits)
    use = read_tool_use(request.tools, request.tool_choice, parallel=request.parallel_tool_calls)
    _put_conversation(request, messages, use, model, job)
    read_constraint(request, "response_format", request.response_format, job, model, use)
    if request.logprobs:
        job["logprobs"] = request.top_logprobs or 0
    elif request.top_logprobs is not None:
        raise refused("`top_logprobs` needs `logprobs: true`", "top_logprobs")
    _read_prompt_logprobs(request, job)
    limits.check_answers(1, request.n, job.get("logprobs"))
    return job


def parse_response(body: dict[str, Any], model: Model, limits: RequestLimits) -> ParsedRequest:
    """Return the job of a `/v1/responses` body with the conversation before it; OpenAIError 400."""
    check_kinds(body.get("tools"))
    if body.get("conversation") is not None:
        raise refused("conversations are not kept: use `previous_response_id`", "conversation",
                      "unsupported_parameter")  # fmt: skip
    request = read_body(ResponseBody, body)
    if request.background and not request.store:
        raise refused("a response in the background is stored: `store` must be true", "background")
    _check_echoed(request)
    asked = request.input
    user = [{"role": "user", "content": asked}]
    messages = user if isinstance(asked, str) else read_items(asked, "input")
    if request.instructions:
        messages = [{"role": "system", "content": request.instructions}, *messages]
    job = _common(request, "max_output_tokens", model, limits)
    if request.n != 1:
        raise refused(f"a response is one answer: `n` must be 1; it is {request.n}", "n")
    text = request.text or {}
    if not {"format", "verbosity"}.issuperset(text):
        raise refused("`text` must be an object with a `format`", "text")
    tools = read_tools(request.tools)
    use = read_tool_use(tools, request.tool_choice, parallel=request.parallel_tool_calls)
    effort = request.reasoning.effort if request.reasoning else None
    _put_conversation(request, messages, use, model, job, effort)
    read_constraint(request, "text", text.get("format"), job, model, use)
    if request.top_logprobs is not None or _LOGPROBS in request.include:
        job["logprobs"] = request.top_logprobs or 0
        limits.check_answers(1, 1, job["logprobs"])
    parsed = _parsed(job, 1, request, stream=request.stream or request.background)
    return replace(parsed, call_id_characters=model.answers.tools.id_characters)


def _put_conversation(
    request: ConversationBody,
    messages: list[dict[str, Any]],
    use: ToolUse,
    model: Model,
    job: dict[str, Any],
    effort: str | None = None,
) -> None:
    """Put a conversation into a job, and how its answers are split; OpenAIError 400."""
    effort = effort or request.reasoning_effort
    conversation = conversation_of(request, messages, use, model.answers, effort)
    if conversation is None:
        job["messages"] = pack(messages)
    else:
        job["conversation"] = pack(conversation)
    put_format(request, use, model.answers, job)


def _read_infill(request: CompletionBody, job: dict[str, Any], model: Model) -> None:
    """Let the answer fill the gap before `suffix`; OpenAIError 400: the model cannot do that."""
    if not request.suffix:
        return
    if model.infill is None:
        raise refused("the model's tokenizer has no fill-in-the-middle tokens", "suffix",
                      "unsupported_parameter")  # fmt: skip
    if request.echo:
        raise refused("`echo` cannot be used with `suffix`", "suffix")
    before, hole, end = model.infill
    opening = struct.pack("<I", before)
    job["prompts"] = [each if isinstance(each, str) else opening + each for each in job["prompts"]]
    job["prefix"] = [*job.get("prefix", ()), before]
    job["after"] = [hole, request.suffix, end]


def _read_prompt_logprobs(request: CompletionBody | ChatBody, job: dict[str, Any]) -> None:
    if request.prompt_logprobs is None:
        return
    if request.stream:
        raise refused("`prompt_logprobs` is for answers that are not streamed", "prompt_logprobs")
    job["prompt_logprobs"] = request.prompt_logprobs


def parse_for_program(body: dict[str, Any], raw: bytes, *, several: bool = False) -> ParsedRequest:
    """Return the job of a tenant's own program: the request's bytes. The program checks the rest.

    `several`: the route has answers with several choices.

    Raises OpenAIError: 400, it wants too many answers, or its stream options are wrong.
    """
    request = read_body(Body, {name: body[name] for name in Body.model_fields if name in body})
    n, prompts = request.n, body.get("prompt")
    if n != 1 and not several:
        raise refused(f"this route gives one answer: `n` must be 1; it is {n}", "n")
    listed = several and isinstance(prompts, list) and prompts and not isinstance(prompts[0], int)
    choices = n * (len(prompts or ()) if listed else 1)
    if choices > OPENAI_PROGRAM_CHOICES_MAX:
        most = f"at most {OPENAI_PROGRAM_CHOICES_MAX} answers, `n` to each prompt"
        raise refused(f"a program gives {most}; {choices} are wanted", "n" if n > 1 else "prompt")
    return ParsedRequest(raw, choices, request.stream, _include_usage(request), n=n)


def _check_echoed(request: ResponseBody) -> None:
    """Check the texts that a response repeats: they are short, and Unicode."""
    texts = [("metadata", name + value) for name, value in request.metadata.items()]
    for field, text in [*texts, ("user", request.user)]:
        if len(text) > OPENAI_METADATA_CHARACTERS_MAX:
            most = f"at most {OPENAI_METADATA_CHARACTERS_MAX} characters"
            raise refused(f"`user`, and each of `metadata` with its name, has {most}", field)
    pack([request.metadata, request.user, [tool.model_dump() for tool in request.tools]])


def pack(value: Any) -> bytes:
    """Return a job, or messages, for the program; OpenAIError 400: not Unicode."""
    try:
        packed: bytes = msgpack.packb(value, buf_size=PACK_BUFFER_BYTES)
    except UnicodeEncodeError as error:
        raise refused("the request holds a lone surrogate, which is not a character") from error
    except OverflowError as error:
        raise refused("the request holds an integer of more than 64 bits") from error
    return packed


def _parsed(
    job: dict[str, Any], choices: int, request: GenerationBody, *, stream: bool | None = None
) -> ParsedRequest:
    """Return the request of a job; `stream`: the program tells what it has as it comes."""
    job["stream"] = request.stream if stream is None else stream
    return ParsedRequest(pack(job), choices, request.stream, _include_usage(request))


def _include_usage(request: Body) -> bool:
    return request.stream_options is not None and bool(request.stream_options.include_usage)


# --- Prompts -------------------------------------------------------------------------------------
def read_prompts(value: Any, model: Model, param: str) -> list[str | bytes]:
    """Return texts, or token ids as u32; OpenAIError 400."""
    if isinstance(value, str):
        return [value]
    if not isinstance(value, list) or not value:
        raise refused(f"`{param}` must be a string, a list of strings, token ids, or a list of "
                      "lists of token ids", param)  # fmt: skip
    if isinstance(value[0], int):
        return [read_token_ids(value, model, param)]
    return [item if isinstance(item, str) else read_token_ids(item, model, param) for item in value]


def read_token_ids(value: Any, model: Model, param: str) -> bytes:
    """Return token ids as u32, one at least; OpenAIError 400."""
    # There may be very many: checked by C loops.
    if not isinstance(value, list) or not value or not {int}.issuperset(map(type, value)):
        raise refused(f"`{param}` must hold strings, or non-empty lists of token ids", param)
    if min(value) < 0 or max(value) >= model.vocab_size:
        raise refused(f"a token id in `{param}` must be below {model.vocab_size}", param)
    return struct.pack(f"<{len(value)}I", *value)


# --- What all routes share -----------------------------------------------------------------------
def _common(
    request: GenerationBody, most_field: str, model: Model, limits: RequestLimits
) -> dict[str, Any]:
    """Return the part of a job that all routes share; `most_field` is the newer `max_tokens`."""
    tokens, answers = limits.limits["tokens"], limits.answers_max()
    limits.check_field("n", request.n, answers[1], answers[0])
    newer: int | None = getattr(request, most_field)
    for field in (most_field, "max_tokens", "min_tokens"):
        limits.check_field(field, getattr(request, field), "tokens", tokens)
    most = request.max_tokens if newer is None else newer
    if most is not None and request.min_tokens > most:
        raise refused("`min_tokens` is above `max_tokens`", "min_tokens")
    stops = [request.stop] if isinstance(request.stop, str) else request.stop
    ids = request.stop_token_ids
    if ids and not (min(ids) >= 0 and max(ids) < model.vocab_size):
        raise refused(f"a stop token id must be below {model.vocab_size}", "stop_token_ids")
    job: dict[str, Any] = {
        "context": model.context,
        "tokens": tokens,
        "kv_tokens": limits.limits["kv_tokens"],
        "n": request.n,
        "max": most,
        "min": request.min_tokens,
        "stop": [stop for stop in stops if stop],
        "ends": ids if request.ignore_eos else [*ids, *model.eos],
        "bias": {_token_id(key, model): bias for key, bias in request.logit_bias.items()},
        "presence": request.presence_penalty,
        "frequency": request.frequency_penalty,
    }
    if model.draft_tokens:
        job["drafts"] = model.draft_tokens
    if model.adapter:
        job["adapter"] = model.adapter
    if request.temperature:
        job["sample"] = _sampling(request)
    if request.repetition_penalty != 1:
        job |= {"repetition": request.repetition_penalty, "vocab": model.vocab_size}
    if job["presence"] or job["frequency"]:
        job["most"] = _penalised_max(job)
    return job


def _sampling(request: GenerationBody) -> dict[str, Any]:
    sample: dict[str, Any] = {
        "temperature": request.temperature,
        "top_k": max(request.top_k, 0),
        "top_p": request.top_p,
        "min_p": request.min_p,
    }
    if request.seed is not None:
        sample["seed"] = request.seed % 2**64
    return sample


def _penalised_max(job: dict[str, Any]) -> int:
    """Return how many tokens an answer with penalties may have: each takes an entry of `bias`."""
    most: int = PRED_BIAS_MAX - len(job["bias"]) - len(job["ends"])
    if job["max"] is not None and job["max"] > most:
        raise refused(f"with penalties an answer has at most {most} tokens", "max_tokens")
    return most


def _token_id(key: str, model: Model) -> int:
    token = int(key) if key.isascii() and key.isdigit() and len(key) < 10 else model.vocab_size
    if token >= model.vocab_size:
        raise refused(f"a key of `logit_bias` must be a token id below {model.vocab_size}",
                      "logit_bias")  # fmt: skip
    return token


def model_of(body: Any) -> str:
    """Return the model that a body names; OpenAIError 400."""
    if not isinstance(body, dict):
        raise refused("the body must be a JSON object")
    model = body.get("model")
    if not isinstance(model, str):
        raise refused("you must provide a `model`", "model")
    return model


def no_such_model(name: str) -> OpenAIError:
    """Return 404. A missing model and another tenant's look the same."""
    message = f"The model `{name}` does not exist or you do not have access to it."
    return OpenAIError(404, message, param="model", code="model_not_found")
