"""Jobs for the shipped program, from bodies of Anthropic's routes."""

import struct
from typing import Any

import msgpack

from symphony_runtime.gateway.anthropic.bodies import (
    MessagesBody,
    read_messages_body,
    read_prompt_body,
)
from symphony_runtime.gateway.anthropic.messages import read_choice, read_dialogue, read_tools
from symphony_runtime.gateway.openai.errors import refused
from symphony_runtime.gateway.openai.program_messages import Usage
from symphony_runtime.gateway.openai.requests.bodies import ChatBody
from symphony_runtime.gateway.openai.requests.limits import Model, RequestLimits
from symphony_runtime.gateway.openai.requests.parsing import ParsedRequest, chat_job, pack
from symphony_runtime.gateway.openai.requests.tasks import Task


def parse_messages(body: dict[str, Any], model: Model, limits: RequestLimits) -> ParsedRequest:
    """Return the job of a `/v1/messages` body; OpenAIError 400."""
    request = read_messages_body(body)
    job = _job(request, model, limits)
    # The answer ends where the context does, which `stop_reason` says then.
    job |= {"stream": request.stream, "tells": True, "clips": True}
    characters = model.answers.tools.id_characters
    return ParsedRequest(
        pack(job), 1, request.stream, include_usage=True, call_id_characters=characters
    )


def parse_count(body: dict[str, Any], model: Model, limits: RequestLimits) -> Task:
    """Return the job that counts the prompt's tokens; OpenAIError 400."""
    job = _job(read_prompt_body(body), model, limits)
    prompt = {name: job[name] for name in ("messages", "conversation") if name in job}

    def shape(data: bytes, _: Usage) -> dict[str, Any]:
        tokens, _texts = msgpack.unpackb(data)
        return {"input_tokens": len(tokens) // struct.calcsize("<I")}

    return Task(pack({"task": "tokenize", **prompt}), shape)


def _job(request: MessagesBody, model: Model, limits: RequestLimits) -> dict[str, Any]:
    messages = read_dialogue(request.system, request.messages)
    last = messages[-1] if messages else {"role": ""}
    continued = last["role"] == "assistant"
    if continued and (not last["content"] or "tool_calls" in last):
        words = "the last message is the assistant's: it must be text, which the answer continues"
        raise refused(f"`messages`: {words}", "messages")
    choice = request.tool_choice
    answer_format = _format(request)
    chat = {
        "model": request.model,
        "messages": None,
        "max_tokens": request.max_tokens,
        "temperature": request.temperature,
        "top_p": request.top_p,
        "top_k": request.top_k,
        "stop": request.stop_sequences,
        "stream": request.stream,
        "tools": read_tools(request.tools),
        "tool_choice": read_choice(choice),
        "parallel_tool_calls": not (choice and choice.disable_parallel_tool_use),
        "response_format": answer_format,
        "continue_final_message": continued,
        "chat_template_kwargs": _variables(request, model, held=answer_format is not None),
        "thinking_token_budget": request.thinking.budget_tokens if request.thinking else None,
    }
    return chat_job(ChatBody.model_validate(chat), messages, model, limits)


def _format(request: MessagesBody) -> dict[str, Any] | None:
    config = request.output_config
    given = (config and config.format) or request.output_format
    if given is None:
        return None
    return {"type": "json_schema", "json_schema": {"schema": given.format_schema}}


def _variables(request: MessagesBody, model: Model, *, held: bool) -> dict[str, Any] | None:
    """Return the template's variables for reasoning and effort.

    A model reasons where `thinking` asks for it. An answer that is `held` to a form does not.
    """
    thinking, choice, variables = request.thinking, request.tool_choice, dict[str, Any]()
    if model.answers.think:
        forced = held or (choice is not None and choice.type in ("any", "tool"))
        reasons = thinking is not None and thinking.type != "disabled" and not forced
        variables = {"enable_thinking": reasons, "thinking": reasons}
    if request.output_config and request.output_config.effort:
        variables["reasoning_effort"] = request.output_config.effort
    return variables or None
