"""What a client may ask of the completion routes, checked, as a job for the shipped program.

Fields that are null count as left out, as OpenAI's own clients send them. What is not known or not
done is refused by name: no request is answered as if it had asked for less.
"""

import struct
from dataclasses import dataclass
from typing import Any

import msgpack
from symphony_kernel.protocol.limits import (
    OPENAI_COMPLETION_TOKENS_DEFAULT,
    OPENAI_METADATA_CHARACTERS_MAX,
    OPENAI_METADATA_MAX,
    OPENAI_STOP_CHARACTERS_MAX,
    OPENAI_STOPS_MAX,
    PRED_BIAS_MAX,
    PRED_LOGPROBS_MAX,
)

from symphony_runtime.chat_escaping import ROLES
from symphony_runtime.gateway.openai.errors import OpenAIError, refused
from symphony_runtime.gateway.openai.requests.constraints import read_constraint
from symphony_runtime.gateway.openai.requests.fields import Fields
from symphony_runtime.gateway.openai.requests.limits import Room, named
from symphony_runtime.gateway.openai.requests.model import Model

# Taken and without effect here: they ask for nothing that would be answered differently.
_IGNORED = {"user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key",
            "prompt_cache_retention", "request_id", "priority", "verbosity"}  # fmt: skip
_FIXED = "the same for every tenant"
# Taken only with the value that asks for nothing.
_ONLY: dict[str, tuple[Any, ...]] = {
    "suffix": ("",),
    "tools": ([],),
    "tool_choice": ("none", "auto"),
    "functions": ([],),
    "function_call": ("none", "auto"),
    "parallel_tool_calls": (True, False),
    "modalities": (["text"],),
    "repetition_penalty": (1,),
    "length_penalty": (1,),
    "use_beam_search": (False,),
    "skip_special_tokens": (True,),
    "spaces_between_special_tokens": (True,),
    "include_stop_str_in_output": (False,),
    "add_generation_prompt": (True,),
    "continue_final_message": (False,),
    "background": (False,),
    "include": ([],),
    "reasoning": ({},),
    "truncation": ("disabled",),
}


@dataclass(frozen=True, slots=True)
class ParsedRequest:
    """A request for the shipped program. `choices`: how many answers it gets."""

    job: bytes
    choices: int
    stream: bool
    include_usage: bool


def parse_completion(body: dict[str, Any], model: Model, room: Room) -> ParsedRequest:
    """Return the job of a `/v1/completions` body.

    Raises:
        OpenAIError: 400.
    """
    fields = Fields(body, _IGNORED, _ONLY)
    prompts = _prompts(fields.take("prompt"), model)
    job = _common(fields, model, room, default=OPENAI_COMPLETION_TOKENS_DEFAULT, least=0)
    job["prompts"] = prompts
    if fields.flag("add_special_tokens", default=True):
        job["prefix"] = model.prefix
    job["echo"] = fields.flag("echo")
    job["ids"] = fields.flag("return_token_ids")
    read_constraint(fields, job, model.eos)
    most, limit = room.answers_max()
    best_of = fields.integer("best_of", job["n"], job["n"], most, named(limit))
    logprobs = fields.optional_integer("logprobs", 0, PRED_LOGPROBS_MAX, _FIXED)
    if logprobs is not None:
        job["logprobs"] = logprobs
    stream, include_usage = _stream(fields)
    if best_of > job["n"] and stream:
        raise refused("`best_of` cannot be streamed", "best_of")
    if job["ids"] and stream:
        raise refused("`return_token_ids` is for answers that are not streamed", "return_token_ids")
    job["best_of"] = best_of
    fields.end()
    room.check_answers(len(prompts), best_of, logprobs)
    return _wanted(job, len(prompts) * job["n"], stream, include_usage)


