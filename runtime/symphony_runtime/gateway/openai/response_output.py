"""The items of a response's output: reasoning, a message, and calls of tools."""

from dataclasses import dataclass, field
from typing import Any

from symphony_runtime.gateway.openai.requests.response_tools import CalledTool, custom_input

MESSAGE, REASONING, CALL, CUSTOM_CALL = "message", "reasoning", "function_call", "custom_tool_call"
# The beginnings of items' ids; those after the first four are of input only.
PREFIXES = {
    MESSAGE: "msg", REASONING: "rs", CALL: "fc", CUSTOM_CALL: "ctc",
    "function_call_output": "fco", "custom_tool_call_output": "ctco",
}  # fmt: skip
# The events of an item's text: their field, and what they are called.
TEXTS = {MESSAGE: "output_text", REASONING: "reasoning_text"}


@dataclass(slots=True)
class Item:
    """An item of the output; `text` are the pieces of its text, or of a call's arguments."""

    kind: str
    id: str
    index: int
    call: str = ""
    name: str = ""
    namespace: str | None = None
    text: list[str] = field(default_factory=list)
    logprobs: list[dict[str, Any]] = field(default_factory=list)

    @property
    def place(self) -> dict[str, Any]:
        place: dict[str, Any] = {"item_id": self.id, "output_index": self.index}
        return {**place, "content_index": 0} if self.kind in TEXTS else place

    @property
    def whole(self) -> str:
        """The text so far; of a custom tool's call its input."""
        text = "".join(self.text)
        return custom_input(text) if self.kind == CUSTOM_CALL and text else text

    def view(self, status: str) -> dict[str, Any]:
        text = self.whole
        view: dict[str, Any] = {"id": self.id, "type": self.kind, "status": status}
        if self.kind not in TEXTS:
            given = "input" if self.kind == CUSTOM_CALL else "arguments"
            view |= {"call_id": self.call, "name": self.name, given: text}
            return view if self.namespace is None else {**view, "namespace": self.namespace}
        content = [] if status == "in_progress" else [self.part(text)]
        if self.kind == REASONING:
            return {**view, "summary": [], "content": content}
        return {**view, "role": "assistant", "content": content}

    def part(self, text: str) -> dict[str, Any]:
        part: dict[str, Any] = {"type": TEXTS[self.kind], "text": text}
        if self.kind == REASONING:
            return part
        return {**part, "annotations": [], "logprobs": self.logprobs}


def call_item(item_id: str, index: int, call: str, name: str, called: CalledTool | None) -> Item:
    """Return the item of a call; `called`: the client knows the tool otherwise than the model."""
    if called is None:
        return Item(CALL, item_id.format("fc"), index, call, name)
    kind = CUSTOM_CALL if called.custom else CALL
    made = item_id.format(PREFIXES[kind])
    return Item(kind, made, index, call, called.name, called.namespace)
