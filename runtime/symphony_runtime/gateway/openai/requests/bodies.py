"""Bodies of the OpenAI routes, as models. A field that is null counts as left out.

Unknown fields are refused by name, so that no request is answered as if it had asked for less.
"""

import json
import re
from collections.abc import Container, Mapping
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field
from symphony_kernel.protocol.limits import (
    GUIDED_CHOICES_MAX,
    OPENAI_METADATA_MAX,
    OPENAI_STOP_CHARACTERS_MAX,
    OPENAI_STOPS_MAX,
    PRED_BIAS_MAX,
    PRED_LOGPROBS_MAX,
)

from symphony_runtime.gateway.openai.errors import OpenAIError, refused
from symphony_runtime.gateway.openai.requests.response_tools import ResponseTools
from symphony_runtime.gateway.openai.requests.tools import (
    ResponseToolChoice,
    ToolChoice,
    Tools,
)
from symphony_runtime.validation import FieldError, StrictModel, check_model, fields_at_most

# Taken without effect: they change nothing in an answer of this server.
IGNORED = {"user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key",
           "prompt_cache_options", "prompt_cache_retention", "prediction", "request_id",
           "priority", "verbosity", "client_metadata", "max_tool_calls"}  # fmt: skip
# Taken only with the values that ask for nothing.
NEUTRAL: dict[str, tuple[Any, ...]] = {
    "suffix": ("",),
    "tools": ([],),
    "tool_choice": ("none", "auto"),
    "functions": ([],),
    "function_call": ("none", "auto"),
    "parallel_tool_calls": (True, False),
    "modalities": (["text"],),
    "length_penalty": (1,),
    "use_beam_search": (False,),
    "skip_special_tokens": (True,),
    "spaces_between_special_tokens": (True,),
    "include_stop_str_in_output": (False,),
    "add_generation_prompt": (True,),
    "continue_final_message": (False,),
    "background": (False,),
    "include": ([], ["reasoning.encrypted_content"]),
    "truncation": ("disabled",),
}
_Text = Annotated[str, Field(min_length=1)]
_Stop = Annotated[str, Field(max_length=OPENAI_STOP_CHARACTERS_MAX)]
_Stops = Annotated[list[_Stop], Field(max_length=OPENAI_STOPS_MAX)]
_Choices = Annotated[list[_Text], Field(min_length=1, max_length=GUIDED_CHOICES_MAX)]
_Bias = Annotated[float, Field(ge=-100, le=100)]
_Biases = Annotated[
    dict[str, _Bias], Field(max_length=PRED_BIAS_MAX // 2), fields_at_most(PRED_BIAS_MAX // 2)
]
_Metadata = Annotated[
    dict[str, str], Field(max_length=OPENAI_METADATA_MAX), fields_at_most(OPENAI_METADATA_MAX)
]
_Penalty = Annotated[float, Field(ge=-2, le=2)]
_Share = Annotated[float, Field(ge=0, le=1)]
_Count = Annotated[int, Field(ge=0)]
_Logprobs = Annotated[int, Field(ge=0, le=PRED_LOGPROBS_MAX)]

Summary = Literal["auto", "concise", "detailed"]
ReasoningEffort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]
# What a response may be asked to have besides. Without effect but for the log-probabilities: what
# the others are of is never in an answer, and reasoning is sent as its text.
Included = Literal[
    "message.output_text.logprobs", "reasoning.encrypted_content", "file_search_call.results",
    "web_search_call.results", "web_search_call.action.sources", "message.input_image.image_url",
    "computer_call_output.output.image_url", "code_interpreter_call.outputs",
]  # fmt: skip


class StreamOptions(StrictModel):
    """Options of a stream; `include_obfuscation` has no effect."""

    include_usage: bool | None = None
    include_obfuscation: Any = None
    continuous_usage_stats: bool | None = None


class Body(BaseModel):
    """The fields that the gateway reads of every request, also of one for a tenant's program."""

    model_config = ConfigDict(strict=True, frozen=True)
    model: str = Field(description="the model, or a program's name or id")
    n: int = Field(1, ge=1)
    stream: bool = False
    stream_options: StreamOptions | None = None


class GenerationBody(Body):
    """The fields that all three routes share."""

    max_tokens: _Count | None = None
    min_tokens: _Count = 0
    temperature: float = Field(1.0, ge=0, le=100)
    top_k: int = Field(0, ge=-1, le=2**31 - 1)
    top_p: _Share = 1.0
    min_p: _Share = 0.0
    seed: int | None = Field(None, ge=-(2**63), le=2**64 - 1)
    # A default made by a call is not copied for each request.
    stop: _Stop | _Stops = Field(default_factory=list)
    stop_token_ids: list[int] = Field(default_factory=list, max_length=OPENAI_STOPS_MAX)
    ignore_eos: bool = False
    logit_bias: _Biases = Field(default_factory=dict)
    presence_penalty: _Penalty = 0.0
    frequency_penalty: _Penalty = 0.0
    repetition_penalty: float = Field(1.0, gt=0.001, le=1000)
    guided_json: dict[str, Any] | _Text | None = None
    guided_regex: _Text | None = None
    guided_grammar: _Text | None = None
    guided_choice: _Choices | None = None


