# symphony: {"description": "A conversation: each message is answered."}
"""{{name}}: a conversation that keeps its KV cache between the messages."""

import symphony
from symphony import Sampling, Session, process


@symphony.program
async def main(system: str = "Answer in one sentence.", max_tokens: int = 128):
    chat, sampling = Session.chat(system), Sampling(max_tokens=max_tokens)
    while (message := await process.recv_open()) is not None:
        await answer(chat, message.decode(), sampling)


async def answer(chat: Session, said: str, sampling: Sampling):
    """Answer one message, and send the answer as it is written."""
    await chat.user(said)
    await chat.stream(sampling, symphony.send)
    await symphony.send("\n")  # the end of an answer
