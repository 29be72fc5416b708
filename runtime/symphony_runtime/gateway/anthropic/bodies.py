"""Bodies of Anthropic's routes, as models. A field that is null counts as left out."""

from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field
from symphony_kernel.protocol.limits import (
    OPENAI_STOP_CHARACTERS_MAX,
    OPENAI_STOPS_MAX,
    OPENAI_TOOLS_MAX,
)

from symphony_runtime.gateway.openai.requests.bodies import read_fields
from symphony_runtime.validation import StrictModel

# Taken without effect. Prefixes are found again without `cache_control`.
IGNORED: Final = {"cache_control", "diagnostics", "inference_geo", "metadata", "service_tier",
                  "user_profile_id", "workspace_id", "betas"}  # fmt: skip
# Taken only with the values that ask for nothing.
NEUTRAL: Final[dict[str, tuple[Any, ...]]] = {
    "context_management": (
        {"edits": []},
        {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
    ),
    "mcp_servers": ([],),
    "speed": ("standard",),
}
_Stop = Annotated[str, Field(min_length=1, max_length=OPENAI_STOP_CHARACTERS_MAX)]
_Share = Annotated[float, Field(ge=0, le=1)]
_Flag = bool | None
Effort = Literal["low", "medium", "high", "xhigh", "max"]


class Thinking(StrictModel):
    """Whether the model reasons; `budget_tokens` is of the type enabled alone."""

    type: Literal["enabled", "adaptive", "disabled"]
    budget_tokens: Annotated[int, Field(ge=1)] | None = None
    display: Literal["summarized", "omitted"] | None = None


class OutputFormat(StrictModel):
    """The JSON schema that an answer's text has to fit."""

    type: Literal["json_schema"]
    format_schema: dict[str, Any] = Field(alias="schema")


class OutputConfig(StrictModel):
    """How much effort an answer takes, and its format."""

    effort: Effort | None = None
    format: OutputFormat | None = None


class ToolDefinition(StrictModel):
    """A tool of the client's own. `cache_control` and `eager_input_streaming` have no effect."""

    name: Annotated[str, Field(pattern="^[a-zA-Z0-9_-]{1,128}$")]
    input_schema: dict[str, Any]
    type: Literal["custom"] | None = None
    description: str | None = None
    strict: _Flag = None
    input_examples: list[dict[str, Any]] | None = None
    cache_control: Any = None
    eager_input_streaming: Any = None
    defer_loading: Literal[False] | None = None
    allowed_callers: Annotated[list[Literal["direct"]], Field(min_length=1)] | None = None


class Choice(StrictModel):
    """The choice of tools; `name` is of the type tool alone."""

    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: _Flag = None


class PromptBody(BaseModel):
    """The body of `/v1/messages/count_tokens`."""

    model_config = ConfigDict(strict=True, frozen=True)
    model: str = Field(description="the model, or a program's name or id")
    messages: Any = Field(description="a list of messages, {role, content}")
    system: Any = Field(None, description="a text, or a list of text blocks")
    tools: Annotated[list[dict[str, Any]], Field(max_length=OPENAI_TOOLS_MAX)] = []
    tool_choice: Choice | None = None
    thinking: Thinking | None = None
    output_config: OutputConfig | None = None
    output_format: OutputFormat | None = None


class MessagesBody(PromptBody):
    """The body of `/v1/messages`."""

    max_tokens: int = Field(ge=1)
    stop_sequences: Annotated[list[_Stop], Field(max_length=OPENAI_STOPS_MAX)] = []
    stream: bool = False
    temperature: _Share = 1.0
    top_k: int = Field(0, ge=0, le=2**31 - 1)
    top_p: _Share = 1.0


def read_messages_body(body: dict[str, Any]) -> MessagesBody:
    """Return a body of `/v1/messages`; OpenAIError 400."""
    return read_fields(MessagesBody, body, IGNORED, NEUTRAL)


def read_prompt_body(body: dict[str, Any]) -> MessagesBody:
    """Return a body of `/v1/messages/count_tokens` as one that asks for a token; OpenAIError 400.

    Fields that only an answer has are without effect.
    """
    prompt = read_fields(PromptBody, body, IGNORED | MessagesBody.model_fields.keys(), NEUTRAL)
    return MessagesBody.model_construct(**dict(prompt), max_tokens=1)