def parse_chat(body: dict[str, Any], model: Model, room: Room) -> ParsedRequest:
    """Return the job of a `/v1/chat/completions` body.

    Raises:
        OpenAIError: 400.
    """
    fields = Fields(body, _IGNORED, _ONLY)
    messages = read_messages(fields.take("messages"), "messages")
    job = _common(fields, model, room, default=None, least=1)
    job["messages"] = pack(messages)
    read_constraint(fields, job, model.eos)
    top = fields.optional_integer("top_logprobs", 0, PRED_LOGPROBS_MAX, _FIXED)
    if fields.flag("logprobs"):
        job["logprobs"] = top or 0
    elif top is not None:
        raise refused("`top_logprobs` needs `logprobs: true`", "top_logprobs")
    stream, include_usage = _stream(fields)
    fields.end()
    room.check_answers(1, job["n"], job.get("logprobs"))
    return _wanted(job, job["n"], stream, include_usage)


def parse_response(body: dict[str, Any], model: Model, room: Room) -> ParsedRequest:
    """Return the job of a `/v1/responses` body.

    Raises:
        OpenAIError: 400.
    """
    _check_told(body)
    fields = Fields(body, _IGNORED, _ONLY)
    asked = fields.take("input")
    messages = [{"role": "user", "content": asked}] if isinstance(asked, str) else _items(asked)
    instructions = fields.take("instructions", "")
    if not isinstance(instructions, str):
        raise refused("`instructions` must be a string", "instructions")
    if instructions:
        messages = [{"role": "system", "content": instructions}, *messages]
    job = _common(fields, model, room, default=None, least=1, most="max_output_tokens")
    if job["n"] != 1:
        raise refused("a response is one answer", "n")
    read_constraint(fields, job, model.eos, response=True)
    job["messages"] = pack(messages)
    stream, _ = _stream(fields)
    fields.end()
    return _wanted(job, 1, stream, include_usage=False)


def _items(value: Any) -> list[dict[str, str]]:
    for i, item in enumerate(value if isinstance(value, list) else []):
        if isinstance(item, dict) and item.get("type", "message") != "message":
            raise refused(f"items of type {item['type']!r} are not supported", f"input[{i}]")
    return read_messages(value, "input")


def parse_for_program(body: dict[str, Any], raw: bytes) -> ParsedRequest:
    """Return the job of a program of the tenant's own: the request as it came.

    Raises:
        OpenAIError: 400, it wants more than one answer, or its stream options are wrong.
    """
    # What else the request may say is the program's business.
    known = ("stream", "stream_options", "n")
    fields = Fields({key: body[key] for key in known if key in body}, set(), {})
    number = fields.take("n", 1)
    if number is True or number != 1:
        raise refused("a program gives one answer: `n` must be 1", "n")
    stream, include_usage = _stream(fields)
    return ParsedRequest(raw, 1, stream, include_usage)


def _check_told(body: dict[str, Any]) -> None:
    """Refuse what a response could not tell its client again, or not in a few lines."""
    metadata, user = body.get("metadata") or {}, body.get("user") or ""
    if not isinstance(metadata, dict) or len(metadata) > OPENAI_METADATA_MAX:
        raise refused(
            f"`metadata` must be an object of at most {OPENAI_METADATA_MAX} texts", "metadata"
        )
    for name, value in [*metadata.items(), ("user", user)]:
        if not isinstance(value, str) or len(name) + len(value) > OPENAI_METADATA_CHARACTERS_MAX:
            words = "`user` and each of `metadata` is a text of at most"
            most = f"{OPENAI_METADATA_CHARACTERS_MAX} characters"
            raise refused(f"{words} {most}", "user" if name == "user" else "metadata")
    pack([metadata, user])


def read_messages(value: Any, param: str) -> list[dict[str, str]]:
    """Return a conversation as the chat template takes it: content is text.

    Raises:
        OpenAIError: 400.
    """
    if not isinstance(value, list) or not value:
        raise refused(f"`{param}` must be a list of messages, one at least", param)
    return [_message(item, f"{param}[{i}]") for i, item in enumerate(value)]


def pack(value: Any) -> bytes:
    """Return a job, or messages, as the program reads them.

    Raises:
        OpenAIError: 400, text in it is not Unicode.
    """
    try:
        packed: bytes = msgpack.packb(value)
    except UnicodeEncodeError as error:
        raise refused("the request holds a lone surrogate, which is no character") from error
    return packed


def _wanted(job: dict[str, Any], choices: int, stream: bool, include_usage: bool) -> ParsedRequest:
    job["stream"] = stream
    return ParsedRequest(pack(job), choices, stream, include_usage)


