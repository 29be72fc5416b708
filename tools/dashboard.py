"""The Grafana dashboard of deploy/grafana, from its table: `python -m tools.dashboard --write`.

dashboard.toml  ->  Grafana's own builders  ->  dashboard.json
"""

import json
import sys
import tomllib
from pathlib import Path
from typing import Any

from grafana_foundation_sdk.builders import common, dashboard, prometheus, stat, timeseries
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.common import LegendPlacement
from grafana_foundation_sdk.models.dashboard import (
    DashboardCursorSync,
    DataSourceRef,
    VariableRefresh,
)

PLACE = Path(__file__).resolve().parents[1] / "deploy" / "grafana"
_SOURCE = DataSourceRef(type_val="prometheus", uid="${datasource}")
_WIDTH = 8  # of 24 columns, for panels that name none
_HEIGHTS = {True: 4, False: 8}  # of panels with a single value, and of the others
# Names in the table's queries, and the variable that each stands for.
_CHOICES = {"SERVER": "instance", "TENANT": "tenant", "ROLE": "role"}
_LABELS = {"instance": "role_up", "tenant": "runs_live", "role": "role_up"}


def made() -> str:
    """Return the text of dashboard.json."""
    table = tomllib.loads((PLACE / "dashboard.toml").read_text(encoding="utf-8"))
    board = (
        dashboard.Dashboard("Symphony")
        .uid("symphony")
        .description("Programs, tenants, the model and the processes of Symphony servers")
        .tags(["symphony", "llm"])
        .time("now-3h", "now")
        .refresh("30s")
        .tooltip(DashboardCursorSync.CROSSHAIR)
        .with_variable(dashboard.DatasourceVariable("datasource").type("prometheus"))
    )
    for variable in _CHOICES.values():
        board.with_variable(_variable(variable))
    number = 0
    for row in table["rows"]:
        number += 1
        board.with_row(dashboard.Row(row["title"]).id(number))
        for panel in row["panels"]:
            number += 1
            board.with_panel(_panel(panel).id(number))
    return json.dumps(board.build(), cls=JSONEncoder, indent=1, sort_keys=True) + "\n"


def _variable(label: str) -> dashboard.QueryVariable:
    query = f"label_values(symphony:{_LABELS[label]}, {label})"
    return (
        dashboard.QueryVariable(label)
        .datasource(_SOURCE)
        .query(query)
        .refresh(VariableRefresh.ON_TIME_RANGE_CHANGED)
        .multi(True)
        .include_all(True)
        .all_value(".*")
    )


def _panel(table: dict[str, Any]) -> stat.Panel | timeseries.Panel:
    single = table.get("stat", False)
    panel: stat.Panel | timeseries.Panel
    if single:
        panel = stat.Panel().reduce_options(common.ReduceDataOptions().calcs(["lastNotNull"]))
    else:
        panel = timeseries.Panel().fill_opacity(10)
        panel.legend(common.VizLegendOptions().show_legend(True).placement(LegendPlacement.BOTTOM))
    panel.title(table["title"]).datasource(_SOURCE).unit(table.get("unit", "short")).min(0)
    panel.height(_HEIGHTS[single]).span(table.get("width", _WIDTH))
    for letter, query in zip("ABCDEFGH", table["queries"], strict=False):
        target = prometheus.Dataquery().ref_id(letter).expr(_expression(query["query"]))
        panel.with_target(target.legend_format(query["legend"]))
    return panel


def _expression(query: str) -> str:
    for name, label in _CHOICES.items():
        query = query.replace(name, f'{label}=~"${label}"')
    return query


def main(arguments: list[str]) -> int:
    path, text = PLACE / "dashboard.json", made()
    if "--write" in arguments:
        path.write_text(text, encoding="utf-8")
    return 0 if path.read_text(encoding="utf-8") == text else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
