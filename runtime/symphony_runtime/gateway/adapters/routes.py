"""The routes of adapters, a part of the route table."""

from symphony_runtime.gateway.adapters import handlers as adapters
from symphony_runtime.gateway.http.route import AFTER, LIMIT, Answer, Route

ADAPTER_ROUTES: tuple[Route, ...] = (
    Route(
        "GET", "/v1/adapters", "listAdapters", adapters.list_adapters,
        "List the tenant's LoRA adapters",
        {200: Answer("a page, by name", "AdapterPage")}, parameters=(LIMIT, AFTER),
    ),
    Route(
        "GET", "/v1/adapters/{adapter}", "getAdapter", adapters.get_adapter, "Show an adapter",
        {200: Answer("the adapter", "Adapter")},
    ),
    Route(
        "PUT", "/v1/adapters/{adapter}", "putAdapter", adapters.put_adapter,
        "Upload a LoRA adapter in PEFT's format under a name",
        {201: Answer("loaded", "Adapter"), 200: Answer("it replaces another", "Adapter")},
        problems=(404, 507), body=("multipart/form-data", "AdapterForm"),
    ),
    Route(
        "DELETE", "/v1/adapters/{adapter}", "deleteAdapter", adapters.delete_adapter,
        "Delete an adapter: calls with it that are under way end as usual",
        {204: Answer("deleted")},
    ),
)  # fmt: skip