class CompletionBody(GenerationBody):
    """The body of `/v1/completions`."""

    prompt: Any = Field(description="a string, token ids, or a list of several of either")
    max_completion_tokens: _Count | None = None
    best_of: int | None = Field(None, ge=1)
    logprobs: _Logprobs | None = None
    prompt_logprobs: _Logprobs | None = None
    suffix: str = ""
    echo: bool = False
    add_special_tokens: bool = True
    return_token_ids: bool = False
    response_format: dict[str, Any] | None = None


class ConversationBody(GenerationBody):
    """The fields of the routes that have a conversation."""

    parallel_tool_calls: bool = True
    reasoning_effort: ReasoningEffort | None = None
    thinking_token_budget: _Count | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool = False


class ReasoningOptions(StrictModel):
    """How much a response reasons; the others have no effect, and no summaries are made."""

    effort: ReasoningEffort | None = None
    summary: Summary | Literal["none"] | None = None
    generate_summary: Summary | None = None
    context: str | None = None
    mode: str | None = None


class ChatBody(ConversationBody):
    """The body of `/v1/chat/completions`."""

    messages: Any = Field(description="a list of messages, {role, content, tool_calls?, ..}")
    max_completion_tokens: Annotated[int, Field(ge=1)] | None = None
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    logprobs: bool = False
    top_logprobs: _Logprobs | None = None
    prompt_logprobs: _Logprobs | None = None
    response_format: dict[str, Any] | None = None
    tools: Tools = Field(default_factory=list)
    tool_choice: ToolChoice | None = None


class ResponseBody(ConversationBody):
    """The body of `/v1/responses`."""

    input: Any = Field(description="a string, or a list of messages, calls and their outputs")
    instructions: str = ""
    max_output_tokens: Annotated[int, Field(ge=1)] | None = None
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    text: dict[str, Any] | None = None
    tools: ResponseTools = Field(default_factory=list)
    tool_choice: ResponseToolChoice | None = None
    reasoning: ReasoningOptions | None = None
    include: list[Included] = Field(default_factory=list, max_length=16)
    top_logprobs: _Logprobs | None = None
    previous_response_id: str | None = None
    store: bool = True
    background: bool = False
    metadata: _Metadata = Field(default_factory=dict)
    user: str = ""


AnyBody = TypeVar("AnyBody", bound=Body)
AnyModel = TypeVar("AnyModel", bound=BaseModel)


def read_body(kind: type[AnyBody], body: dict[str, Any]) -> AnyBody:
    """Return a body for the model; OpenAIError 400."""
    checked = read_fields(kind, body)
    options = checked.stream_options
    if options is not None and not checked.stream:
        raise refused("`stream_options` needs `stream: true`", "stream_options")
    if options is not None and options.continuous_usage_stats:
        raise refused("`continuous_usage_stats` is not supported; it may only be false",
                      "continuous_usage_stats", "unsupported_parameter")  # fmt: skip
    return checked


def read_fields(
    kind: type[AnyModel],
    body: dict[str, Any],
    ignored: Container[str] = IGNORED,
    neutral: Mapping[str, tuple[Any, ...]] = NEUTRAL,
) -> AnyModel:
    """Return a model of a body's fields, without those that have no effect; OpenAIError 400."""
    given, fields = {}, kind.model_fields
    for name, value in body.items():
        if value is None:
            continue
        if name in fields:
            # JSON does not tell 5.0 from 5, and some clients write integers so.
            whole = type(value) is float and value.is_integer()
            given[name] = int(value) if whole else value
        elif name in ignored:
            continue
        elif name not in neutral:
            raise _unrecognized(name)
        elif value not in neutral[name]:
            taken = " and ".join(map(json.dumps, neutral[name]))
            raise refused(f"`{name}` is not supported; of its values only {taken} may be given",
                          name, "unsupported_parameter")  # fmt: skip
    try:
        return check_model(kind, given, null=False)
    except FieldError as error:
        if error.unknown:
            raise _unrecognized(error.unknown[0]) from error
        raise refused(str(error), re.split(r"[.[]", error.field)[0]) from error


def _unrecognized(name: str) -> OpenAIError:
    return refused(f"Unrecognized request argument supplied: {name}", name, "unknown_parameter")
