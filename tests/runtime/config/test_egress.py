"""What operators write in symphony.toml, and what they are told when it is wrong."""

from pathlib import Path
from typing import Any

import pytest
from symphony_runtime.config.egress import parse_http, parse_tools
from symphony_runtime.config.serve import OptionsError, read_options
from yarl import URL

GOOD = """
[tools.weather]
command = ["python", "weather.py"]
tenants = ["research"]
environment = {KEY = "secret"}
directory = "tools"
timeout_seconds = 5
calls_at_once = 2

[tools.remote]
url = "https://tools.example.com/mcp"
headers = {Authorization = "Bearer x"}

[[http]]
tenants = ["*"]
urls = ["https://api.example.com/v1/", "http://10.1.2.3:8080", "https://*.example.org"]
methods = ["GET", "POST"]
networks = ["fd00::/8"]
"""


def test_egress_tables_of_a_file_are_read(tmp_path: Path) -> None:
    path = tmp_path / "symphony.toml"
    path.write_text(GOOD)
    options = read_options(path, {})
    weather, remote = parse_tools(options.tools)
    assert weather.command == ("python", "weather.py")
    assert weather.directory == tmp_path / "tools"
    assert (weather.timeout_ms, weather.calls_at_once) == (5_000, 2)
    assert (weather.serves("research"), weather.serves("default")) == (True, False)
    assert (remote.url, remote.serves("default")) == ("https://tools.example.com/mcp", False)
    for secret in ("secret", "Bearer"):
        assert secret not in repr((weather, remote))
    (rule,) = parse_http(options.http)
    assert rule.serves("anybody")
    assert [str(network) for network in rule.networks] == ["fd00::/8", "10.1.2.3/32"]
    assert rule.covers(URL("https://api.example.com/v1/x"))
    assert rule.covers(URL("https://a.b.example.org/x"))
    assert not rule.covers(URL("https://example.org/x"))
    assert not rule.covers(URL("https://api.example.com/v2/x"))


BAD: list[tuple[dict[str, Any], str]] = [
    ({"tools": {"a.b": {"command": ["x"]}}}, "tools.a.b: a server's name"),
    ({"tools": {"a": {}}}, "tools.a: it needs either a command or a url"),
    ({"tools": {"a": {"command": ["x"], "url": "http://b"}}}, "either a command or a url"),
    ({"tools": {"a": {"command": "x"}}}, "command must be a list (each a non-empty string)"),
    ({"tools": {"a": {"url": "ftp://b"}}}, "url must be"),
    ({"tools": {"a": {"url": 1}}}, "url must be"),
    ({"tools": {"a": {"command": ["x"], "tenant": ["y"]}}}, "no option is called 'tenant'"),
    (
        {"tools": {"a": {"command": ["x"], "tenants": "y"}}},
        "tenants must be a list (each a non-empty string)",
    ),
    (
        {"tools": {"a": {"command": ["x"], "environment": {"A": 1}}}},
        "environment.A must be a string",
    ),
    ({"tools": {"a": {"command": ["x"], "headers": {}}}}, "headers goes with url"),
    ({"tools": {"a": {"url": "http://b", "directory": "."}}}, "directory goes with command"),
    ({"tools": {"a": {"command": ["x"], "timeout_seconds": 0}}}, "timeout_seconds must be"),
    ({"tools": {"a": {"command": ["x"], "calls_at_once": 0}}}, "calls_at_once must be"),
    ({"tools": {"a": 1}}, "tools.a must be a table"),
    ({"http": [{"tenants": ["a"]}]}, "urls must name one URL at least"),
    ({"http": [{"urls": ["example.com"]}]}, "must be https://"),
    ({"http": [{"urls": ["https://a/?q=1"]}]}, "must be https://"),
    ({"http": [{"urls": ["https://u@a/"]}]}, "must be https://"),
    ({"http": [{"urls": ["https://a.*.b/"]}]}, "must be https://"),
    ({"http": [{"urls": ["https://*"]}]}, "must be https://"),
    ({"http": [{"urls": ["https://a"], "methods": ["CONNECT"]}]}, "is no method"),
    ({"http": [{"urls": ["https://a"], "methods": ["get"]}]}, "is no method"),
    ({"http": [{"urls": ["https://a"], "networks": ["10.0.0.1/8"]}]}, "is no network"),
    ({"http": [{"urls": ["https://a"], "hosts": ["a"]}]}, "no option is called 'hosts'"),
    ({"http": [1]}, "must be a table"),
]


@pytest.mark.parametrize(("tables", "words"), BAD, ids=lambda case: str(case)[:60])
def test_egress_table_with_a_mistake_is_refused(tables: dict[str, Any], words: str) -> None:
    with pytest.raises(OptionsError) as caught:
        read_options(None, tables)
    assert words in str(caught.value)
