"""Every metric exists, has its name's meaning and is documented; every name that is used elsewhere exists."""

import json
import re
from collections.abc import Mapping
from pathlib import Path

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from kroute.base.histogram import Histogram
from kroute.checks.running_proxies import Sign
from kroute.firewall.sets import SetFill
from kroute.inspect.policies import Enforced
from kroute.inspect.status import AddressFill, AllocatorView
from kroute.kernel.errors import KernelError
from kroute.kernel.ipvs.objects import RealServerState, Traffic, VirtualServerOptions, VirtualServerState
from kroute.model.addresses import Family
from kroute.model.objects import Applied, Listed, ObjectKey, Service
from kroute.model.plan import (
    AddressSet,
    NodePlan,
    Problem,
    Protocol,
    RealServer,
    ServicePlan,
    SetEntry,
    VirtualServer,
    VirtualServerKey,
)
from kroute.model.policy_plan import GroupKey
from kroute.planning.policies.catalog import PolicyCatalog
from kroute.telemetry.metrics import exposition
from kroute.telemetry.metrics_port import ROWS
from tests.builders import facts, service
from tests.unit.controllers.announcing.test_announcing import announcing_of, serving, started
from tests.unit.controllers.test_pod_routes import new_node
from tests.unit.controllers.test_pod_routes import started as connected
from tests.unit.inspect.test_peers import UP
from tests.unit.observed import Observed
from tests.unit.planning.policies import cluster
from tests.unit.planning.policies.cluster import Cluster, Object

ROOT = Path(__file__).parents[4]
KEY = VirtualServerKey(Protocol.TCP, "10.96.0.1", 80)
WEB = ServicePlan(
    ObjectKey("default", "web"),
    virtual_servers=(VirtualServer(KEY, "rr", 0, None, (RealServer("10.1.0.1", 8080),)),),
    set_entries=(SetEntry(AddressSet.NO_LOCAL, ("192.168.123.250", 6, 30080)),),
    problems=(Problem("InvalidAnnotation", "annotation x=y", "y is not allowed"),),
    no_local_inside=(Family.IPV6,),
)
PODS = (("web", "10.0.0.1", 80), ("old", "10.0.0.3", 8080))
FAMILIES = (("IPv4",), ("IPv6",))
HOST = "192.0.2.1:6443"
SAID_OF_EVERY_AGENT = {metric.name: metric for metric, _ in ROWS}

Series = dict[tuple[str, ...], float]


class Refusals:
    """Stands in for PolicyTables: each group has refused three packets. Held against it in
    tests/scenarios/test_network_policies.py.
    """

    def __init__(self, catalog: PolicyCatalog) -> None:
        self.is_readable = True
        self.catalog = catalog

    def group_name(self, key: GroupKey) -> str:
        return str(key)

    async def refused(self) -> Mapping[str, int]:
        if not self.is_readable:
            raise KernelError("the table changes faster than it can be read")
        return {self.group_name(key): 3 for key, _ in self.catalog.isolated()}


def policies(*items: Object) -> Enforced:
    """Those of a node with the pods `web` and `old`, whose ports of one name have other numbers."""
    pods = [cluster.pod(name, address, ports=[cluster.port("http", number)]) for name, address, number in PODS]
    catalog = Cluster(cluster.namespace("shop"), *pods, *items).catalog
    lag = Histogram((1.0, 2.0))
    lag.observe(1.5)
    return Enforced(catalog, Refusals(catalog), lag)


async def scraped(agent: Observed) -> dict[str, Series]:
    """Return every sample's value, by name and then by its labels' values in the order of the labels' names."""
    port = await agent.observation.metrics_port()
    now = await port.scrape()
    text = b"".join([part async for part in exposition.write((metric, of(now)) for metric, of in ROWS)]).decode()
    found: dict[str, Series] = {}
    for family in text_string_to_metric_families(text):
        for it in family.samples:
            found.setdefault(it.name, {})[tuple(it.labels[name] for name in sorted(it.labels))] = it.value
    return found


@pytest.fixture
async def agent() -> Observed:
    allocator = AllocatorView("node1", is_here=True, waiting=3, addresses={"IPv4": AddressFill(200, 254)})
    observed = Observed(policies(cluster.ingress(ports=[{"port": "http"}], name="clients")), allocator)
    observed.broadcaster.publish([NodePlan(facts()), WEB])
    reals = {("10.1.0.1", 8080): RealServerState(1, 3, 4), ("10.1.0.2", 8080): RealServerState(0, 1, 0)}
    observed.kernel.table[KEY] = VirtualServerState(VirtualServerOptions(), reals)
    observed.kernel.passed[KEY] = Traffic(8, 100, 90, 5000, 70000)
    observed.changes.read([Applied(service()), Applied(service("shop")), Listed(Service)])
    observed.requests.answered(HOST, "GET", 200, 0.5)
    observed.requests.answered(HOST, "GET", None, 2.0)
    observed.workers.counters["route_fix"].repairs = 5
    observed.workers.durations["service_proxy"].observe(0.5)
    return observed


