"""What a tool answered, as a program gets it: one text."""

import json

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
        return json.dumps(result.structured_content, ensure_ascii=False)
    return "\n".join(map(_text, result.content))


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
