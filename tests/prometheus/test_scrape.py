"""A Prometheus scrapes an agent as the operator configures it by the chart's PodMonitor.

The scrape configuration follows `generatePodMonitorConfig` in pkg/prometheus/promcfg.go of prometheus-operator.
"""

import asyncio
import json
import re
import urllib.parse
import urllib.request
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from kroute.checks.running_proxies import Sign
from kroute.inspect.status import AllocatorView
from kroute.kernel.ipvs.objects import RealServerState, Traffic, VirtualServerOptions, VirtualServerState
from kroute.model.objects import Applied, ObjectKey
from kroute.model.plan import NodePlan, Problem, Protocol, RealServer, ServicePlan, VirtualServer, VirtualServerKey
from tests.builders import facts, service
from tests.lab.chart import render_chart
from tests.lab.deployment import eventually
from tests.lab.manifests import DEPLOY, the
from tests.lab.objects import Object
from tests.unit.controllers.announcing.test_announcing import announcing_of
from tests.unit.controllers.announcing.test_announcing import started as announcing
from tests.unit.controllers.test_pod_routes import new_node
from tests.unit.controllers.test_pod_routes import started as connected
from tests.unit.load_balancer import LOCALHOST, free_ports
from tests.unit.observed import Observed

pytestmark = pytest.mark.prometheus

MONITORED = {"settings": {"own-bind-address": "0.0.0.0:10247"}, "podMonitor": {"enabled": True}}
CONNECTIONS = {"shop": 30, "blog": 12}
"""Connections so far of the Service `web` in each of two namespaces."""


class Prometheus:
    """A running Prometheus."""

    def __init__(self, port: int) -> None:
        self._port = port

    async def query(self, expression: str) -> list[Object]:
        """The samples of an instant vector. Raises OSError while Prometheus starts, or if the expression is wrong."""
        query = urllib.parse.urlencode({"query": expression})
        return await asyncio.to_thread(self._get, f"http://{LOCALHOST}:{self._port}/api/v1/query?{query}")

    async def values(self, expression: str, *labels: str) -> dict[tuple[str | None, ...], float]:
        """The samples by these labels. Raises AssertionError as long as there are none."""
        samples = await self.query(expression)
        assert samples, expression
        return {tuple(it["metric"].get(label) for label in labels): float(it["value"][1]) for it in samples}

    @staticmethod
    def _get(url: str) -> list[Object]:
        with urllib.request.urlopen(url, timeout=10) as answer:
            return list(json.load(answer)["data"]["result"])


def scrape_job(monitor: Object, pod: Object, target: str) -> dict[str, Any]:
    """What the operator makes of a PodMonitor, with one discovered pod in place of the discovery."""
    [endpoint] = monitor["spec"]["podMetricsEndpoints"]
    job_label = re.sub(r"\W", "_", monitor["spec"]["jobLabel"])
    discovered = {
        "__meta_kubernetes_namespace": monitor["metadata"]["namespace"],
        "__meta_kubernetes_pod_name": "kroute-x7k2p",
        "__meta_kubernetes_pod_node_name": "node1",
        "__meta_kubernetes_pod_container_name": "kroute",
        "__meta_kubernetes_pod_container_port_name": pod["spec"]["containers"][0]["ports"][0]["name"],
        **{
            f"__meta_kubernetes_pod_label_{re.sub(r'[^a-zA-Z0-9_]', '_', name)}": value
            for name, value in pod["metadata"]["labels"].items()
        },
    }
    given = {"__meta_kubernetes_namespace": "namespace", "__meta_kubernetes_pod_container_name": "container"}
    return {
        "job_name": f"podMonitor/{monitor['metadata']['namespace']}/{monitor['metadata']['name']}/0",
        "scrape_interval": "1s",
        "honor_labels": endpoint.get("honorLabels", False),
        "static_configs": [{"targets": [target], "labels": discovered}],
        "relabel_configs": [
            {
                "action": "keep",
                "source_labels": ["__meta_kubernetes_pod_container_port_name"],
                "regex": endpoint["port"],
            },
            *({"source_labels": [source], "target_label": label} for source, label in given.items()),
            {"source_labels": ["__meta_kubernetes_pod_name"], "target_label": "pod"},
            {"target_label": "job", "replacement": f"{monitor['metadata']['namespace']}/{monitor['metadata']['name']}"},
            {
                "source_labels": [f"__meta_kubernetes_pod_label_{job_label}"],
                "target_label": "job",
                "regex": "(.+)",
                "replacement": "$1",
            },
            {"target_label": "endpoint", "replacement": endpoint["port"]},
            *(
                {"source_labels": it["sourceLabels"], "target_label": it["targetLabel"]}
                for it in endpoint["relabelings"]
            ),
        ],
    }