async def test_every_family_of_the_table_has_series(agent: Observed, tmp_path: Path) -> None:
    node = await started(tmp_path, bfd=True)
    await node.resync()
    agent.workers.optional.announcing = announcing_of(node)
    agent.workers.optional.pod_routes = (await connected(new_node(tmp_path))).pod_routes
    agent.ownership.waits_for = agent.ownership.rival = Sign("kube-proxy", "process 7")
    found = await scraped(agent)
    agent.ownership.rival = Sign("Calico", "chain cali-FORWARD", has_policies=True)
    found["kroute_rival_policy_enforcer"] = (await scraped(agent))["kroute_rival_policy_enforcer"]
    for name, metric in SAID_OF_EVERY_AGENT.items():
        assert {"histogram": f"{name}_bucket"}.get(metric.kind, name) in found, name


async def test_what_is_served_and_what_passes_through_it(agent: Observed) -> None:
    found = await scraped(agent)
    assert found["kroute_services"] == {(): 1}
    assert found["kroute_virtual_servers"] == {("serving",): 1, ("refusing",): 0, ("missing",): 0}
    assert (found["kroute_ejections_total"], found["kroute_ejections_refuted_total"]) == ({(): 2}, {(): 3})
    assert found["kroute_real_servers"] == {("serving",): 1, ("ejected",): 0, ("draining",): 1, ("missing",): 0}
    assert found["kroute_connections"] == {("active",): 4, ("inactive",): 4}
    assert found["kroute_service_connections"] == {
        ("default", "web", "active"): 4,
        ("default", "web", "inactive"): 4,
    }
    assert found["kroute_service_connections_total"] == {("default", "web"): 8}
    assert found["kroute_service_packets_total"] == {("in", "default", "web"): 100, ("out", "default", "web"): 90}
    assert found["kroute_service_bytes_total"] == {("in", "default", "web"): 5000, ("out", "default", "web"): 70000}
    assert found["kroute_service_problems"] == {("default", "InvalidAnnotation", "web"): 1}
    assert found["kroute_problems"] == {("InvalidAnnotation",): 1}


async def test_what_routers_learn(agent: Observed, tmp_path: Path) -> None:
    """Of a peer of which BIRD says nothing no session is up. A scrape asks BIRD nothing."""
    routers = {"peer_router_ips": ("192.168.123.1", "192.168.123.9"), "peer_router_asns": (65000, 65001)}
    node = await started(tmp_path, serving("web", 1), **routers)
    node.bird.known = [UP]
    await node.resync()
    node.bird.away = True
    agent.workers.optional.announcing = announcing_of(node)
    found = await scraped(agent)
    assert found["kroute_announced_addresses"] == {(): 1}
    assert found["kroute_bgp_session_up"] == {("192.168.123.1",): 1, ("192.168.123.9",): 0}
    assert found["kroute_bgp_announced_routes"] == {("192.168.123.1",): 2, ("192.168.123.9",): 0}
    assert found["kroute_bgp_learned_routes"] == {("192.168.123.1",): 0, ("192.168.123.9",): 0}


async def test_how_other_nodes_pods_are_reached(agent: Observed, tmp_path: Path) -> None:
    agent.workers.optional.pod_routes = (await connected(new_node(tmp_path))).pod_routes
    found = (await scraped(agent))["kroute_pod_networks"]
    assert found == {("direct",): 2, ("tunnel",): 2, ("missing",): 0, ("left_out",): 0}


async def test_who_gives_out_addresses_and_how_many_are_left(agent: Observed) -> None:
    found = await scraped(agent)
    assert (found["kroute_allocator"], found["kroute_load_balancer_services_waiting"]) == ({(): 1}, {(): 3})
    assert found["kroute_load_balancer_addresses"] == {("IPv4",): 254}
    assert found["kroute_load_balancer_addresses_in_use"] == {("IPv4",): 200}
    found = await scraped(Observed(allocator=AllocatorView("node2")))
    assert (found["kroute_allocator"], found["kroute_load_balancer_services_waiting"]) == ({(): 0}, {(): 0})
    assert "kroute_load_balancer_addresses" not in found


async def test_what_network_policies_refuse(agent: Observed) -> None:
    """The two groups of one policy are one series."""
    found = await scraped(agent)
    assert found["kroute_policy_isolated_pods"] == {(): 2}
    assert found["kroute_policies_with_problems"] == {(): 0}
    assert found["kroute_policy_refused_packets_total"] == {("Ingress", "shop", "clients"): 6}
    assert found["kroute_policy_lag_seconds_bucket"] == {("1",): 0, ("2",): 1, ("+Inf",): 1}


