"""Templates, and the turns of a conversation."""

from symphony.model import Message, chat_now


def fill(template, values):
    """Return the template with each `{name}` of these replaced by its text.

    Other braces stay, and what was put in is not looked at again.
    """
    filled, rest = [], template
    while True:
        at = rest.find("{")
        if at < 0:
            break
        end = rest.find("}", at)
        name = rest[at + 1 : end] if end >= 0 else None
        known = name in values
        filled.append(rest[:at] + (values[name] if known else "{"))
        rest = rest[end + 1 if known else at + 1 :]
    return "".join(filled) + rest


class Turns:
    """The turns of a conversation, for the model's own chat template."""

    def __init__(self, messages=None):
        self.messages = [] if messages is None else messages  # oldest first

    def system(self, text):
        """Add what the model is told about its part."""
        return self.turn("system", text)

    def user(self, text):
        """Add what the user says."""
        return self.turn("user", text)

    def assistant(self, text):
        """Add what the model has said."""
        return self.turn("assistant", text)

    def turn(self, role, text):
        """Add a turn of any role."""
        self.messages.append(Message(role, text))
        return self

    def copy(self):
        return Turns(list(self.messages))

    async def tokens(self):
        """Return the conversation's tokens, ready for the answer."""
        return chat_now(self.messages)
