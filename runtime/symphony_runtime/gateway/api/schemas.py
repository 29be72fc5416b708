"""Schemas of the OpenAPI document: requests by their models, answers as they are written here."""

from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import GenerateJsonSchema
from symphony_kernel.protocol.limit_table import LIMITS
from symphony_kernel.protocol.limits import NAME_BYTES_MAX

from symphony_runtime.gateway.anthropic.bodies import MessagesBody, PromptBody
from symphony_runtime.gateway.api.programs.versions import AliasBody
from symphony_runtime.gateway.api.requests import (
    LIMIT_PROPERTIES,
    KeyBody,
    RunBody,
    TenantBody,
    TenantChange,
)
from symphony_runtime.gateway.batches.handlers import BatchBody
from symphony_runtime.gateway.batches.records import ENDED
from symphony_runtime.gateway.batches.records import LIVE as LIVE_BATCHES
from symphony_runtime.gateway.files.handlers import PURPOSES
from symphony_runtime.gateway.openai.requests.bodies import ChatBody, CompletionBody, ResponseBody
from symphony_runtime.gateway.openai.requests.tasks import (
    DetokenizeBody,
    EmbeddingBody,
    RerankBody,
    ScoreBody,
    TokenizeBody,
)
from symphony_runtime.gateway.runs.record import FINAL, LIVE, USAGE_KEYS
from symphony_runtime.gateway.runs.usage import COLUMNS

_REFERENCE = "#/components/schemas/"
_REQUESTS: dict[str, type[BaseModel]] = {
    "AliasRequest": AliasBody,
    "RunRequest": RunBody,
    "TenantRequest": TenantBody,
    "TenantChange": TenantChange,
    "KeyRequest": KeyBody,
    "OpenAICompletionRequest": CompletionBody,
    "OpenAIChatRequest": ChatBody,
    "OpenAIResponseRequest": ResponseBody,
    "OpenAIEmbeddingRequest": EmbeddingBody,
    "ScoreRequest": ScoreBody,
    "RerankRequest": RerankBody,
    "TokenizeRequest": TokenizeBody,
    "DetokenizeRequest": DetokenizeBody,
    "BatchRequest": BatchBody,
    "AnthropicMessagesRequest": MessagesBody,
    "AnthropicCountRequest": PromptBody,
}


class _Untitled(GenerateJsonSchema):
    """Leaves out the titles of fields, which repeat their names."""

    def field_title_should_be_set(self, schema: Any) -> bool:  # noqa: ARG002
        return False


def reference(schema: str) -> dict[str, str]:
    return {"$ref": _REFERENCE + schema}


def _request_schemas() -> dict[str, Any]:
    schemas: dict[str, Any] = {}
    for name, model in _REQUESTS.items():
        schema = model.model_json_schema(
            ref_template=_REFERENCE + "{model}", schema_generator=_Untitled
        )
        schemas |= schema.pop("$defs", {}) | {name: schema}
    for schema in schemas.values():
        schema.pop("title")
        for field in schema["properties"].values():
            if field.get("default", 0) is None:  # left out, which null also is
                del field["default"]
    return schemas


def _object(required: dict[str, Any], optional: dict[str, Any] | None = None) -> dict[str, Any]:
    return {
        "type": "object",
        "required": list(required),
        "properties": {**required, **(optional or {})},
    }


def _list(items: dict[str, Any]) -> dict[str, Any]:
    return {"type": "array", "items": items}


def _page(schema: str) -> dict[str, Any]:
    return _object({"data": _list(reference(schema)), "next": _OR_NULL})


_ANY = {"type": "object"}
_BOOLEAN = {"type": "boolean"}
_STRING = {"type": "string"}
_INTEGER = {"type": "integer"}
_OR_NULL = {"type": ["string", "null"]}
_INTEGER_OR_NULL = {"type": ["integer", "null"]}


def _each(schema: dict[str, Any], names: str) -> dict[str, Any]:
    """Return properties of one schema; `names` are separated by spaces."""
    return dict.fromkeys(names.split(), schema)


def _enum(*values: str) -> dict[str, Any]:
    return {"type": "string", "enum": list(values)}


