"""The routes of KV files and prefixes, a part of the route table."""

from symphony_kernel.protocol.limits import (
    KV_VIEW_TOKENS_MAX,
    PREFIX_VIEW_DEPTH_DEFAULT,
    PREFIX_VIEW_DEPTH_MAX,
)

from symphony_runtime.gateway.http.route import AFTER, FLAG, LIMIT, Answer, Parameter, Route
from symphony_runtime.gateway.kv import files, views

_KV_FILE = {files.FILE: "Safetensors"}
_FROM = {"type": "integer", "minimum": 0}
_MODEL = Parameter("model", "the model whose files are meant; default: the first")
_TEXT = Parameter("text", "with the text of the tokens, by a run of the shipped program", FLAG)

KV_ROUTES: tuple[Route, ...] = (
    Route(
        "GET", "/v1/kv", "listKv", files.list_kv,
        "List the tenant's named KV files; under `public/<tenant>/` those that a tenant publishes",
        {200: Answer("a page, by path", "KvPage")},
        problems=(404,),
        parameters=(Parameter("prefix", "the beginning of the paths"), LIMIT, AFTER, _MODEL),
    ),
    Route(
        "GET", "/v1/kv/{path}", "getKv", files.get_kv,
        "Show a named KV file; or send it, with `download` or Accept: application/octet-stream",
        {200: Answer("its description, or the file", "KvFile", also=_KV_FILE)},
        problems=(507,),
        parameters=(Parameter("download", "send the file itself", FLAG), _MODEL),
    ),
    Route(
        "PUT", "/v1/kv/{path}", "putKv", files.put_kv,
        "Upload a KV file under a durable name",
        {201: Answer("stored", "KvFile"), 200: Answer("it replaces another", "KvFile")},
        problems=(409, 507),
        parameters=(
            Parameter("replace", "0: only if no file has the name", FLAG),
            Parameter("rebuild", "ignore its K and V, and recompute them from its tokens", FLAG),
            Parameter("public", "other tenants may read it, if the operator allows that", FLAG),
            Parameter("keep_ms", "how long it is kept", {"type": "integer", "minimum": 1}),
            _MODEL,
        ),
        body=(files.FILE, "Safetensors"),
    ),
    Route(
        "DELETE", "/v1/kv/{path}", "deleteKv", files.delete_kv,
        "Remove a name; views that programs have open stay valid",
        {204: Answer("removed")},
        parameters=(_MODEL,),
    ),
    Route(
        "GET", "/v1/kv-pages/{path}", "getKvPages", views.get_pages,
        "Show the pages of a named KV file by tier, with the named files that share them",
        {200: Answer("the file, and ranges of equal pages", "KvPages")},
        parameters=(
            LIMIT, Parameter("after", "the page to begin with: an earlier `next`", _FROM), _MODEL
        ),
    ),
    Route(
        "GET", "/v1/kv-tokens/{path}", "getKvTokens", views.get_tokens,
        "Show the tokens of a named KV file, with their positions",
        {200: Answer("the tokens from `after` on", "KvTokens")},
        problems=(409, 507),
        parameters=(
            Parameter(
                "limit", "how many tokens",
                {
                    "type": "integer", "minimum": 1, "maximum": KV_VIEW_TOKENS_MAX,
                    "default": views.TOKENS_DEFAULT,
                },
            ),
            Parameter("after", "the token to begin with: an earlier `next`", _FROM),
            _TEXT,
            _MODEL,
        ),
    ),
    Route(
        "GET", "/v1/prefixes", "listPrefixes", views.list_prefixes,
        "Show the tenant's cached prefixes as a tree, with how often each was matched",
        {200: Answer("parts of prefixes, the upper ones and the most used first", "Prefixes")},
        problems=(404, 409, 507),
        parameters=(
            LIMIT,
            Parameter(
                "depth", "how many parts from the first token on",
                {
                    "type": "integer", "minimum": 1, "maximum": PREFIX_VIEW_DEPTH_MAX,
                    "default": PREFIX_VIEW_DEPTH_DEFAULT,
                },
            ),
            _TEXT,
            _MODEL,
        ),
    ),
)  # fmt: skip