# --- Prompts -------------------------------------------------------------------------------------
def _prompts(value: Any, model: Model) -> list[str | bytes]:
    if isinstance(value, str):
        return [value]
    if not isinstance(value, list) or not value:
        raise refused("`prompt` must be a string, a list of strings, token ids, or a list of "
                      "lists of token ids", "prompt")  # fmt: skip
    if isinstance(value[0], int):
        return [_token_ids(value, model)]
    return [item if isinstance(item, str) else _token_ids(item, model) for item in value]


def _token_ids(value: Any, model: Model) -> bytes:
    # There may be very many: all at once.
    if not isinstance(value, list) or not value or not {int}.issuperset(map(type, value)):
        raise refused("`prompt` must hold strings, or non-empty lists of token ids", "prompt")
    if min(value) < 0 or max(value) >= model.vocab_size:
        raise refused(f"a token id in `prompt` must be below {model.vocab_size}", "prompt")
    return struct.pack(f"<{len(value)}I", *value)


def _message(value: Any, param: str) -> dict[str, str]:
    if not isinstance(value, dict) or not isinstance(value.get("role"), str):
        raise refused(f"`{param}` must be an object with a `role`", param)
    if value["role"] not in ROLES:
        raise refused(f"`role` must be one of {', '.join(sorted(ROLES))}", f"{param}.role")
    for key in ("tool_calls", "function_call", "tool_call_id", "audio", "refusal"):
        if value.get(key):
            raise refused(f"`{key}` is not supported", f"{param}.{key}")
    message = {"role": value["role"], "content": _content(value.get("content"), param)}
    if isinstance(value.get("name"), str):
        message["name"] = value["name"]
    return message


def _content(value: Any, param: str) -> str:
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    parts: list[Any] = value if isinstance(value, list) else [None]
    texts = [part["text"] for part in parts if isinstance(part, dict) and _is_text(part)]
    if len(texts) != len(parts):
        raise refused("content must be a string or a list of text parts", f"{param}.content")
    return "".join(texts)


def _is_text(part: dict[str, Any]) -> bool:
    kinds = ("text", "input_text", "output_text")
    return part.get("type") in kinds and isinstance(part.get("text"), str)


# --- What both have ------------------------------------------------------------------------------
def _common(
    fields: Fields,
    model: Model,
    room: Room,
    default: int | None,
    least: int,
    most: str = "max_completion_tokens",
) -> dict[str, Any]:
    tokens, kv_tokens = room.limits["tokens"], room.limits["kv_tokens"]
    job: dict[str, Any] = {"context": model.context, "tokens": tokens, "kv_tokens": kv_tokens}
    fields.skip("model")
    answers, limit = room.answers_max()
    job["n"] = fields.integer("n", 1, 1, answers, named(limit))
    newer = fields.optional_integer(most, least, tokens, named("tokens"))
    older = fields.optional_integer("max_tokens", least, tokens, named("tokens"))
    asked = older if newer is None else newer
    job["max"] = default if asked is None else asked
    job["min"] = fields.integer("min_tokens", 0, 0, tokens, named("tokens"))
    if job["max"] is not None and job["min"] > job["max"]:
        raise refused("`min_tokens` is above `max_tokens`", "min_tokens")
    _sampling(fields, job)
    job["stop"] = _stops(fields.take("stop", None))
    ends = list(_stop_tokens(fields.take("stop_token_ids", None), model))
    job["ends"] = ends if fields.flag("ignore_eos") else ends + list(model.eos)
    job["bias"] = _bias(fields.take("logit_bias", None), model)
    _penalties(fields, job)
    return job


def _sampling(fields: Fields, job: dict[str, Any]) -> None:
    temperature = fields.number("temperature", 1.0, 0.0, 100.0)
    top_k = fields.integer("top_k", 0, -1, 2**31 - 1)
    top_p = fields.number("top_p", 1.0, 0.0, 1.0)
    min_p = fields.number("min_p", 0.0, 0.0, 1.0)
    seed = fields.optional_integer("seed", -(2**63), 2**64 - 1)
    if temperature == 0.0:
        return
    sample = {"temperature": temperature, "top_k": max(top_k, 0), "top_p": top_p, "min_p": min_p}
    if seed is not None:
        sample["seed"] = seed % 2**64
    job["sample"] = sample


