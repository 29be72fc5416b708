"""The options of docs/reference/configuration.md, made of the options' model.

`python -m tools.configuration_page` prints them, `--write` puts them into the page.
"""

import re
from typing import Any

from symphony_runtime.config.serve import FILE_ONLY, ServeOptions
from symphony_runtime.validation import describe

from tools.page_parts import cell, main

_GROUPED_MIN = 10_000  # in groups of digits, as TOML takes them
PAGE = "docs/reference/configuration.md"
# In the page the modules' descriptions are pages.
_PAGES = {
    "config.egress": "[tools.md](../guides/tools.md)",
    "config.limits": "[limits.md](limits.md)",
}


def options() -> dict[str, dict[str, Any]]:
    """Return the schemas of the documented options, by name."""
    schemas: dict[str, dict[str, Any]] = ServeOptions.model_json_schema()["properties"]
    return {name: schema for name, schema in schemas.items() if "description" in schema}


def configuration_part() -> str:
    """Return the table of the options."""
    rows = [_row(name, schema) for name, schema in options().items()]
    return "| option | flag | value | default | is |\n| --- | --- | --- | --- | --- |\n" + "".join(
        rows
    )


def _row(name: str, schema: dict[str, Any]) -> str:
    words = re.sub(r"`(config\.\w+)`", lambda found: _PAGES[found[1]], schema["description"])
    if schema.get("default") is True:  # the flag's words are about the opposite
        words = f"false: {words}"
    value = describe(schema, null=False).replace("an object", "a table")
    if schema.get("anyOf", [schema])[0].get("format") == "path":
        value = "a path"
    if schema.get("type") in ("object", "array"):
        texts = schema.get("items") == {"type": "string"}
        value = "a list of texts" if texts else "a list of tables"
        value = "a table" if schema["type"] == "object" else value
    cells = (f"`{name}`", _flag(name, schema), value, _default(schema), words)
    return f"| {' | '.join(map(cell, cells))} |\n"


def _flag(name: str, schema: dict[str, Any]) -> str:
    if schema.keys() & FILE_ONLY.keys():
        return ""
    prefix = "no-" if schema.get("default") is True else ""
    return f"`--{prefix}{name.replace('_', '-')}`"


def _default(schema: dict[str, Any]) -> str:
    default = schema.get("default")
    if default in (None, ""):
        return ""
    if isinstance(default, bool):
        return "true" if default else "false"
    return f"{default:_}" if isinstance(default, int) and default >= _GROUPED_MIN else str(default)


if __name__ == "__main__":
    main(PAGE, "configuration_page", configuration_part)
