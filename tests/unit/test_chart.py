"""The Helm chart makes the objects of deploy/kustomize, and refuses values that would not work."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
import yaml

from kroute import __version__
from kroute.settings.text import parse_servers
from tests.lab.chart import CHART, helm, refusal, render_chart
from tests.lab.manifests import DEPLOY, KUSTOMIZE, render, the, with_component
from tests.lab.objects import Object
from tests.unit import chart_schema
from tests.unit.kubernetes_schemas import NEWEST, OLDEST, validate

DUAL_STACK = {
    "settings": {
        "cluster-cidr": ["10.244.0.0/16", "fd00:10:244::/56"],
        "service-cidr": "10.96.0.0/12,fd00:10:96::/112",
    }
}
STRICT = {
    "settings": {
        "strict-external-ips": True,
        "external-ip-range": "192.0.2.0/24",
        "loadbalancer-ip-range": ["198.51.100.0/24"],
    }
}
MONITORED = {"settings": {"metrics-bind-address": "0.0.0.0:9999"}, "podMonitor": {"enabled": True}}
EVERY_VALUE = {
    "image": {"pullPolicy": "Always", "pullSecrets": [{"name": "registry"}], "tag": "1.0"},
    "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": []}}},
    "podAnnotations": {"example.com/owner": "network"},
    "nodeSelector": {"pool": "web"},
    "directors": [{"name": "front"}],
    "maxUnavailable": 1,
}
SCHEMA = CHART / "values.schema.json"


def comparable(objects: list[Object]) -> dict[tuple[str, str], Object]:
    """Objects by kind and name, without what each tool does in its own way.

    A new ConfigMap restarts the pods: with kustomize by a digest in its name, with Helm by one on the pods. The
    component of directors has no labels.
    """
    text = json.dumps(objects)
    for item in objects:
        if item["kind"] == "ConfigMap":
            text = text.replace(json.dumps(item["metadata"]["name"]), '"kroute"')
    made: dict[tuple[str, str], Object] = {}
    for item in json.loads(text):
        if item["kind"] == "DaemonSet":
            of_pod = item["spec"]["template"]["metadata"]
            of_pod["annotations"] = {
                name: value for name, value in of_pod.get("annotations", {}).items() if name != "checksum/config"
            }
        if item["metadata"]["name"] == "kroute-director":
            item["metadata"].pop("labels", None)
        made[item["kind"], item["metadata"]["name"]] = item
    assert len(made) == len(objects)
    return made


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("base", {}),
        ("overlays/dual-stack", DUAL_STACK),
        ("overlays/strict-external-ips", STRICT),
        ("overlays/director", {"directors": [{"name": "kroute-director"}]}),
        ("uninstall", {"mode": "uninstall"}),
    ],
)
def test_the_objects_are_those_of_kustomize(name: str, values: dict[str, Any]) -> None:
    assert comparable(render_chart(values)) == comparable(render(KUSTOMIZE / name))


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("iptables", {"iptables": True}),
        ("modules-of-the-host", {"loadModules": False}),
        ("pod-weights", {"settings": {"pod-weights": True}}),
        ("direct-return", {"settings": {"direct-return": True}}),
    ],
)
def test_a_component_of_kustomize_is_a_value(name: str, values: dict[str, Any], tmp_path: Path) -> None:
    assert comparable(render_chart(values)) == comparable(with_component(name, tmp_path))


@pytest.mark.parametrize("values", [{}, DUAL_STACK, {"mode": "uninstall"}], ids=["default", "dual stack", "uninstall"])
def test_helm_finds_no_fault(values: dict[str, Any]) -> None:
    done = helm("lint", "--strict", str(CHART), values=values)
    assert done.returncode == 0, done.stdout + done.stderr


def test_it_has_the_version_of_the_program() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert (chart["version"], chart["appVersion"]) == (__version__, __version__)


class TestValues:
    """What the schema lets pass, and what becomes of it."""

    def test_the_schema_knows_every_setting_of_the_command_line(self) -> None:
        if "KROUTE_WRITE_GOLDEN" in os.environ:
            SCHEMA.write_text(chart_schema.text())
        assert SCHEMA.read_text() == chart_schema.text()

    @pytest.mark.parametrize(
        ("values", "named"),
        [
            ({"settings": {"clustr-cidr": "10.244.0.0/16"}}, "clustr-cidr"),
            ({"settings": {"scheduler": "fastest"}}, "settings.scheduler"),
            ({"settings": {"strict-external-ips": "perhaps"}}, "settings.strict-external-ips"),
            ({"settings": {"metrics-services": -1}}, "settings.metrics-services"),
            ({"settings": {"node-name": "node1"}}, "node-name"),
            ({"apiServer": {"port": 66000}}, "apiServer.port"),
            ({"apiServer": {"hosts": ["https://192.0.2.1"]}}, "apiServer.hosts.0"),
            ({"apiServer": {"hosts": ["192.0.2.1,192.0.2.2"]}}, "apiServer.hosts.0"),
            ({"apiserver": {"host": "192.0.2.1"}}, "apiserver"),
            ({"image": {"digest": "sha256:abc"}}, "image.digest"),
            ({"directors": [{"name": "kroute"}]}, "directors.0.name"),
            ({"directors": [{"name": "b", "syncId": 256}]}, "directors.0.syncId"),
            ({"mode": "off"}, "mode"),
            ({"maxUnavailable": "many"}, "maxUnavailable"),
        ],
        ids=lambda it: json.dumps(it) if isinstance(it, dict) else "",
    )
    def test_a_wrong_value_is_refused_by_its_name(self, values: dict[str, Any], named: str) -> None:
        assert named in refusal(values)

    @pytest.mark.parametrize(
        ("value", "written"),
        [
            ({"hairpin": False}, "off"),
            ({"strict-external-ips": True}, "true"),
            ({"conntrack-max-per-core": 1073741824}, "1073741824"),
            ({"protected-ports": [22, "2379-2380"]}, "22,2379-2380"),
            ({"masquerade-mark": "0x8000"}, "0x8000"),
        ],
        ids=str,
    )
    def test_a_setting_is_written_as_kroute_reads_it(self, value: dict[str, Any], written: str) -> None:
        [name] = value
        data = the("ConfigMap", render_chart({"settings": value}))["data"]
        assert data["KROUTE_" + name.replace("-", "_").upper()] == written

    def test_several_api_servers_are_written_as_kroute_reads_them(self) -> None:
        hosts = ["192.0.2.1", "127.0.0.1:6444", "api.example", "2001:db8::1", "[2001:db8::2]", "[2001:db8::3]:443"]
        data = the("ConfigMap", render_chart({"apiServer": {"host": "192.0.2.9", "port": 8443, "hosts": hosts}}))[
            "data"
        ]
        assert parse_servers(data["KROUTE_MASTER"]) == (
            "https://192.0.2.1:8443",
            "https://127.0.0.1:6444",
            "https://api.example:8443",
            "https://[2001:db8::1]:8443",
            "https://[2001:db8::2]:8443",
            "https://[2001:db8::3]:443",
        )
        assert "KUBERNETES_SERVICE_HOST" not in data, "the Pod's own variable stays"

    def test_a_digest_takes_the_place_of_the_tag(self) -> None:
        digest = "sha256:" + "ab" * 32
        image = {"repository": "registry.example/kroute", "digest": digest}
        pod = the("DaemonSet", render_chart({"image": image}))["spec"]["template"]["spec"]
        assert {it["image"] for it in [*pod["initContainers"], *pod["containers"]]} == {
            f"registry.example/kroute@{digest}"
        }

    def test_the_other_values_are_taken_as_they_are(self) -> None:
        daemonset = the("DaemonSet", render_chart(EVERY_VALUE))["spec"]
        pod = daemonset["template"]["spec"]
        assert pod["imagePullSecrets"] == [{"name": "registry"}]
        assert pod["affinity"] == EVERY_VALUE["affinity"]
        assert pod["nodeSelector"]["pool"] == "web"
        assert daemonset["updateStrategy"]["rollingUpdate"]["maxUnavailable"] == 1
        assert daemonset["template"]["metadata"]["annotations"]["example.com/owner"] == "network"
        assert {(it["image"], it["imagePullPolicy"]) for it in [*pod["initContainers"], *pod["containers"]]} == {
            ("kroute:1.0", "Always")
        }

    def test_a_change_of_a_setting_restarts_the_pods(self) -> None:
        def digest(values: dict[str, Any]) -> str:
            template = the("DaemonSet", render_chart(values))["spec"]["template"]
            return str(template["metadata"]["annotations"]["checksum/config"])

        assert digest({}) == digest({"podAnnotations": {"a": "b"}}) != digest(STRICT)

    def test_the_probes_follow_the_health_address(self) -> None:
        def probes(address: object) -> list[Object]:
            objects = render_chart({"settings": {"healthz-bind-address": address}})
            [container] = the("DaemonSet", objects)["spec"]["template"]["spec"]["containers"]
            return [container[it] for it in ("startupProbe", "livenessProbe", "readinessProbe") if it in container]

        assert {it["httpGet"]["port"] for it in probes("[::]:10300")} == {10300}
        hosts = {"127.0.0.1:10300": "127.0.0.1", "[::1]:10300": "::1", ":10300": None, "0.0.0.0:10300": None}
        for address, host in {**hosts, "[::]:10300": None}.items():
            assert {it["httpGet"].get("host") for it in probes(address)} == {host}, "the kubelet asks the pod's address"
        assert probes(False) == []


class TestMonitoring:
    """Objects for the Prometheus operator."""

    def test_agents_on_loopback_cannot_be_monitored(self) -> None:
        assert "metrics-bind-address" in refusal({"podMonitor": {"enabled": True}})

    def test_pods_have_the_port_that_is_asked(self) -> None:
        objects = render_chart(MONITORED)
        monitor = the("PodMonitor", objects)
        pods = the("DaemonSet", objects)["spec"]["template"]
        assert monitor["spec"]["selector"]["matchLabels"].items() <= pods["metadata"]["labels"].items()
        [endpoint] = monitor["spec"]["podMetricsEndpoints"]
        assert pods["spec"]["containers"][0]["ports"] == [{"name": endpoint["port"], "containerPort": 9999}]
        job = pods["metadata"]["labels"][monitor["spec"]["jobLabel"]]
        assert f'up{{job="{job}"}}' in (DEPLOY / "prometheus/alerts.yaml").read_text()

    def test_the_alerts_are_those_of_the_rule_file(self) -> None:
        rule = the("PrometheusRule", render_chart({"prometheusRule": {"enabled": True, "labels": {"release": "kps"}}}))
        assert rule["spec"] == yaml.safe_load((DEPLOY / "prometheus/alerts.yaml").read_text())
        assert rule["metadata"]["labels"]["release"] == "kps"

    def test_the_runbooks_can_be_at_an_address_of_the_cluster(self) -> None:
        values = {"prometheusRule": {"enabled": True, "runbooks": "https://docs.example.com/alerts.html"}}
        [group] = the("PrometheusRule", render_chart(values))["spec"]["groups"]
        for rule in group["rules"]:
            anchor = rule["alert"].lower()
            assert rule["annotations"]["runbook_url"] == f"https://docs.example.com/alerts.html#{anchor}"

    def test_labels_of_services_are_not_replaced_by_those_of_the_pod(self) -> None:
        """tests/prometheus/ shows what becomes of them otherwise."""
        [endpoint] = the("PodMonitor", render_chart(MONITORED))["spec"]["podMetricsEndpoints"]
        assert endpoint["honorLabels"] is True


def test_every_pair_of_directors_has_an_account_and_a_lease_of_its_own() -> None:
    objects = render_chart({"directors": [{"name": "front"}, {"name": "back", "syncId": 2}]})
    for name in ("front", "back"):
        assert the("Secret", objects, name)["metadata"]["annotations"]["kubernetes.io/service-account.name"] == name
        leases = the("Role", objects, name)["rules"][1]
        assert (leases["resources"], leases["resourceNames"]) == (["leases"], [name])


@pytest.mark.parametrize("version", [OLDEST, NEWEST])
@pytest.mark.parametrize(
    "values",
    [MONITORED, {"iptables": True, **DUAL_STACK}, {"mode": "uninstall", **STRICT}, EVERY_VALUE],
    ids=["monitored", "dual stack with iptables", "uninstall", "every other value"],
)
def test_every_object_is_valid_by_the_schemas_of_kubernetes(values: dict[str, Any], version: str) -> None:
    for item in render_chart(values):
        if not item["apiVersion"].startswith("monitoring.coreos.com/"):
            validate(item, version)
