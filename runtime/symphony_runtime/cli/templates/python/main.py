"""{{name}}: continues the text that it gets."""

import symphony
from symphony import Sampling, Session


@symphony.program
async def main(prompt: str = "", max_tokens: int = 64):
    if not prompt:
        return "Give me a text to continue."
    # Of a model that chats, `Session.chat()` and `user(prompt)` get an answer.
    text = Session(prompt)
    await text.stream(Sampling(max_tokens=max_tokens), symphony.send)
    return None  # all is sent
