"""The route table: every route of the HTTP interface, what it takes and what it answers.

The application and the OpenAPI document are both built from it, so a route is in both or in none.
A route needs a tenant's key unless its `access` says otherwise.
"""

from symphony_runtime.gateway.adapters.routes import ADAPTER_ROUTES
from symphony_runtime.gateway.anthropic.routes import ANTHROPIC_ROUTES
from symphony_runtime.gateway.api import (
    admin,
    health,
    history,
    programs_and_runs,
    run_streams,
    secrets,
)
from symphony_runtime.gateway.api.admin_routes import ADMIN_ROUTES
from symphony_runtime.gateway.api.openapi import EVENTS, get_openapi
from symphony_runtime.gateway.api.programs.routes import VERSION_ROUTES
from symphony_runtime.gateway.api.runs.routes import RUN_ROUTES
from symphony_runtime.gateway.batches.routes import FILE_AND_BATCH_ROUTES
from symphony_runtime.gateway.console import pages as console
from symphony_runtime.gateway.http.route import (
    AFTER,
    FLAG,
    LIMIT,
    ONCE,
    Access,
    Answer,
    Parameter,
    Route,
)
from symphony_runtime.gateway.kv.routes import KV_ROUTES
from symphony_runtime.gateway.mcp.route import post_message
from symphony_runtime.gateway.metrics.history import STEPS
from symphony_runtime.gateway.openai import handlers as openai
from symphony_runtime.gateway.openai import tasks
from symphony_runtime.gateway.openai.stored.routes import RESPONSE_ROUTES

__all__ = ["ROUTES", "Access", "Route"]

_RESUME = (
    Parameter(
        "Last-Event-ID",
        "id of the last event that the client has",
        {"type": "integer", "minimum": 0},
        "header",
    ),
    Parameter("after", "the same, for clients that cannot set headers", {"type": "integer"}),
)
_SSE = {EVENTS: "OpenAIChunks"}
_PROBLEM = {"application/problem+json": "Problem"}
_OPENAI_PROBLEMS = (404, 409, 410, 422)