def agent_with_two_services_of_one_name() -> Observed:
    agent = Observed(allocator=AllocatorView("node1", is_here=True, waiting=1))
    plans: list[NodePlan | ServicePlan] = [NodePlan(facts())]
    for number, (namespace, count) in enumerate(CONNECTIONS.items(), 1):
        key = VirtualServerKey(Protocol.TCP, f"10.96.0.{number}", 80)
        server = RealServer(f"10.1.0.{number}", 8080)
        virtual_server = VirtualServer(key, "rr", 0, None, (server,))
        problem = Problem("InvalidAnnotation", "annotation x=y", "y is not allowed")
        plans.append(ServicePlan(ObjectKey(namespace, "web"), virtual_servers=(virtual_server,), problems=(problem,)))
        agent.kernel.table[key] = VirtualServerState(
            VirtualServerOptions(), {(server.address, server.port): RealServerState(1, 1, 0)}
        )
        agent.kernel.passed[key] = Traffic(count, 100, 90, 5000, 70000)
    agent.broadcaster.publish(plans)
    agent.changes.read([Applied(service())])
    agent.ownership.waits_for = agent.ownership.rival = Sign("kube-proxy", "process 7")
    return agent


@asynccontextmanager
async def scraping(directory: Path, job: Mapping[str, Any]) -> AsyncIterator[Prometheus]:
    """Run a Prometheus with this scrape job and the shipped alerts."""
    [port] = free_ports()
    config = directory / "prometheus.yaml"
    config.write_text(
        yaml.safe_dump({"scrape_configs": [dict(job)], "rule_files": [str(DEPLOY / "prometheus/alerts.yaml")]})
    )
    log = (directory / "prometheus.log").open("w")
    process = await asyncio.create_subprocess_exec(
        "prometheus",
        f"--config.file={config}",
        f"--storage.tsdb.path={directory / 'data'}",
        f"--web.listen-address={LOCALHOST}:{port}",
        stdout=log,
        stderr=log,
    )
    try:
        yield Prometheus(port)
    finally:
        process.terminate()
        await process.wait()
        log.close()


def monitor_and_pod() -> tuple[Object, Object]:
    objects = render_chart(MONITORED)
    return the("PodMonitor", objects), the("DaemonSet", objects)["spec"]["template"]


async def test_services_of_one_name_keep_their_namespaces(tmp_path: Path) -> None:
    agent = agent_with_two_services_of_one_name()
    job = scrape_job(*monitor_and_pod(), f"{LOCALHOST}:{agent.metrics_port}")
    async with agent.running(), scraping(tmp_path, job) as prometheus:
        by_service = "sum by (namespace, service) (kroute_service_connections_total)"
        found = await eventually(lambda: prometheus.values(by_service, "namespace", "service"))
        assert found == {(namespace, "web"): count for namespace, count in CONNECTIONS.items()}
        target = await prometheus.values("kroute_build_info", "job", "instance", "namespace", "pod")
        assert target == {("kroute", "node1", "kube-system", "kroute-x7k2p"): 1}


async def test_without_honor_labels_they_would_be_one(tmp_path: Path) -> None:
    """The fault itself: this is why the PodMonitor has honorLabels."""
    agent = agent_with_two_services_of_one_name()
    job = {**scrape_job(*monitor_and_pod(), f"{LOCALHOST}:{agent.metrics_port}"), "honor_labels": False}
    async with agent.running(), scraping(tmp_path, job) as prometheus:
        by_service = "sum by (namespace, service) (kroute_service_connections_total)"
        found = await eventually(lambda: prometheus.values(by_service, "namespace", "service"))
        assert found == {("kube-system", "web"): sum(CONNECTIONS.values())}


@pytest.mark.parametrize("cluster", [None, "berlin"])
async def test_each_panel_of_the_dashboard_finds_its_series(cluster: str | None, tmp_path: Path) -> None:
    """Also where no cluster label tells clusters apart. No router is reached."""
    agent = agent_with_two_services_of_one_name()
    node = await announcing(tmp_path)
    await node.resync()
    agent.workers.optional.announcing = announcing_of(node)
    agent.workers.optional.pod_routes = (await connected(new_node(tmp_path))).pod_routes
    job = scrape_job(*monitor_and_pod(), f"{LOCALHOST}:{agent.metrics_port}")
    if cluster:
        job["static_configs"][0]["labels"]["cluster"] = cluster
    panels = json.loads((DEPLOY / "grafana/kroute.json").read_text())["panels"]
    chosen = {"$cluster": cluster or ".*", "$instance": "node1", "$__rate_interval": "1m"}
    async with agent.running(), scraping(tmp_path, job) as prometheus:
        # Two scrapes: a rate needs them.
        await eventually(lambda: prometheus.values("rate(process_cpu_seconds_total[1m])"))
        for panel in panels:
            for target in panel.get("targets", ()):
                expression = target["expr"]
                for name, value in chosen.items():
                    expression = expression.replace(name, value)
                assert await prometheus.query(expression), f"{panel['title']}: {expression}"
                other = target["expr"].replace("$cluster", "no-such").replace("$instance", "node1")
                assert not await prometheus.query(other.replace("$__rate_interval", "1m")), panel["title"]
