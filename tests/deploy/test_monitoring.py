"""deploy/prometheus and deploy/grafana: promtool accepts the rules, a server has the metrics."""

import asyncio
import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from grafana_foundation_sdk.models.dashboard import Dashboard
from symphony import AsyncClient

from tests.e2e.programs import HELLO_WASM
from tests.support.requirements import requires
from tests.support.server.server import RunningServer, running_server
from tools.dashboard import PLACE, made

ROOT = Path(__file__).resolve().parents[2]
PROMETHEUS = ROOT / "deploy" / "prometheus"
PROMTOOL = ROOT / "build" / "deploy-tools" / "promtool"
RULES = yaml.safe_load((PROMETHEUS / "alerts.yml").read_text())
ALERTS = [rule for group in RULES["groups"] for rule in group["rules"]]
NAME = re.compile(r"\bsymphony:\w+")
LABELS = re.compile(r"(\w+)\s*(?:=~|!~|!=|=)")
# Labels that Prometheus adds.
ADDED = {"instance", "job", "le"}
needs_promtool = requires("promtool", PROMTOOL.is_file(), "promtool was not fetched")


def promtool(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [str(PROMTOOL), *arguments]
    return subprocess.run(
        command, cwd=PROMETHEUS, capture_output=True, text=True, timeout=120, check=False
    )


@needs_promtool
@pytest.mark.parametrize(
    "arguments",
    [
        ("check", "rules", "--lint=all", "--lint-fatal", "alerts.yml"),
        ("check", "config", "--syntax-only", "prometheus.yml"),
        ("test", "rules", "alerts_test.yml"),
    ],
    ids=["rules", "config", "test"],
)
def test_promtool_accepts(arguments: tuple[str, ...]) -> None:
    done = promtool(*arguments)
    assert done.returncode == 0, done.stdout + done.stderr


@needs_promtool
def test_promtool_finds_an_alert_that_does_not_fire(tmp_path: Path) -> None:
    late = (PROMETHEUS / "alerts.yml").read_text().replace("for: 2m", "for: 2h")
    (tmp_path / "alerts.yml").write_text(late)
    (tmp_path / "test.yml").write_text((PROMETHEUS / "alerts_test.yml").read_text())
    assert promtool("test", "rules", str(tmp_path / "test.yml")).returncode != 0


def test_each_alert_has_a_test_and_a_line_in_the_documentation() -> None:
    tests = yaml.safe_load((PROMETHEUS / "alerts_test.yml").read_text())["tests"]
    fired = {
        each["alertname"]
        for test in tests
        for each in test["alert_rule_test"]
        if each.get("exp_alerts")
    }
    names = [rule["alert"] for rule in ALERTS]
    assert fired == set(names)
    page = (ROOT / "docs" / "operate" / "deploy.md").read_text()
    assert re.findall(r"^\| `(Symphony\w+)`", page, re.MULTILINE) == names
    assert all(rule["labels"]["severity"] in ("critical", "warning", "info") for rule in ALERTS)


def test_dashboard_is_what_its_table_gives_and_of_grafanas_schema() -> None:
    text = (PLACE / "dashboard.json").read_text()
    assert text == made(), "run `.venv/bin/python -m tools.dashboard --write`"
    board = Dashboard.from_json(json.loads(text))
    assert board.uid == "symphony"
    panels = [panel for panel in board.panels or [] if panel.type_val != "row"]
    ids = [panel.id_val for panel in board.panels or []]
    assert len(ids) == len(set(ids)) > 40
    places = [(panel.grid_pos.x, panel.grid_pos.y) for panel in panels if panel.grid_pos]
    assert len(places) == len(set(places)) == len(panels)


def queries() -> Iterator[tuple[str, str]]:
    """Yield each query of alerts and dashboard, with the name of its alert or panel."""
    for rule in ALERTS:
        yield rule["alert"], rule["expr"]
    board: dict[str, Any] = json.loads((PLACE / "dashboard.json").read_text())
    for panel in board["panels"]:
        for target in panel.get("targets") or []:
            yield panel["title"], target["expr"]
    for variable in board["templating"]["list"]:
        if variable["type"] == "query":
            yield variable["name"], variable["query"]


@needs_promtool
def test_queries_of_the_dashboard_are_promql(tmp_path: Path) -> None:
    expressions = [
        query.replace("$__rate_interval", "1m") for _, query in queries() if "label_" not in query
    ]
    rules = [{"record": f"panel:{n}", "expr": each} for n, each in enumerate(expressions)]
    path = tmp_path / "rules.yml"
    path.write_text(yaml.safe_dump({"groups": [{"name": "panels", "rules": rules}]}))
    done = promtool("check", "rules", str(path))
    assert done.returncode == 0, done.stdout + done.stderr
    assert len(rules) > 60


@pytest.fixture(scope="module")
def scraped(tmp_path_factory: pytest.TempPathFactory) -> dict[str, set[str]]:
    """Return the metrics of a real server after a run, each with its labels, as Prometheus sees it.

    It shows the key that the documentation gives Prometheus: an operators' read-only one.
    """
    with running_server(tmp_path_factory.mktemp("server")) as server:
        return _scrape(server)


def _scrape(server: RunningServer) -> dict[str, set[str]]:
    (server.data_dir / "hello.wasm").write_bytes(HELLO_WASM)
    done = server.symphony("run", str(server.data_dir / "hello.wasm"))
    assert done.returncode == 0, done.stderr
    words = ["admin", "keys", "create", "--role", "read-only", "--name", "prometheus", "--json"]
    made_key = server.symphony(*words, environment={"SYMPHONY_ADMIN_KEY": server.admin_key})
    assert made_key.returncode == 0, made_key.stderr
    key = json.loads(made_key.stdout)["key"]
    found: dict[str, set[str]] = {}
    for line in _metrics(server, key).splitlines():
        if not line.startswith("#"):
            name, _, rest = line.partition("{")
            labels = re.findall(r'(\w+)="', rest.rpartition("}")[0])
            found.setdefault(name.split()[0], set()).update(labels)
    return found


def _metrics(server: RunningServer, key: str) -> str:
    async def ask() -> str:
        async with AsyncClient(server.url, key, retries=0) as client:
            return await client.metrics()

    return asyncio.run(ask())


@pytest.mark.parametrize(("title", "query"), list(queries()))
def test_query_names_metrics_and_labels_that_a_server_has(
    title: str, query: str, scraped: dict[str, set[str]]
) -> None:
    names = NAME.findall(query)
    assert names or query.startswith("up{"), title
    assert {name for name in names if name not in scraped} == set()
    has = set[str]().union(*(scraped[name] for name in names)) | ADDED
    selected = {label for part in re.findall(r"{(.*?)}", query) for label in LABELS.findall(part)}
    grouped = {
        label.strip()
        for part in re.findall(r"\b(?:by|ignoring|on) \(([^)]*)\)", query)
        for label in part.split(",")
    }
    assert selected | grouped - {""} <= has, title
