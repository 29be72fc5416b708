"""What a chat template runs in: jinja2's sandbox, with what transformers gives templates."""

import json
from datetime import UTC, datetime
from typing import Any

from jinja2 import TemplateError
from jinja2.sandbox import ImmutableSandboxedEnvironment


def chat_environment() -> ImmutableSandboxedEnvironment:
    """Return an environment for a model's chat template, which is its author's, not ours."""

    def raise_exception(message: str) -> None:
        raise TemplateError(message)

    def strftime_now(layout: str) -> str:
        return datetime.now(UTC).strftime(layout)

    def tojson(value: Any, indent: int | None = None) -> str:
        return json.dumps(value, ensure_ascii=False, indent=indent)

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = tojson
    environment.globals |= {"raise_exception": raise_exception, "strftime_now": strftime_now}
    return environment
