"""The handlers of Anthropic's routes."""

from datetime import UTC, datetime
from typing import Any

from aiohttp import web
from symphony_kernel.protocol.limits import OPENAI_MODELS_SHOWN_MAX

from symphony_runtime.gateway.adapters.handlers import ADAPTERS
from symphony_runtime.gateway.anthropic.errors import speaks_anthropic
from symphony_runtime.gateway.anthropic.parsing import parse_count, parse_messages
from symphony_runtime.gateway.anthropic.shape import MessagesShape
from symphony_runtime.gateway.http.context import answer, tenant_of
from symphony_runtime.gateway.openai import handlers as openai
from symphony_runtime.gateway.openai.handlers import OPENAI, create_answer
from symphony_runtime.gateway.openai.requests.parsing import ParsedRequest, no_such_model
from symphony_runtime.gateway.openai.tasks import serve_task
from symphony_runtime.gateway.runs.record import Record


async def create_message(request: web.Request) -> web.StreamResponse:
    return await create_answer(request, parse_messages, _shape)


async def count_tokens(request: web.Request) -> web.StreamResponse:
    return await serve_task(request, parse_count)


async def list_models(request: web.Request) -> web.StreamResponse:
    """List the models in the form of the client that asks."""
    if not speaks_anthropic(request):
        return await openai.list_models(request)
    server = request.app[OPENAI]
    served = await server.models()
    programs, _ = await server.programs.page(tenant_of(request), "", OPENAI_MODELS_SHOWN_MAX)
    models = [_model_view(model.name, server.started, model.context) for model in served]
    adapters = await request.app[ADAPTERS].page(tenant_of(request), "", OPENAI_MODELS_SHOWN_MAX)
    models += [
        _model_view(f"{model.name}:{each.name}", each.created_ms // 1000, model.context)
        for model in served[:1]
        if openai.is_default(server, model)
        for each in adapters
    ]
    models += [_model_view(each.name, each.created_ms // 1000) for each in programs if each.name]
    ends = {"first_id": models[0]["id"], "last_id": models[-1]["id"], "has_more": False}
    return await answer({"data": models, **ends})


async def get_model(request: web.Request) -> web.StreamResponse:
    """Show a model in the form of the client that asks."""
    if not speaks_anthropic(request):
        return await openai.get_model(request)
    server, name = request.app[OPENAI], request.match_info["model"]
    model = await server.model(name)
    if name == model.name:
        return await answer(_model_view(name, server.started, model.context))
    adapter = await openai.find_adapter(request, name, model)
    if adapter is not None:
        return await answer(_model_view(name, adapter.created_ms // 1000, model.context))
    program = await server.programs.find(tenant_of(request), name)
    if program is None:
        raise no_such_model(name)
    return await answer(_model_view(name, program.created_ms // 1000))


def _shape(run: Record, name: str, wanted: ParsedRequest, body: dict[str, Any]) -> MessagesShape:
    most, thinking = body.get("max_tokens"), body.get("thinking")
    return MessagesShape(
        run.id,
        name,
        max_tokens=most if isinstance(most, int) else None,
        shows_thinking=not isinstance(thinking, dict) or thinking.get("display") != "omitted",
        call_id_characters=wanted.call_id_characters,
    )


def _model_view(name: str, created: int, context: int | None = None) -> dict[str, Any]:
    """Return a model; one that is a program has no context of its own."""
    return {
        "type": "model",
        "id": name,
        "display_name": name,
        "created_at": datetime.fromtimestamp(created, UTC).isoformat().replace("+00:00", "Z"),
        "max_input_tokens": context,
        "max_tokens": context,
        "lifecycle": "active",
    }
