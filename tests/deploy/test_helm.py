"""deploy/helm: Helm accepts the chart, and Kubernetes and Symphony what it renders."""

import subprocess
import tomllib
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml
from symphony_runtime.config.serve import read_options

from tests.support.requirements import requires

ROOT = Path(__file__).resolve().parents[2]
CHART = ROOT / "deploy" / "helm" / "symphony"
HELM = ROOT / "build" / "deploy-tools" / "helm"
KUBERNETES = ("1.30", "1.35")
VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
CONFIG = """
workers = 2
run_kept_seconds_max = 604_800

[limits]
wall_ms = {default = 600_000, max = 3_600_000}

[tenant_weights]
research = 2
"""
PLAIN: dict[str, Any] = {}
ALL: dict[str, Any] = {
    "model": "/models/qwen",
    "modelVolume": {"persistentVolumeClaim": {"claimName": "models", "readOnly": True}},
    "config": CONFIG,
    "drainSeconds": 60,
    "storeSecret": "database",
    "tlsSecret": "certificate",
    "imagePullSecrets": [{"name": "registry"}],
    "storage": {"size": "1Ti", "storageClassName": "fast"},
    "ingress": {
        "enabled": True, "className": "nginx", "host": "llm.example.org", "tlsSecret": "outside",
        "annotations": {"nginx.ingress.kubernetes.io/proxy-buffering": "off"},
    },
    "monitoring": {"enabled": True, "labels": {"release": "prometheus"}},
    "networkPolicy": {"enabled": True, "from": {"app": "proxy"}},
    "nodeSelector": {"kubernetes.io/arch": "amd64"},
    "tolerations": [{"key": "models", "operator": "Exists"}],
    "affinity": {"podAntiAffinity": {}},
    "podAnnotations": {"example.org/team": "serving"},
}  # fmt: skip

pytestmark = requires("helm", HELM.is_file(), "Helm was not fetched")


def helm(*arguments: str, values: dict[str, Any]) -> subprocess.CompletedProcess[str]:
    command = [str(HELM), *arguments, str(CHART), "--values", "-"]
    return subprocess.run(
        command, input=yaml.safe_dump(values), capture_output=True, text=True, timeout=60,
        check=False,
    )  # fmt: skip


def rendered(values: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the chart's objects by kind."""
    done = helm("template", "release", "--kube-version", "1.30", values=values)
    assert done.returncode == 0, done.stderr
    return {each["kind"]: each for each in yaml.safe_load_all(done.stdout) if each}


@pytest.mark.parametrize("values", [PLAIN, ALL], ids=["plain", "all"])
def test_chart_is_linted_without_a_warning(values: dict[str, Any]) -> None:
    done = helm("lint", "--strict", values=values)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "[WARNING]" not in done.stdout


@pytest.mark.parametrize("version", KUBERNETES)
@pytest.mark.parametrize("values", [PLAIN, ALL], ids=["plain", "all"])
def test_objects_are_of_kubernetes_schemas(values: dict[str, Any], version: str) -> None:
    objects = rendered(values)
    assert {"ConfigMap", "Service", "StatefulSet"} <= set(objects)
    for kind, each in objects.items():
        if kind not in ("ServiceMonitor", "PrometheusRule"):  # of an operator, not of Kubernetes
            kubernetes_validate.validate(each, version, strict=True)


def test_schema_of_kubernetes_refuses_a_wrong_field() -> None:
    broken = rendered(PLAIN)["StatefulSet"]
    broken["spec"]["template"]["spec"]["containers"][0]["readynessProbe"] = {}
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(broken, KUBERNETES[-1], strict=True)


@pytest.mark.parametrize(("values", "tls"), [(PLAIN, False), (ALL, True)], ids=["plain", "all"])
def test_configuration_is_one_that_the_server_takes(
    values: dict[str, Any], tls: bool, tmp_path: Path
) -> None:
    path = tmp_path / "symphony.toml"
    path.write_text(rendered(values)["ConfigMap"]["data"]["symphony.toml"])
    options = read_options(path, {})
    assert options.host == "0.0.0.0"
    assert options.require_containment
    assert (options.tls_cert is not None, options.behind_proxy) == (tls, not tls)
    assert options.model == values.get("model", "tiny")
    assert options.drain_seconds == values.get("drainSeconds", 10)
    if values:
        assert (options.workers, options.tenant_weights) == (2, {"research": 2.0})


def test_pod_has_no_rights_and_waits_for_its_runs() -> None:
    spec = rendered(ALL)["StatefulSet"]["spec"]["template"]["spec"]
    [container] = spec["containers"]
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert spec["automountServiceAccountToken"] is False
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert spec["terminationGracePeriodSeconds"] == 60 + 35
    mounted = {each["name"] for each in container["volumeMounts"]}
    assert mounted == {each["name"] for each in spec["volumes"]} | {"data"}
    probes = [container[f"{kind}Probe"]["httpGet"] for kind in ("startup", "liveness", "readiness")]
    assert {each["scheme"] for each in probes} == {"HTTPS"}


def test_rules_are_the_alerts_and_the_service_is_what_is_scraped() -> None:
    objects = rendered(ALL)
    alerts = yaml.safe_load((ROOT / "deploy" / "prometheus" / "alerts.yml").read_text())
    assert objects["PrometheusRule"]["spec"] == alerts
    selector = objects["ServiceMonitor"]["spec"]["selector"]["matchLabels"]
    assert selector.items() <= objects["Service"]["metadata"]["labels"].items()


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"modle": "tiny"}, "additional properties 'modle' not allowed"),
        ({"model": "qwen"}, "does not match pattern"),
        ({"ingress": {"enabled": True, "host": "a.example.org"}}, "ingress.tlsSecret is needed"),
    ],
)
def test_values_that_are_wrong_are_refused(values: dict[str, Any], words: str) -> None:
    done = helm("template", "release", values=values)
    assert done.returncode != 0
    assert words in done.stderr


def test_chart_has_the_projects_version() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert (chart["version"], chart["appVersion"]) == (VERSION, VERSION)