async def test_series_of_policies_are_bounded_and_absent_where_none_are_enforced_or_the_kernel_is_silent() -> None:
    denying = [cluster.egress(name="out"), cluster.policy("in"), cluster.policy("odd", policyTypes=["Sideways"])]
    found = await scraped(Observed(policies(*denying), metrics_services=1))
    assert found["kroute_policies_with_problems"] == {(): 1}
    assert len(found["kroute_policy_refused_packets_total"]) == 1
    enforced = policies(*denying)
    enforced.firewall.is_readable = False  # type: ignore[attr-defined]
    for agent in (Observed(), Observed(enforced)):
        assert not [name for name in await scraped(agent) if name.startswith("kroute_polic")]


async def test_how_full_the_sets_are(agent: Observed) -> None:
    agent.workers.fills = [SetFill("KROUTE-VIP", 262_144, 524_288, 2_097_152), SetFill("KROUTE-6-VIP", 0, 64, 64)]
    found = await scraped(agent)
    assert found["kroute_set_entries"] == {("KROUTE-VIP",): 262_144, ("KROUTE-6-VIP",): 0}
    assert found["kroute_set_capacity"] == {("KROUTE-VIP",): 524_288, ("KROUTE-6-VIP",): 64}
    assert found["kroute_set_capacity_limit"] == {("KROUTE-VIP",): 2_097_152, ("KROUTE-6-VIP",): 64}


async def test_the_names_of_kube_proxy(agent: Observed) -> None:
    found = await scraped(agent)
    assert found["kubeproxy_sync_proxy_rules_service_changes_total"] == {(): 2}
    assert found["kubeproxy_sync_proxy_rules_endpoint_changes_total"] == {(): 0}
    assert found["kubeproxy_sync_proxy_rules_no_local_endpoints_total"] == {
        ("IPv4", "external"): 1,
        ("IPv6", "external"): 0,
        ("IPv4", "internal"): 0,
        ("IPv6", "internal"): 1,
    }
    assert found["kubeproxy_sync_proxy_rules_last_timestamp_seconds"] == dict.fromkeys(FAMILIES, 1_700_000_000)
    assert found["kubeproxy_sync_proxy_rules_duration_seconds_count"] == dict.fromkeys(FAMILIES, 1)
    assert found["kubeproxy_sync_proxy_rules_service_changes_pending"] == {(): 2}
    assert found["kubeproxy_sync_proxy_rules_endpoint_changes_pending"] == {(): 0}
    assert found["kubeproxy_network_programming_duration_seconds_count"] == dict.fromkeys(FAMILIES, 0)
    assert found["rest_client_requests_total"] == {("200", HOST, "GET"): 1, ("<error>", HOST, "GET"): 1}
    assert found["rest_client_request_duration_seconds_count"] == {(HOST, "GET"): 2}
    assert found["rest_client_request_duration_seconds_sum"] == {(HOST, "GET"): 2.5}
    assert found["kubeproxy_proxy_healthz_total"] == {("200",): 0, ("503",): 0}


async def test_how_the_agent_works(agent: Observed) -> None:
    agent.workers.faults = ["masquerade has failed for 75 s"]
    found = await scraped(agent)
    assert found["kroute_queue_depth"][("service_proxy",)] == 2
    assert found["kroute_repairs_total"][("route_fix",)] == 5
    assert found["kroute_netlink_messages_total"] == {("ipvs",): 7}
    assert found["kroute_reflector_objects"][("Service",)] == 12
    assert found["kroute_healthy"] == {("healthz",): 0, ("livez",): 0, ("readyz",): 0}
    assert found["process_resident_memory_bytes"][()] > 1_000_000
    assert found["process_start_time_seconds"][()] > 1_700_000_000


async def test_without_the_kernel_a_scrape_says_all_the_rest(agent: Observed) -> None:
    agent.kernel.refuses = True
    found = await scraped(agent)
    assert found["kroute_kernel_readable"] == {(): 0}
    assert "kroute_connections" not in found
    assert found["kroute_services"] == {(): 1}


async def test_series_of_services_are_bounded() -> None:
    agent = Observed(metrics_services=3)
    plans = [
        ServicePlan(
            ObjectKey("default", f"web-{number}"),
            virtual_servers=(VirtualServer(KEY._replace(port=number), "rr", 0, None, ()),),
            problems=WEB.problems,
        )
        for number in range(1, 11)
    ]
    agent.broadcaster.publish(plans)
    found = await scraped(agent)
    assert len(found["kroute_service_connections_total"]) == 3
    assert len(found["kroute_service_problems"]) == 3
    assert found["kroute_services_without_series"] == {(): 7}
    assert found["kroute_problems"] == {("InvalidAnnotation",): 10}


