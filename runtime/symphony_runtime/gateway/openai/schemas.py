"""The OpenAPI schemas of the OpenAI routes: what their clients rely on, not every field."""

from typing import Any

_STRING = {"type": "string"}
_INTEGER = {"type": "integer"}
_STRING_OR_NULL = {"type": ["string", "null"]}
_COUNTS = {"prompt_tokens": _INTEGER, "completion_tokens": _INTEGER, "total_tokens": _INTEGER}

OPENAI_SCHEMAS: dict[str, Any] = {
    "OpenAIError": {
        "type": "object",
        "required": ["error"],
        "properties": {
            "error": {
                "type": "object",
                "required": ["message", "type", "param", "code"],
                "properties": {
                    "message": _STRING,
                    "type": _STRING,
                    "param": _STRING_OR_NULL,
                    "code": _STRING_OR_NULL,
                },
            }
        },
    },
    "Model": {
        "type": "object",
        "required": ["id", "object", "created", "owned_by"],
        "properties": {
            "id": _STRING,
            "object": {"const": "model"},
            "created": _INTEGER,
            "owned_by": _STRING,
            "max_model_len": _INTEGER,
        },
    },
    "ModelList": {
        "type": "object",
        "required": ["object", "data"],
        "properties": {
            "object": {"const": "list"},
            "data": {"type": "array", "items": {"$ref": "#/components/schemas/Model"}},
        },
    },
    "OpenAIRequest": {
        "type": "object",
        "required": ["model"],
        "properties": {
            "model": {"type": "string", "description": "the model, or a program's name or id"},
            "stream": {"type": "boolean", "default": False},
        },
        "description": "as OpenAI has it; docs/http.md lists the fields",
    },
    "OpenAICompletion": {
        "type": "object",
        "required": ["id", "object", "created", "model", "choices", "usage"],
        "properties": {
            "id": _STRING,
            "object": _STRING,
            "created": _INTEGER,
            "model": _STRING,
            "choices": {"type": "array", "items": {"type": "object"}},
            "usage": {"type": "object", "required": list(_COUNTS), "properties": _COUNTS},
        },
    },
    "OpenAIResponse": {
        "type": "object",
        "required": ["id", "object", "created_at", "model", "status", "output", "usage"],
        "properties": {
            "id": _STRING,
            "object": {"const": "response"},
            "created_at": _INTEGER,
            "model": _STRING,
            "status": {"type": "string", "enum": ["completed", "incomplete"]},
            "output": {"type": "array", "items": {"type": "object"}},
            "usage": {"type": "object"},
        },
    },
    "OpenAIChunks": {
        "description": "server-sent events; each data is JSON, but for a last [DONE]",
        "properties": {"data": {"type": "string"}},
    },
}
