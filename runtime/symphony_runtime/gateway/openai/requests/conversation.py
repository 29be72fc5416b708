"""The conversation of a request, in the form that the shipped program renders."""

from typing import Any, Final

from symphony_runtime.gateway.openai.errors import refused
from symphony_runtime.gateway.openai.formats import AnswerFormat
from symphony_runtime.gateway.openai.requests.bodies import ConversationBody
from symphony_runtime.gateway.openai.requests.json_fallback import tell_tools
from symphony_runtime.gateway.openai.requests.messages import check_depth
from symphony_runtime.gateway.openai.requests.tools import ToolUse

# Variables of a chat template that are not the client's.
_RESERVED: Final = frozenset(
    {"messages", "tools", "add_generation_prompt", "continue_final_message", "bos_token",
     "eos_token"}
)  # fmt: skip
_BEYOND_TEXT: Final = frozenset({"tool_calls", "tool_call_id", "reasoning_content"})


def conversation_of(
    request: ConversationBody,
    messages: list[dict[str, Any]],
    use: ToolUse,
    form: AnswerFormat,
    effort: str | None,
) -> dict[str, Any] | None:
    """Return what the call `chat_with` takes; None if `chat` with the messages does.

    `effort` is that of reasoning. Raises OpenAIError: 400.
    """
    variables = _variables(request, use, form, effort)
    _check_continued(request, messages)
    conversation: dict[str, Any] = {"messages": messages}
    if not form.tools.in_template:
        conversation["messages"] = tell_tools(messages, use.definitions)
    elif use.definitions:
        conversation["tools"] = list(use.definitions)
    if variables:
        conversation["variables"] = variables
    if request.add_generation_prompt is not None:
        conversation["add_generation_prompt"] = request.add_generation_prompt
    if request.continue_final_message:
        conversation["continue_final_message"] = True
    plain = not any(_BEYOND_TEXT.intersection(message) for message in messages)
    return None if plain and conversation == {"messages": messages} else conversation


def put_format(
    request: ConversationBody, use: ToolUse, form: AnswerFormat, job: dict[str, Any]
) -> None:
    """Put into a job how its answers are split into reasoning, content and calls."""
    if use.tools:
        names = [tool.name for tool in use.tools]
        job["calls"] = form.tools.parser(names, single=use.single)
    if form.think:
        job["think"] = list(form.think)
        if request.thinking_token_budget is not None:
            job["budget"] = request.thinking_token_budget
    if (use.tools or form.think) and (spelt := form.spelt()):
        job["spelt"] = spelt


def _variables(
    request: ConversationBody, use: ToolUse, form: AnswerFormat, effort: str | None
) -> dict[str, Any]:
    """Return the template's variables; families call the switch of reasoning differently."""
    given = request.chat_template_kwargs or {}
    if reserved := sorted(_RESERVED.intersection(given)):
        raise refused(f"`chat_template_kwargs` must not have {reserved[0]!r}",
                      "chat_template_kwargs")  # fmt: skip
    check_depth(given, "chat_template_kwargs")
    variables: dict[str, Any] = {}
    if effort is not None:
        reasons = effort != "none"
        variables = {"reasoning_effort": effort, "enable_thinking": reasons, "thinking": reasons}
    if form.think and (use.forced or request.thinking_token_budget == 0):
        variables |= {"enable_thinking": False, "thinking": False}
    return variables | given


def _check_continued(request: ConversationBody, messages: list[dict[str, Any]]) -> None:
    if not request.continue_final_message:
        return
    if request.add_generation_prompt:
        raise refused("an answer that continues a message has no prompt of its own: "
                      "`add_generation_prompt` must be false", "add_generation_prompt")  # fmt: skip
    last = messages[-1]
    if last["role"] != "assistant" or not last["content"] or "tool_calls" in last:
        raise refused("`continue_final_message` needs an assistant's text as the last message",
                      "continue_final_message")  # fmt: skip
