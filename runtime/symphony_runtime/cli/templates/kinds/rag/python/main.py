# symphony: {
#   "description": "Answers a question from the document that fits it best.",
#   "input_schema": {"type": "object", "required": ["question", "documents"], "properties": {
#     "question": {"type": "string"}, "max_tokens": {"type": "integer", "minimum": 1},
#     "documents": {"type": "array", "items": {"type": "string"}, "minItems": 1}}}
# }
"""{{name}}: answers a question from the document that fits it best, which is computed once."""

import binascii
import hashlib
import re

import symphony
from symphony import KvFile, Sampling, Save, Session, errors, model


@symphony.program
async def main(question: str, documents: list[str], max_tokens: int = 64):
    number = best(question, documents)
    text = await Session.of(await document_file(documents[number]))
    text.append("\nQuestion: " + question + "\nAnswer:")
    reply = await text.reply(Sampling(max_tokens=max_tokens))
    return {"answer": reply.text.strip(), "document": number}


def best(question: str, documents: list[str]) -> int:
    """Return the number of the document that shares most words with the question."""
    if not documents:
        raise ValueError("there are no documents")
    asked = words(question)
    shared = [len([word for word in words(text) if word in asked]) for text in documents]
    return shared.index(max(shared))  # of equal ones the first


def words(text: str) -> list[str]:
    return [word for word in re.compile("[^a-z0-9]+").split(text.lower()) if word]


async def document_file(text: str) -> KvFile:
    """Return the KV file of a document, which an earlier run may have computed."""
    path = "{{name}}/" + binascii.hexlify(hashlib.sha256(text.encode()).digest()).decode()
    try:
        return await KvFile.open(path)
    except errors.ENOENT:
        file = KvFile.create()
    await file.prefill(await model.tokenize(text))
    await file.save(path, Save.REPLACE)
    return file
