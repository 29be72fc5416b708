"""What the calls `chat` and `chat_with` give a chat template: messages, tools, variables.

All of it is untrusted. `texts` are the strings that a template may write, and `with_texts` changes
them, so that `chat_escaping` can mark what could become a control string.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Final

import msgpack
from symphony_kernel.protocol.errno import Errno, SyscallError
from symphony_kernel.protocol.limits import CHAT_CONTAINERS_MAX, CHAT_DEPTH_MAX
from symphony_kernel.protocol.untrusted import unpack_untrusted

from symphony_runtime.texts.chat_escaping import texts_of, with_texts

_MESSAGE_KEYS: Final = frozenset({"role", "content", "name", "tool_calls", "tool_call_id"})
_MESSAGE_KEYS_WITH: Final = _MESSAGE_KEYS | {"reasoning_content"}
_KEYS: Final = frozenset(
    {"messages", "tools", "variables", "add_generation_prompt", "continue_final_message"}
)


@dataclass(frozen=True, slots=True)
class Conversation:
    """The values of a chat template.

    `prompt` says whether the template begins an answer; None: unless the assistant spoke last. If
    it `continues`, the filled template ends within the last message, at its content's end.
    """

    messages: list[dict[str, Any]]
    tools: list[Any] | None = None
    variables: dict[str, Any] = field(default_factory=dict)
    prompt: bool | None = None
    continues: bool = False

    def texts(self) -> list[str]:
        """Return all strings that are data, keys too. Raise EINVAL for other data than text."""
        return [
            *texts_of(self.messages, _strings),
            *_strings(self.tools),
            *_strings(self.variables),
        ]

    def with_texts(self, change: Callable[[Any], Any]) -> "Conversation":
        """Return the conversation with `change` applied to each value that is data."""
        # A variable's name is the template's word, its value is not.
        variables = {name: change(value) for name, value in self.variables.items()}
        messages = with_texts(self.messages, change)
        return replace(self, messages=messages, tools=change(self.tools), variables=variables)

    def values(self, names: dict[str, Any], end: str) -> dict[str, Any]:
        """Return the template's variables; `names` are the model's own."""
        messages, prompt = self.messages, self.prompt
        if self.continues:
            last = messages[-1]
            messages = [*messages[:-1], {**last, "content": last["content"] + end}]
        if prompt is None:
            prompt = not self.continues and self.messages[-1]["role"] != "assistant"
        own = {"messages": messages, "tools": self.tools, "add_generation_prompt": prompt}
        return {**self.variables, **names, **own}

    def cut(self, filled: str, end: str) -> str:
        """Return a filled template up to the end of a message that continues."""
        if not self.continues:
            return filled
        before, found, _ = filled.rpartition(end)
        if not found:
            raise SyscallError(Errno.EINVAL, "the chat template does not write the last message")
        return before.replace(end, "")


def read_messages(data: bytes) -> Conversation:
    """Return a conversation of msgpack messages. Raise EINVAL."""
    return Conversation(_messages(_unpacked(data), _MESSAGE_KEYS))


def read_conversation(data: bytes) -> Conversation:
    """Return a msgpack map's conversation. Raise EINVAL."""
    given = _unpacked(data)
    if not isinstance(given, dict) or not _KEYS.issuperset(given):
        raise SyscallError(Errno.EINVAL, f"a conversation must be a map of {sorted(_KEYS)}")
    messages = _messages(given.get("messages"), _MESSAGE_KEYS_WITH)
    tools, variables = given.get("tools"), given.get("variables", {})
    if not isinstance(tools, list | None) or not isinstance(variables, dict):
        raise SyscallError(Errno.EINVAL, "tools must be a list, and variables a map")
    if reserved := _KEYS.intersection(variables):
        raise SyscallError(Errno.EINVAL, f"not a variable of its own: {sorted(reserved)}")
    prompt = given.get("add_generation_prompt")
    continues = given.get("continue_final_message", False)
    if not isinstance(prompt, bool | None) or not isinstance(continues, bool):
        raise SyscallError(Errno.EINVAL, "a flag must be true or false")
    if continues and (prompt or not isinstance(messages[-1].get("content"), str)):
        raise SyscallError(Errno.EINVAL, "only a message of text continues, without a prompt")
    return Conversation(messages, tools or None, variables, prompt, continues)


def _unpacked(data: bytes) -> Any:
    try:
        return unpack_untrusted(data, CHAT_CONTAINERS_MAX)
    except ValueError as error:
        raise SyscallError(Errno.EINVAL, f"messages: {error}") from error


def _messages(messages: Any, keys: frozenset[str]) -> list[dict[str, Any]]:
    if not isinstance(messages, list) or not messages:
        raise SyscallError(Errno.EINVAL, "messages must be a list")
    for message in messages:
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            raise SyscallError(Errno.EINVAL, "a message must be a map with a role")
        if not keys.issuperset(message):
            raise SyscallError(Errno.EINVAL, f"a message has other keys than {sorted(keys)}")
    return messages


def _strings(value: Any, depth: int = 2) -> list[str]:
    """Return every string in msgpack data, keys too: a template may write both.

    Raise EINVAL for bytes and for data nested too deep.
    """
    if isinstance(value, str):
        return [value]
    if isinstance(value, bytes | msgpack.ExtType | msgpack.Timestamp) or depth > CHAT_DEPTH_MAX:
        raise SyscallError(
            Errno.EINVAL, f"messages may hold only text, nested at most {CHAT_DEPTH_MAX} deep"
        )
    if isinstance(value, dict):
        value = [*value, *value.values()]
    if isinstance(value, list):
        return [text for item in value for text in _strings(item, depth + 1)]
    return []