def _penalties(fields: Fields, job: dict[str, Any]) -> None:
    job["presence"] = fields.number("presence_penalty", 0.0, -2.0, 2.0)
    job["frequency"] = fields.number("frequency_penalty", 0.0, -2.0, 2.0)
    if job["presence"] == job["frequency"] == 0.0:
        return
    room = PRED_BIAS_MAX - len(job["bias"]) - len(job["ends"])
    if job["max"] is not None and job["max"] > room:
        raise refused(f"with penalties an answer has at most {room} tokens", "max_tokens")
    job["most"] = room


def _stops(value: Any) -> list[str]:
    stops = [value] if isinstance(value, str) else value or []
    if not isinstance(stops, list) or len(stops) > OPENAI_STOPS_MAX:
        raise refused(
            f"`stop` must be a string or a list of at most {OPENAI_STOPS_MAX} strings", "stop"
        )
    for stop in stops:
        if not isinstance(stop, str) or len(stop) > OPENAI_STOP_CHARACTERS_MAX:
            raise refused(
                f"each of `stop` must be a string, {OPENAI_STOP_CHARACTERS_MAX} at most", "stop"
            )
    return [stop for stop in stops if stop]


def _stop_tokens(value: Any, model: Model) -> list[int]:
    tokens = value or []
    if not isinstance(tokens, list) or not {int}.issuperset(map(type, tokens)):
        raise refused("`stop_token_ids` must be a list of token ids", "stop_token_ids")
    if tokens and not (min(tokens) >= 0 and max(tokens) < model.vocab_size):
        raise refused(f"a stop token id must be below {model.vocab_size}", "stop_token_ids")
    if len(tokens) > OPENAI_STOPS_MAX:
        raise refused(f"`stop_token_ids` has at most {OPENAI_STOPS_MAX} items", "stop_token_ids")
    return tokens


def _bias(value: Any, model: Model) -> dict[int, float]:
    if value is None:
        return {}
    if not isinstance(value, dict) or len(value) > PRED_BIAS_MAX // 2:
        raise refused(f"`logit_bias` must be an object of at most {PRED_BIAS_MAX // 2} tokens",
                      "logit_bias")  # fmt: skip
    return dict(_bias_pair(key, bias, model) for key, bias in value.items())


def _bias_pair(key: str, bias: Any, model: Model) -> tuple[int, float]:
    token = int(key) if key.isascii() and key.isdigit() and len(key) < 10 else model.vocab_size
    if token >= model.vocab_size:
        raise refused(f"a key of `logit_bias` must be a token id below {model.vocab_size}",
                      "logit_bias")  # fmt: skip
    if isinstance(bias, bool) or not isinstance(bias, (int, float)) or not -100 <= bias <= 100:
        raise refused("a value of `logit_bias` must be a number from -100 to 100", "logit_bias")
    return token, float(bias)


def _stream(fields: Fields) -> tuple[bool, bool]:
    stream = fields.flag("stream")
    options = fields.take("stream_options", None)
    if options is None:
        return stream, False
    if not isinstance(options, dict):
        raise refused("`stream_options` must be an object", "stream_options")
    if not stream:
        raise refused("`stream_options` needs `stream: true`", "stream_options")
    inner = Fields(options, {"include_obfuscation"}, {"continuous_usage_stats": (False,)})
    include_usage = inner.flag("include_usage")
    inner.end()
    return stream, include_usage


def model_of(body: Any) -> str:
    """Return the model that a body names.

    Raises:
        OpenAIError: 400.
    """
    if not isinstance(body, dict):
        raise refused("the body must be a JSON object")
    model = body.get("model")
    if not isinstance(model, str):
        raise refused("you must provide a `model`", "model")
    return model


def no_such_model(name: str) -> OpenAIError:
    """There is none, or it is another tenant's: the two look the same."""
    message = f"The model `{name}` does not exist or you do not have access to it."
    return OpenAIError(404, message, param="model", code="model_not_found")