_RUN = {
    **_each(_STRING, "id program entry reason"),
    **_each(_OR_NULL, "program_name error"),
    "model": {"type": ["string", "null"], "description": "the model that it runs on"},
    **_each(_INTEGER_OR_NULL, "exit_code ended_ms"),
    **_each(_INTEGER, "priority created_ms"),
    "status": _enum(*LIVE, *FINAL),
    "limits": _object({}, LIMIT_PROPERTIES),
    "limit": {"type": ["string", "null"], "description": "the limit that has ended it"},
    "waits_for": {"type": ["string", "null"], "description": "the limit that holds it up"},
    "usage": {"oneOf": [_object(dict.fromkeys(USAGE_KEYS, _INTEGER)), {"type": "null"}]},
}
_CHILD = _object(
    {
        **_each(_STRING, "program status reason"),
        **_each(_INTEGER, "number created_ms"),
        **_each(_OR_NULL, "program_name entry"),
        **_each(_INTEGER_OR_NULL, "parent exit_code ended_ms"),
        "usage": _RUN["usage"],
    }
)
_HELD = {"oneOf": [_object(_each(_INTEGER, "tokens kv_pages instances")), {"type": "null"}]}
_BOUND = _object(
    {
        **_each(_INTEGER_OR_NULL, "default maximum"),
        "of": _enum("program", "run", "instance", "tenant"),
    }
)
_ROLE = _object(
    {"role": _STRING, "pid": _INTEGER_OR_NULL, "ready": _BOOLEAN},
    {
        "progress": _object({"what": _STRING, "share": {"type": "number"}}),
        "hangs": {"const": True},
        "containment": {"type": "object", "additionalProperties": _STRING},
    },
)
_TIER = _enum("device", "host", "disk", "tokens")
_KV_FILE = {
    "path": _STRING,
    **_each(_INTEGER, "len pages"),
    "tier": {"type": "string", "description": "the slowest that holds one of its pages"},
    **_each(_BOOLEAN, "durable public"),
    "expires_ms": {"type": "integer", "description": "Unix time; 0: never"},
}
_KV_STAT = {
    "shared": {"type": "integer", "description": "pages that other files share"},
    "tiers": {"type": "object", "additionalProperties": _INTEGER},
    "disk_bytes": _INTEGER,
}
_PAGE_RANGE = _object(
    {
        "first": {"type": "integer", "description": "its first page"},
        "pages": _INTEGER,
        "tier": _TIER,
        "holders": {"type": "integer", "description": "other files that hold each page"},
        "cached": {"type": "boolean", "description": "in the prefix cache"},
        "files": {**_list(_STRING), "description": "named files of the tenant among the holders"},
    }
)
_LINEAGE = _object(
    {
        **_each(_INTEGER, "len computed spans scratch_pages"),
        "lost": _BOOLEAN,
        "parts": _list(
            _object({**_each(_INTEGER, "first len of"), **_each(_BOOLEAN, "tree lost")})
        ),
    }
)
_PREFIX_PART = _object(
    {
        "id": _INTEGER,
        "parent": _INTEGER_OR_NULL,
        **_each(_INTEGER, "first pages"),
        "hits": {"type": "integer", "description": "matches that used its pages"},
        "tier": _TIER,
        "more": {"type": "integer", "description": "branches below that are not shown"},
        "tokens": _list(_INTEGER),
        "text": _OR_NULL,
    }
)
_SERIES = {
    "type": "object",
    "additionalProperties": _list({"type": ["number", "null"]}),
}
_ROLES = _object(
    {
        "restarts": {"type": "object", "additionalProperties": _INTEGER},
        "changes": _list(
            _object({"at_ms": _INTEGER, **_each(_STRING, "role state"), "pid": _INTEGER_OR_NULL})
        ),
    },
    {"resident_bytes": {"type": "object", "additionalProperties": _INTEGER}},
)
_PROGRAM = {
    "id": {"type": "string", "pattern": "^sha256:[0-9a-f]{64}$"},
    "name": {"type": ["string", "null"], "maxLength": NAME_BYTES_MAX},
    "language": {"type": "string", "description": "of its source; wasm: it is a module"},
    **_each(_INTEGER, "size created_ms"),
    **_each(_list(_STRING), "imports exports entries"),
    "description": _OR_NULL,
    **_each(
        {"type": ["object", "null"], "description": "a JSON schema, of the manifest"},
        "input_schema output_schema",
    ),
}
_TENANTS_SCHEMAS: dict[str, Any] = {
    "Health": _object({"status": {"const": "ok"}}),
    "Readiness": _object({"roles": _list(_ROLE), **_each(_list(_STRING), "missing degraded")}),
    "Version": _object({"version": _STRING}),
    "OpenApi": _ANY,
    "Problem": _object(
        {**_each(_STRING, "type title detail"), "status": _INTEGER}, {"problems": _list(_STRING)}
    ),
    "Wasm": {"description": "the bytes of a core WebAssembly module"},
    "Source": {"type": "string", "description": "a program in the language of its content type"},
    "Program": _object(_PROGRAM),
    "ProgramPage": _page("Program"),
    "ProgramVersion": _object(
        {
            **_PROGRAM,
            "current": {"type": "boolean", "description": "whether the name points at it"},
            **_each(_INTEGER, "added_ms runs errors"),
            "used_ms": _INTEGER_OR_NULL,
        }
    ),
    "ProgramVersionPage": _page("ProgramVersion"),
    "Run": _object(_RUN, {"held": _HELD}),
    "RunResult": _object(
        _RUN, {"output": _STRING, "messages": _list(reference("Message")), "held": _HELD}
    ),
    "Trace": _object({"traceEvents": _list(_ANY), "displayTimeUnit": _STRING, "otherData": _ANY}),
    "RunStarted": _object({"id": _STRING}),
    "RunInput": {"description": "the bytes that the program reads as its input"},
    "ChildList": _object({"data": _list(_CHILD), "left_out": _INTEGER}),
    "RunChanges": {
        "description": "server-sent events; the data of each is JSON",
        "properties": {
            "id": {"type": "string", "pattern": "^[0-9]+$"},
            "event": {"enum": ["begin", "run"]},
            "data": {"type": "string", "contentMediaType": "application/json"},
        },
    },
    "RunPage": _page("Run"),
    "Limits": _object({"limits": _object({limit.name: _BOUND for limit in LIMITS})}),
    # Of each event: some tools read the schema of a stream as that of the whole, which is a text.
    "Events": {
        "description": "server-sent events; the data of each is JSON",
        "properties": {
            "id": {"type": "string", "pattern": "^[0-9]+$"},
            "event": {"enum": ["message", "log", "status", "usage", "request"]},
            "data": {"type": "string", "contentMediaType": "application/json"},
        },
    },
    "Message": {
        "description": "the bytes of one message; in JSON a string, or base64 if not UTF-8",
        "oneOf": [_STRING, _object({"base64": _STRING})],
    },
    "KvFile": _object(_KV_FILE, _KV_STAT),
    "Safetensors": {
        "description": "a KV file: tokens, positions, K and V (docs/guides/kv-files.md)"
    },
    "KvPage": _page("KvFile"),
    "KvPages": _object(
        {
            **_KV_FILE,
            **_KV_STAT,
            "page_tokens": {"type": "integer", "description": "entries of a page"},
            "recomputable": _BOOLEAN,
            "lineage": {"oneOf": [_LINEAGE, {"type": "null"}]},
            "data": _list(_PAGE_RANGE),
            "next": _OR_NULL,
            "complete": {
                "type": "boolean",
                "description": "all of the tenant's named files were compared",
            },
        }
    ),
    "KvTokens": _object(
        {
            "path": _STRING,
            **_each(_INTEGER, "len first"),
            **_each(_list(_INTEGER), "tokens positions"),
            "texts": {"type": ["array", "null"], "items": _STRING},
            "next": _OR_NULL,
        }
    ),
    "Prefixes": _object(
        {
            "pages": {"type": "integer", "description": "cached pages of the tenant"},
            "page_tokens": _INTEGER,
            "complete": {"type": "boolean", "description": "all of them are counted"},
            "data": _list(_PREFIX_PART),
        }
    ),
    "SecretRequest": _object(
        {"value": {"type": "string", "writeOnly": True}, "hosts": _list(_STRING)}
    ),
    "Secret": _object(
        {"name": _STRING, "hosts": _list(_STRING), **_each(_INTEGER, "created_ms updated_ms")}
    ),
    "SecretPage": _page("Secret"),
    "Text": {"type": "string"},
    "History": _object(
        {**_each(_INTEGER, "step_ms step end_ms"), "series": _SERIES, "roles": _ROLES},
        {"tenants": {"type": "object", "additionalProperties": _SERIES}},
    ),
    "McpMessage": {
        **_object({"jsonrpc": {"const": "2.0"}}, _each({}, "id method params result error")),
        "description": "a message of JSON-RPC 2.0, as the Model Context Protocol defines them",
    },
    "McpEvents": {
        "description": "server-sent events; the data of each is a message of JSON-RPC",
        "properties": {"event": {"const": "message"}, "data": {"type": "string"}},
    },
    "Metrics": {"type": "string", "description": "Prometheus' text format"},
}
_KEY = {
    **_each(_STRING, "id name"),
    "tenant": _OR_NULL,
    "role": _enum("admin", "tenant", "read-only"),
    "created_ms": _INTEGER,
    "expires_ms": _INTEGER_OR_NULL,
}
_ADMIN_SCHEMAS: dict[str, Any] = {
    "Tenant": _object(
        {
            **_each(_STRING, "id made_by"),
            **_each(_INTEGER, "created_ms keys live_runs"),
            "suspended": _BOOLEAN,
            "suspended_ms": _INTEGER_OR_NULL,
            "weight": {"type": ["number", "null"]},
            "quotas": {"type": "object", "additionalProperties": _INTEGER},
        }
    ),
    "TenantPage": _page("Tenant"),
    "Key": _object(_KEY),
    "KeyList": _page("Key"),
    "NewKey": _object({**_KEY, "key": {"type": "string", "description": "shown this once"}}),
    "Gateway": _object(
        {"id": _STRING, "seen_ms": _INTEGER, "forgetting": _list(_STRING), "here": _BOOLEAN}
    ),
    "GatewayList": _page("Gateway"),
    "Usage": _object({n: _STRING if n in ("tenant", "day") else _INTEGER for n in COLUMNS}),
    "UsagePage": _page("Usage"),
    "Audit": _object(
        {
            **_each(_STRING, "id address action target detail"),
            **_each(_OR_NULL, "key tenant"),
            **_each(_INTEGER, "at_ms status"),
            "kind": _enum("admin", "denied"),
            "times": {"type": "integer", "description": "how many alike, from at_ms on"},
        }
    ),
    "AuditPage": _page("Audit"),
    "Statistics": _object(_each(_ANY, "kernel gateway")),
}
_COUNTS = _object(_each(_INTEGER, "prompt_tokens completion_tokens total_tokens"))
# What OpenAI's clients rely on, not every field.
_OPENAI_SCHEMAS: dict[str, Any] = {
    "OpenAIError": _object(
        {"error": _object({**_each(_STRING, "message type"), **_each(_OR_NULL, "param code")})}
    ),
    "Model": _object(
        {**_each(_STRING, "id owned_by"), "object": {"const": "model"}, "created": _INTEGER},
        {"max_model_len": _INTEGER},
    ),
    "ModelList": _object({"object": {"const": "list"}, "data": _list(reference("Model"))}),
    "OpenAICompletion": _object(
        {
            **_each(_STRING, "id object model"),
            "created": _INTEGER,
            "choices": _list(_ANY),
            "usage": _COUNTS,
        }
    ),
    "OpenAIResponse": _object(
        {
            **_each(_STRING, "id model"),
            "object": {"const": "response"},
            "created_at": _INTEGER,
            "status": _enum(
                "queued", "in_progress", "completed", "incomplete", "cancelled", "failed"
            ),
            "output": _list(_ANY),
            "usage": {"type": ["object", "null"]},
        }
    ),
    "OpenAIItems": _object(
        {
            "object": {"const": "list"},
            "data": _list(_ANY),
            **_each(_OR_NULL, "first_id last_id"),
            "has_more": _BOOLEAN,
        }
    ),
    "OpenAIDeleted": _object(
        {"id": _STRING, "object": {"const": "response"}, "deleted": {"const": True}}
    ),
    "OpenAIEmbeddings": _object(
        {**_each(_STRING, "id object model"), "data": _list(_ANY), "usage": _ANY}
    ),
    "Scores": _object({**_each(_STRING, "id object model"), "data": _list(_ANY), "usage": _ANY}),
    "Ranks": _object({**_each(_STRING, "id model"), "results": _list(_ANY), "usage": _ANY}),
    "Tokens": _object(
        {**_each(_INTEGER, "count max_model_len"), "tokens": _list(_INTEGER)},
        {"token_strs": {"type": ["array", "null"], "items": _STRING}},
    ),
    "Text": _object({"prompt": _STRING}),
    "OpenAIChunks": {
        "description": "server-sent events; each data is JSON, but for a last [DONE]",
        "properties": {"data": {"type": "string"}},
    },
}
_OPENAI_PAGE = {**_each(_OR_NULL, "first_id last_id"), "has_more": _BOOLEAN}
_ADAPTER_SCHEMAS: dict[str, Any] = {
    "AdapterForm": _object(
        {
            "config": {"type": "string", "description": "the text of adapter_config.json"},
            "file": {"type": "string", "contentMediaType": "application/octet-stream"},
        }
    ),
    "Adapter": _object(
        {**_each(_STRING, "name id model"), **_each(_INTEGER, "bytes rank created_ms")}
    ),
    "AdapterPage": _page("Adapter"),
}
_BATCH_SCHEMAS: dict[str, Any] = {
    "FileForm": _object(
        {"file": {"type": "string", "contentMediaType": "application/jsonl"},
         "purpose": _enum(*PURPOSES)},
        {"expires_after[anchor]": {"const": "created_at"}, "expires_after[seconds]": _INTEGER},
    ),
    "File": _object(
        {
            **_each(_STRING, "id filename purpose status"),
            **_each(_INTEGER, "bytes created_at"),
            "object": {"const": "file"},
            "expires_at": _INTEGER_OR_NULL,
        }
    ),
    "FileList": _object({"data": _list(reference("File")), **_OPENAI_PAGE}),
    "FileDeleted": _object({"id": _STRING, "deleted": _BOOLEAN}),
    "FileContent": {"description": "the file's bytes"},
    "Batch": _object(
        {
            **_each(_STRING, "id endpoint input_file_id completion_window"),
            **_each(_OR_NULL, "output_file_id error_file_id"),
            **_each(_INTEGER, "created_at expires_at"),
            **_each(_INTEGER_OR_NULL, "in_progress_at finalizing_at completed_at failed_at"),
            **_each(_INTEGER_OR_NULL, "expired_at cancelling_at cancelled_at"),
            "object": {"const": "batch"},
            "status": _enum(*LIVE_BATCHES, *ENDED),
            "errors": {"type": ["object", "null"]},
            "metadata": {"type": ["object", "null"]},
            "request_counts": _object(_each(_INTEGER, "total completed failed")),
            "usage": _object(
                {
                    **_each(_INTEGER, "input_tokens output_tokens total_tokens"),
                    "input_tokens_details": _object(_each(_INTEGER, "cached_tokens")),
                    "output_tokens_details": _object(_each(_INTEGER, "reasoning_tokens")),
                }
            ),
        }
    ),
    "BatchList": _object({"data": _list(reference("Batch")), **_OPENAI_PAGE}),
}  # fmt: skip
_ANTHROPIC_MODEL = _object(
    {
        **_each(_STRING, "id display_name created_at"),
        "type": {"const": "model"},
        "lifecycle": _enum("active"),
        **_each(_INTEGER_OR_NULL, "max_input_tokens max_tokens"),
    }
)
_ANTHROPIC_SCHEMAS: dict[str, Any] = {
    "AnthropicError": _object(
        {
            "type": {"const": "error"},
            "error": _object(_each(_STRING, "type message")),
            "request_id": _OR_NULL,
        }
    ),
    "AnthropicMessage": _object(
        {
            **_each(_STRING, "id model stop_reason"),
            "type": {"const": "message"},
            "role": {"const": "assistant"},
            "content": _list(_ANY),
            "stop_sequence": _OR_NULL,
            "usage": _object(
                _each(
                    _INTEGER,
                    "input_tokens cache_creation_input_tokens cache_read_input_tokens "
                    "output_tokens",
                )
            ),
        }
    ),
    "AnthropicEvents": {
        "description": "server-sent events; the data of each is JSON, with its name as `type`",
        "properties": {
            "event": _enum(
                "message_start",
                "ping",
                "content_block_start",
                "content_block_delta",
                "content_block_stop",
                "message_delta",
                "message_stop",
                "error",
            ),
            "data": {"type": "string", "contentMediaType": "application/json"},
        },
    },
    "AnthropicTokenCount": _object({"input_tokens": _INTEGER}),
    "AnyError": {"oneOf": [reference("OpenAIError"), reference("AnthropicError")]},
    "AnyModel": {"oneOf": [reference("Model"), _ANTHROPIC_MODEL]},
    "AnyModelList": {
        "oneOf": [
            reference("ModelList"),
            _object(
                {
                    "data": _list(_ANTHROPIC_MODEL),
                    **_each(_STRING, "first_id last_id"),
                    "has_more": _BOOLEAN,
                }
            ),
        ]
    },
}
SCHEMAS = (
    _request_schemas()
    | _TENANTS_SCHEMAS
    | _ADMIN_SCHEMAS
    | _OPENAI_SCHEMAS
    | _ANTHROPIC_SCHEMAS
    | _BATCH_SCHEMAS
    | _ADAPTER_SCHEMAS
)
