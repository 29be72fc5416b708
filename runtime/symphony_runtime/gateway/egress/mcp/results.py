"""What a tool answered, as a program gets it: one text."""

import json
from typing import Any

from mcp_types import (
    AudioContent,
    CallToolResult,
    EmbeddedResource,
    ImageContent,
    ResourceLink,
    TextContent,
    TextResourceContents,
)

Block = TextContent | ImageContent | AudioContent | ResourceLink | EmbeddedResource


def content_of(result: CallToolResult) -> str:
    """Return a result's blocks, a line break between them; what is no text is named in brackets.

    A result that has structured content only is its JSON.
    """
    if not result.content and result.structured_content is not None:
        return _json(result.structured_content)
    return "\n".join(map(_text, result.content))


def _json(value: dict[str, Any]) -> str:
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False)
    except ValueError:
        return "[numbers that JSON cannot say]"  # infinite, or none: a server may send them


def _text(block: Block) -> str:
    if isinstance(block, TextContent):
        return block.text
    if isinstance(block, ImageContent | AudioContent):
        return f"[{block.mime_type}]"
    if isinstance(block, ResourceLink):
        return f"[{block.uri}]"
    if isinstance(block.resource, TextResourceContents):
        return block.resource.text
    return f"[{block.resource.uri}]"