def test_names_follow_the_conventions() -> None:
    for name, metric in SAID_OF_EVERY_AGENT.items():
        assert re.fullmatch(r"(kroute|kubeproxy|process|rest_client)_[a-z_]+", name)
        assert metric.help.endswith(".")
        if name.startswith("kroute_"):  # a kube-proxy gauge has a name that ends like a counter's
            assert (metric.kind == "counter") == name.endswith("_total")
        if metric.kind == "histogram":
            assert name.endswith("_seconds")


def test_the_page_of_the_documentation_is_the_table() -> None:
    page = (ROOT / "docs" / "metrics.md").read_text()
    rows = re.findall(r"^\| `(\w+)` \| (\w+) \| (.*?) \| (.*?) \|$", page, re.MULTILINE)
    assert rows == [
        (metric.name, metric.kind, " ".join(f"`{label}`" for label in metric.labels), metric.help) for metric, _ in ROWS
    ]


def test_the_page_says_what_becomes_of_every_metric_of_kube_proxys() -> None:
    page = (ROOT / "docs" / "metrics.md").read_text().partition("## Every metric of kube-proxy")[2]
    said = dict(re.findall(r"^\| `(\w+)…?` \| (.+) \|$", page, re.MULTILINE))
    listed = (Path(__file__).parent / "names" / "kube-proxy-metrics").read_text().splitlines()
    assert said.keys() == {line for line in listed if not line.startswith("#")}
    for name, becomes in said.items():
        is_ours = any(it.startswith(name) if name.endswith("_") else it == name for it in SAID_OF_EVERY_AGENT)
        assert is_ours == becomes.startswith("the same"), name
        assert is_ours or becomes.startswith("none: "), name
    ours = {name for name in SAID_OF_EVERY_AGENT if name.startswith(("kubeproxy_", "rest_client_"))}
    assert ours <= said.keys()


def used_in(expression: str) -> set[str]:
    """Return the metrics in a PromQL expression, without quoted text and the labels after by/without/on."""
    without_text = re.sub(r'"[^"]*"|\$\w+', "", expression)
    without_labels = re.sub(r"\b(by|without|on|ignoring|group_left|group_right)\s*\([^)]*\)", "", without_text)
    without_labels = re.sub(r"\{[^}]*\}", "", without_labels)
    return set(re.findall(r"\b(?:kroute|kubeproxy|process|rest_client|up)\w*", without_labels))


def test_every_alert_names_metrics_that_exist_and_says_what_to_do() -> None:
    [group] = yaml.safe_load((ROOT / "deploy" / "prometheus" / "alerts.yaml").read_text())["groups"]
    assert len({rule["alert"] for rule in group["rules"]}) == len(group["rules"])
    for rule in group["rules"]:
        assert exist(used_in(rule["expr"])), rule["alert"]
        assert rule["labels"]["severity"] in {"warning", "critical"}
        assert rule["annotations"].keys() == {"summary", "description", "runbook_url"}
        assert rule["annotations"]["runbook_url"] == f"docs/alerts.md#{rule['alert'].lower()}"


def test_every_alert_has_a_section_that_begins_with_what_to_type() -> None:
    [group] = yaml.safe_load((ROOT / "deploy" / "prometheus" / "alerts.yaml").read_text())["groups"]
    page = (ROOT / "docs" / "alerts.md").read_text()
    _, *sections = re.split(r"^## ", page, flags=re.MULTILINE)
    assert [section.split("\n")[0] for section in sections] == [rule["alert"] for rule in group["rules"]]
    for section in sections:
        assert re.match(r"\w+\n\n    kubectl ", section), section
    rows = re.findall(r"^\| \[(\w+)\]\(#\w+\) \| (\w+) \|", page, re.MULTILINE)
    assert rows == [(rule["alert"], rule["labels"]["severity"]) for rule in group["rules"]]


def test_every_panel_names_metrics_that_exist() -> None:
    dashboard = json.loads((ROOT / "deploy" / "grafana" / "kroute.json").read_text())
    panels = [panel for panel in dashboard["panels"] if panel["type"] != "row"]
    assert len({panel["id"] for panel in dashboard["panels"]}) == len(dashboard["panels"])
    for panel in panels:
        for target in panel["targets"]:
            assert exist(used_in(target["expr"])), panel["title"]
            for selector in re.findall(r"\{[^}]*\}", target["expr"]):
                assert selector.startswith('{cluster=~"$cluster",instance=~"$instance"'), panel["title"]


def exist(names: set[str]) -> bool:
    """Whether there are names, and all of them exist."""
    known = {"up"}
    for name, metric in SAID_OF_EVERY_AGENT.items():
        known |= {f"{name}_{part}" for part in ("bucket", "sum", "count")} if metric.kind == "histogram" else {name}
    return bool(names) and names <= known
