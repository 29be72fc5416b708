"""The routes of lists of runs and of their changes, a part of the route table."""

from symphony_kernel.protocol.limit_table import LIMITS
from symphony_kernel.protocol.limits import (
    ATTACH_QUERY_BYTES_MAX,
    NAME_BYTES_MAX,
    RUN_PRIORITY_MAX,
)

from symphony_runtime.gateway.api.openapi import EVENTS
from symphony_runtime.gateway.api.runs import handlers as runs
from symphony_runtime.gateway.api.runs.attached import attach
from symphony_runtime.gateway.http.route import AFTER, FLAG, LIMIT, Access, Answer, Parameter, Route
from symphony_runtime.gateway.runs.record import FINAL, LIVE

RUN_ROUTES: tuple[Route, ...] = (
    Route(
        "GET", "/v1/attached", "attach", attach,
        "Make a program's system calls from a client, over a WebSocket",
        {101: Answer("the protocol changes to WebSocket")}, problems=(404, 409, 426),
        parameters=(
            Parameter("run", "take this run up, in place of starting one"),
            Parameter("park", "keep the run without its client, up to its limits", FLAG),
            Parameter("limits", "JSON: limits of the run, as `limits` of a run has them",
                      {"type": "string", "maxLength": ATTACH_QUERY_BYTES_MAX}),
            Parameter("model", "that the run is of; default: the first"),
            Parameter("priority", "of the run", {"type": "integer", "minimum": 0,
                                                 "maximum": RUN_PRIORITY_MAX}),
            Parameter("trace", "keep a trace of the run", FLAG),
        ),
    ),
    Route(
        "GET", "/v1/events", "followRuns", runs.follow_runs,
        "Follow all runs of the tenant: their starts, changes and ends",
        {200: Answer("the changes", "RunChanges", EVENTS)}, access=Access.ANY,
        parameters=(
            Parameter("Last-Event-ID", "id of the last event that the client has",
                      {"type": "integer", "minimum": 0}, "header"),
            Parameter("after", "the same, for clients that cannot set headers",
                      {"type": "integer"}),
            Parameter("follow", "0: only the changes that are there now", FLAG),
        ),
    ),
    Route(
        "GET", "/v1/runs", "listRuns", runs.list_runs, "List runs",
        {200: Answer("a page, newest first", "RunPage")},
        parameters=(
            LIMIT, AFTER, Parameter("live", "only live runs, with what they hold", FLAG),
            Parameter("program", "only runs of the program with this name or id",
                      {"type": "string", "maxLength": NAME_BYTES_MAX}),
            Parameter("status", "only runs with this status",
                      {"type": "string", "enum": [*LIVE, *FINAL]}),
            Parameter("limit_hit", "only runs that this limit has ended, or holds up",
                      {"type": "string", "enum": [limit.name for limit in LIMITS]}),
        ),
    ),
    Route(
        "GET", "/v1/runs/{run}/input", "getRunInput", runs.get_input,
        "Send the input that a run was given, so that it can be run again",
        {200: Answer("its bytes", "RunInput", "application/octet-stream")},
    ),
    Route(
        "GET", "/v1/runs/{run}/children", "listChildren", runs.list_children,
        "List the children that a run's programs have spawned, in this order",
        {200: Answer("the first ones; `left_out` more are not kept", "ChildList")},
    ),
)  # fmt: skip
