"""How families of models write tool calls and reasoning: data, which the shipped program parses.

A model's format is the first in `TOOL_FORMATS` whose sign stands in its chat template; the last one
is for all others. An operator may name another (`symphony serve --tool-format`).
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final


@dataclass(frozen=True, slots=True)
class ToolFormat:
    """A family's calls: `begin` opens one, or a list of them (`listed`), and `end` closes it.

    args             stands between a call's name and its arguments, and a call is nothing else; ""
                     if a call is a JSON object
    opened, closed   the text between the markers and a call, as the family's templates write it
    between          the text between two calls; "" if the family writes only one
    bare             calls may stand at the answer's beginning without `begin`
    arguments        the key of a call's arguments
    id_characters    letters and digits of a call's id
    in_template      the chat template writes the definitions; else they go into the system turn
    """

    name: str
    signs: tuple[str, ...]
    without: str = ""  # a text that shows that it is another format
    begin: str = ""
    end: str = ""
    opened: str = ""
    closed: str = ""
    between: str = ""
    listed: bool = False
    bare: bool = False
    arguments: str = "arguments"
    id_characters: int = 24
    in_template: bool = True
    args: str = ""

    def parser(self, names: list[str], *, single: bool) -> dict[str, Any]:
        """Return what the program's parser needs."""
        return {
            "begin": self.begin,
            "end": self.end,
            "args": self.args,
            "listed": self.listed,
            "bare": self.bare,
            "names": names,
            "single": single,
        }


# Sources: the chat templates that the families publish with their models.
TOOL_FORMATS: Final = (
    ToolFormat(  # Hermes 2 Pro and later, Qwen2.5, Qwen3
        "hermes", ("<tool_call>",), "<function=", "<tool_call>", "</tool_call>", "\n", "\n", "\n"
    ),
    ToolFormat(  # Mistral's instruct models up to tokenizer v7
        "mistral", ("[TOOL_CALLS]",), "[ARGS]", "[TOOL_CALLS]",
        between=", ", listed=True, id_characters=9,
    ),
    ToolFormat(  # Mistral's models from tokenizer v11 on
        "mistral11", ("[ARGS]",), "", "[TOOL_CALLS]", args="[ARGS]", id_characters=9
    ),
    ToolFormat(  # Llama 3.1 to 3.3: one call an answer
        "llama3", ('{"name": function name, "parameters": dictionary',), "",
        "<|python_tag|>", bare=True, arguments="parameters",
    ),
    ToolFormat("json", (), between="\n", bare=True, in_template=False),
)  # fmt: skip
TOOL_FORMAT_NAMES: Final = tuple(each.name for each in TOOL_FORMATS)
# What opens and closes reasoning; a model reasons if its chat template knows the end.
_THINK_MARKERS: Final = (("<think>", "</think>"), ("[THINK]", "[/THINK]"))


@dataclass(frozen=True, slots=True)
class AnswerFormat:
    """How a model writes its answers. `added` are the tokenizer's added tokens, by their texts."""

    tools: ToolFormat = TOOL_FORMATS[-1]
    think: tuple[str, str] | None = None
    added: Mapping[str, int] | None = None
    special: frozenset[str] = frozenset()  # of the added: those that are no text

    def spelt(self) -> dict[int, str]:
        """Return the special tokens among the markers, which the program has to spell."""
        tools = self.tools
        markers = {tools.begin, tools.end, tools.args, *(self.think or ())} & self.special
        return {(self.added or {})[marker]: marker for marker in sorted(markers)}

    def literal(self, marker: str) -> str:
        """Return a marker in a Lark grammar. An added token is not its text there."""
        token = (self.added or {}).get(marker)
        return json.dumps(marker) if token is None else f"<[{token}]>"


def detect_format(template: str | None, tokenizer: Mapping[str, Any], name: str) -> AnswerFormat:
    """Return the format of a model's answers; `name` is a tool format, or auto."""
    template = template or ""
    added = tokenizer.get("added_tokens") or ()
    return AnswerFormat(
        next(each for each in TOOL_FORMATS if _fits(each, template, name)),
        next((pair for pair in _THINK_MARKERS if pair[1] in template), None),
        {token["content"]: token["id"] for token in added},
        frozenset(token["content"] for token in added if token.get("special")),
    )


def _fits(form: ToolFormat, template: str, name: str) -> bool:
    if name != "auto":
        return form.name == name
    shown = any(sign in template for sign in form.signs) and "tools" in template
    return not form.signs or (shown and not (form.without and form.without in template))
