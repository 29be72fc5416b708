"""The AssemblyScript SDK's exports, read from its sources."""

import re
from collections.abc import Iterator

from tools.docs_site.links import ROOT

_SDK = ROOT / "guest_sdk/assemblyscript/assembly"
_MODULE = re.compile(r'^export \* from "\./(\w+)";', re.MULTILINE)
_DOC = r"(?:/\*\*(?P<doc>(?:(?!\*/).)*?)\*/\s*\n)?"
_EXPORT = re.compile(
    rf"^{_DOC}export (?:abstract |declare )?(?P<kind>class|function|enum|namespace|const) "
    r"(?P<name>\w+)(?P<rest>[^{=;]*)",
    re.MULTILINE | re.DOTALL,
)
_METHOD = re.compile(
    rf"^  {_DOC.replace(chr(92) + 'n', chr(92) + 'n *')}"
    r"(?P<static>static )?(?P<get>get )?(?P<name>[a-z]\w*)\((?P<parameters>[^)]*)\)"
    r"(?:: (?P<result>[\w<>\[\] |.]+))? \{",
    re.MULTILINE | re.DOTALL,
)


def assemblyscript_page() -> str:
    """Return the page of the exports: a heading a module, a row an export or a method."""
    parts = ["## Exports\n\nMade from the sources. A method stands below its class.\n"]
    for module in _MODULE.findall((_SDK / "index.ts").read_text()):
        source = (_SDK / f"{module}.ts").read_text()
        rows = [f"| {name} | {what} |\n" for name, what in exports_of(source)]
        parts.append(f"### {module}\n\n| export | what |\n| --- | --- |\n{''.join(rows)}")
    return "\n".join(parts)


def exports_of(source: str) -> Iterator[tuple[str, str]]:
    """Yield each export of a module and each method of its classes, with its comment."""
    found = list(_EXPORT.finditer(source))
    for at, each in enumerate(found):
        kind, name = each.group("kind", "name")
        signature = f"{name}{each.group('rest')}" if kind == "function" else f"{kind} {name}"
        yield f"`{_line(signature)}`", _line(each.group("doc"))
        if kind != "class":
            continue
        end = found[at + 1].start() if at + 1 < len(found) else len(source)
        for method in _METHOD.finditer(source, each.end(), _end_of(source, each.end(), end)):
            if method.group("name") in ("constructor", "if", "for", "while", "switch"):
                continue
            shown = f"{name}.{method.group('name')}"
            if method.group("get") is None:
                shown += f"({_line(method.group('parameters'))})"
            if method.group("result"):
                shown += f": {method.group('result')}"
            yield f"`{shown}`", _line(method.group("doc"))


def _end_of(source: str, start: int, end: int) -> int:
    closing = source.find("\n}", start, end)
    return closing if closing >= 0 else end


def _line(text: str | None) -> str:
    words = re.sub(r"^\s*\*", "", text or "", flags=re.MULTILINE)
    return " ".join(words.split()).replace("|", "\\|")
