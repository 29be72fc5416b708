"""Templates, and the turns of a conversation."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from symphony.attached.run import AttachedRun, current
from symphony.sdk.model import Message, chat_in

_NAMED = re.compile(r"\{([^}]*)\}")


def fill(template: str, values: Mapping[str, str]) -> str:
    """Return the template with each `{name}` of these replaced by its text.

    Other braces stay, and what was put in is not looked at again.
    """
    filled, rest = [], template
    while (at := rest.find("{")) >= 0:
        named = _NAMED.match(rest, at)
        known = named is not None and named[1] in values
        filled.append(rest[:at] + (values[named[1]] if known and named else "{"))
        rest = rest[named.end() if known and named else at + 1 :]
    return "".join([*filled, rest])


@dataclass
class Turns:
    """The turns of a conversation, for the model's own chat template."""

    messages: list[Message] = field(default_factory=list)  # oldest first

    def system(self, text: str) -> "Turns":
        """Add what the model is told about its part."""
        return self.turn("system", text)

    def user(self, text: str) -> "Turns":
        """Add what the user says."""
        return self.turn("user", text)

    def assistant(self, text: str) -> "Turns":
        """Add what the model has said."""
        return self.turn("assistant", text)

    def turn(self, role: str, text: str) -> "Turns":
        """Add a turn of any role."""
        self.messages.append(Message(role, text))
        return self

    def copy(self) -> "Turns":
        return Turns(list(self.messages))

    async def tokens(self) -> list[int]:
        """Return the conversation's tokens, ready for the answer."""
        return await self.tokens_in(current())

    async def tokens_in(self, run: AttachedRun) -> list[int]:
        """Return the same of a run's model."""
        return await chat_in(run, self.messages)