ROUTES: tuple[Route, ...] = (
    Route(
        "GET", "/", "console", console.index, "The console, a web page",
        {200: Answer("the page", "Text", "text/html")}, access=Access.OPEN,
    ),
    Route(
        "GET", "/console/{file}", "consoleFile", console.file, "A file of the console",
        {200: Answer("the file", "Text", "text/javascript", also={"text/css": "Text"})},
        access=Access.OPEN,
    ),
    Route(
        "GET", "/healthz", "healthz", health.healthz, "Whether the gateway answers",
        {200: Answer("it answers", "Health")}, access=Access.OPEN,
    ),
    Route(
        "GET", "/readyz", "readyz", health.readyz, "Which roles are ready",
        {200: Answer("a run can start", "Readiness"), 503: Answer("it cannot", "Readiness")},
        access=Access.OPEN,
    ),
    Route(
        "GET", "/health", "health", health.readyz, "As /readyz, under the name of other servers",
        {200: Answer("a run can start", "Readiness"), 503: Answer("it cannot", "Readiness")},
        access=Access.OPEN,
    ),
    Route(
        "GET", "/version", "version", health.version, "The server's version",
        {200: Answer("its version", "Version")}, access=Access.OPEN,
    ),
    Route(
        "GET", "/openapi.json", "openapi", get_openapi, "This document",
        {200: Answer("OpenAPI 3.1", "OpenApi")},
    ),
    Route(
        "POST", "/v1/programs", "uploadProgram", programs_and_runs.upload_program,
        "Check, compile and store a program",
        {201: Answer("stored", "Program"), 200: Answer("its bytes were known", "Program")},
        problems=(404, 409, 422),  # 404: the program of the key's first request was deleted
        parameters=(Parameter("name", "a name, which points at this program from then on"), ONCE),
        body=("application/wasm", "Wasm"),
        other_bodies=(("text/javascript", "Source"), ("text/x-python", "Source")),
    ),
    Route(
        "GET", "/v1/programs", "listPrograms", programs_and_runs.list_programs, "List programs",
        {200: Answer("a page, newest first", "ProgramPage")},
        parameters=(
            LIMIT, AFTER,
            Parameter("named", "1: the names, each with its program; 0: programs without", FLAG),
        ),
    ),
    *VERSION_ROUTES,
    Route(
        "GET", "/v1/programs/{program}", "getProgram", programs_and_runs.get_program,
        "Show a program, by its id, a name, or name@version",
        {200: Answer("the program", "Program")},
    ),
    Route(
        "DELETE", "/v1/programs/{program}", "deleteProgram", programs_and_runs.delete_program,
        "Delete a program and its names; its runs continue",
        {204: Answer("deleted")},
    ),
    Route(
        "POST", "/v1/programs/{program}/runs", "startRun", programs_and_runs.start_run,
        "Run a program: wait for its end, stream it (`stream`), or only start it (`detach`)",
        {
            200: Answer(
                "the run has ended; or, with `stream`, its events",
                "RunResult", also={EVENTS: "Events"},
            ),
            202: Answer("it has started (`detach`)", "RunStarted"),
        },
        problems=(409, 410, 422),
        parameters=(Parameter("detach", "answer as soon as it has started", FLAG), ONCE),
        body=("application/json", "RunRequest"),
    ),
    Route(
        "GET", "/v1/key", "getOwnKey", admin.get_own_key, "The key that the request shows",
        {200: Answer("its owner and its role", "Key")}, access=Access.ANY,
    ),
    Route(
        "GET", "/v1/limits", "getLimits", programs_and_runs.get_limits,
        "The limits of the tenant and its runs: defaults and maxima",
        {200: Answer("by name; null is no limit", "Limits")},
    ),
    *RUN_ROUTES,
    Route(
        "GET", "/v1/runs/{run}", "getRun", programs_and_runs.get_run,
        "Show a run, with its messages so far",
        {200: Answer("the run; a `Run` with `brief`", "RunResult")},
        parameters=(Parameter("brief", "without messages; of a live run what it holds", FLAG),),
    ),
    Route(
        "DELETE", "/v1/runs/{run}", "deleteRun", programs_and_runs.delete_run,
        "Delete a run that has ended, with its messages and its log",
        {204: Answer("deleted")}, problems=(409,),
    ),
    Route(
        "GET", "/v1/runs/{run}/events", "getEvents", run_streams.get_events,
        "Follow a run: `message`, `log`, `status` and `usage` events, to the final `status`",
        {200: Answer("the events", "Events", EVENTS)}, problems=(409,),
        parameters=(*_RESUME, Parameter("follow", "0: only the events that exist now", FLAG)),
    ),
    Route(
        "GET", "/v1/runs/{run}/trace", "getTrace", programs_and_runs.get_trace,
        "The calls, waits and steps of a run that was started with `trace`",
        {200: Answer("Chrome trace events, which Perfetto shows", "Trace")},
    ),
    Route(
        "POST", "/v1/runs/{run}/messages", "sendMessage", programs_and_runs.send_message,
        "Send a message to the program, for its `recv`",
        {204: Answer("accepted")}, problems=(409,),
        parameters=(Parameter("close", "no message follows; an empty body is no message", FLAG),),
        body=("application/octet-stream", "Message"),
    ),
    Route(
        "POST", "/v1/runs/{run}/cancel", "cancelRun", programs_and_runs.cancel_run,
        "End a run; an ended run stays as it is",
        {200: Answer("it has ended", "Run"), 202: Answer("it ends soon", "Run")},
        problems=(409,),
    ),
    Route(
        "GET", "/v1/runs/{run}/ws", "websocket", run_streams.websocket,
        "Send and receive messages over a WebSocket",
        {101: Answer("the protocol changes to WebSocket")}, problems=(409, 426),
        parameters=(*_RESUME, Parameter("events", "send all events, with their ids", FLAG)),
    ),
    *ADAPTER_ROUTES,
    *KV_ROUTES,
    Route(
        "GET", "/v1/secrets", "listSecrets", secrets.list_secrets,
        "List the tenant's secrets: names, hosts and times, never a value",
        {200: Answer("all of them, by name", "SecretPage")},
    ),
    Route(
        "PUT", "/v1/secrets/{name}", "putSecret", secrets.put_secret,
        "Store a secret that `http` puts into headers where a program writes {{secret:NAME}}",
        {201: Answer("stored", "Secret"), 200: Answer("it replaces another", "Secret")},
        body=("application/json", "SecretRequest"),
    ),
    Route(
        "DELETE", "/v1/secrets/{name}", "deleteSecret", secrets.delete_secret,
        "Delete a secret", {204: Answer("deleted")},
    ),
    *ANTHROPIC_ROUTES,
    Route(
        "POST", "/v1/completions", "createCompletion", openai.create_completion,
        "OpenAI's completions, by the server's own program or the one that `model` names",
        {200: Answer("the text; or, with `stream`, its chunks", "OpenAICompletion", also=_SSE)},
        problems=_OPENAI_PROBLEMS, parameters=(ONCE,),
        body=("application/json", "OpenAICompletionRequest"),
        errors="OpenAIError",
    ),
    Route(
        "POST", "/v1/chat/completions", "createChatCompletion", openai.create_chat_completion,
        "OpenAI's chat completions, by either kind of program",
        {200: Answer("the answer; or, with `stream`, its chunks", "OpenAICompletion", also=_SSE)},
        problems=_OPENAI_PROBLEMS, parameters=(ONCE,),
        body=("application/json", "OpenAIChatRequest"),
        errors="OpenAIError",
    ),
    Route(
        "POST", "/v1/responses", "createResponse", openai.create_response,
        "OpenAI's responses, for text and tools; they are kept unless `store` is false",
        {200: Answer("the response; or, with `stream`, its events", "OpenAIResponse", also=_SSE)},
        problems=_OPENAI_PROBLEMS, parameters=(ONCE,),
        body=("application/json", "OpenAIResponseRequest"),
        errors="OpenAIError",
    ),
    *RESPONSE_ROUTES,
    Route(
        "POST", "/v1/embeddings", "createEmbedding", tasks.create_embeddings,
        "OpenAI's embeddings: the model's last hidden states, pooled, of length 1",
        {200: Answer("a vector for each text", "OpenAIEmbeddings")},
        problems=(404, 409), body=("application/json", "OpenAIEmbeddingRequest"),
        errors="OpenAIError",
    ),
    Route(
        "POST", "/v1/score", "createScore", tasks.create_score,
        "How likely the model finds each text behind another",
        {200: Answer("a score for each pair", "Scores")},
        problems=(404, 409), body=("application/json", "ScoreRequest"), errors="OpenAIError",
    ),
    Route(
        "POST", "/v1/rerank", "createRerank", tasks.create_rerank,
        "Documents by how likely the model finds the query behind each",
        {200: Answer("the documents, best first", "Ranks")},
        problems=(404, 409), body=("application/json", "RerankRequest"), errors="OpenAIError",
    ),
    Route(
        "POST", "/tokenize", "tokenize", tasks.tokenize,
        "The tokens of a text, or of messages through the chat template",
        {200: Answer("the tokens", "Tokens")},
        problems=(404, 409), body=("application/json", "TokenizeRequest"), errors="OpenAIError",
    ),
    Route(
        "POST", "/detokenize", "detokenize", tasks.detokenize, "The text of tokens",
        {200: Answer("the text", "Text")},
        problems=(404, 409), body=("application/json", "DetokenizeRequest"), errors="OpenAIError",
    ),
    *FILE_AND_BATCH_ROUTES,
    Route(
        "POST", "/mcp", "mcp", post_message,
        "The Model Context Protocol: the tenant's named programs as tools (Streamable HTTP)",
        {
            200: Answer("the answer; or a stream of progress that ends with it", "McpMessage",
                        also={EVENTS: "McpEvents"}),
            202: Answer("a notification was accepted"),
            400: Answer("not a message; an error of JSON-RPC", "McpMessage", also=_PROBLEM),
            404: Answer("no such method; an error of JSON-RPC", "McpMessage"),
        },
        body=("application/json", "McpMessage"),
    ),
    Route(
        "GET", "/v1/admin/statistics", "statistics", programs_and_runs.statistics,
        "The counters of kernel and gateway",
        {200: Answer("the counters", "Statistics")},
        parameters=(Parameter("check", "audit the kernel's pages and tables first", FLAG),),
        access=Access.ADMIN,
    ),
    *ADMIN_ROUTES,
    Route(
        "GET", "/v1/history", "history", history.get_history,
        "The last hour's figures: the server's for an operator, else the tenant's own",
        {200: Answer("series of equal steps, the oldest first", "History")}, access=Access.ANY,
        parameters=(
            Parameter("steps", "only the last so many steps",
                      {"type": "integer", "minimum": 1, "maximum": STEPS}),
        ),
    ),
    Route(
        "GET", "/metrics", "metrics", health.metrics,
        "Metrics for Prometheus: by tenant with the admin key, else the tenant's own",
        {200: Answer("the metrics", "Metrics", health.METRICS)}, access=Access.ANY,
    ),
)  # fmt: skip
