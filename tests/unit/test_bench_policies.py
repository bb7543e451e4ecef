"""The bench of network policies: its cluster, what its changes mean to a node, and its report."""

from typing import Any

from bench import policies
from bench.datapath.ways import ENDPOINTS, POD
from bench.workload import NODE
from kroute.model.kinds import POLICY_KINDS
from kroute.model.objects import Applied, Deleted, Listed
from kroute.planning.policies.catalog import PolicyCatalog
from tests.unit.planning.policies.cluster import KINDS, Node, key_of
from tests.unit.planning.policies.large import read

MIB = 1 << 20


def test_each_change_has_packets_pass_or_dropped_and_undone_it_does_not() -> None:
    cluster = policies.Cluster(2, 1, pods_of_all=40, local=4, policies=10)
    items = [*cluster.objects(), *cluster.network_policies]
    catalog, node = PolicyCatalog(NODE), Node()
    catalog.take([Applied(read(it)) for it in items if it["kind"] in KINDS])
    catalog.take([Listed(kind.type) for kind in POLICY_KINDS])
    node.make(catalog.plan_marked())
    assert all(node.allows(POD.address, address, 8080, "TCP") for address in ENDPOINTS), "the load generator's calls"
    for change in cluster.changes.values():
        (_, source), item = change.source, read(change.item)
        assert node.allows(source, change.destination, 8080, "UDP") is not change.passes
        for happens, expected in (
            (Applied(item), change.passes),
            (Deleted(type(item), key_of(change.item)), not change.passes),
        ):
            catalog.take([happens])
            node.make(catalog.plan_marked())
            assert node.allows(source, change.destination, 8080, "UDP") is expected, change.title


def a_column(start: float, connect: float) -> dict[str, Any]:
    """The figures of a proxy whose start with 10 policies takes a second longer, with 1 MiB more."""

    def begun(more: int) -> dict[str, Any]:
        calls = {"cpu": connect / 1e6, "seconds": 0.0005}
        ways = {
            name: {"connect": calls, "request": calls, "first": {"p50": 0.0002, "p99": 0.0011}}
            for name in policies.CALLS
        }
        return {
            "start": start + more,
            "cpu": 0.9,
            "rss": (40 + more) * MIB,
            "rss_peak": (50 + more) * MIB,
            "ways": ways,
        }

    changes = {name: {"comes": 0.004, "goes": 0.0052, "cpu": 0.003} for name in policies.Cluster(1, policies=5).changes}
    places = {"lab": "a lab", "python": "3"}
    return {"without": begun(0), "with": {"0": begun(0), "10": begun(1)}, "changes": changes, **places}


def test_the_report_has_a_column_for_each_proxy_and_a_value_for_each_number_of_policies() -> None:
    where = {"when": "now", "commit": "c", "cores": 2, "load_before": 0.1, "load_after": 0.2}
    proxies = {"kroute-iptables": a_column(1, 200), "kube-router": a_column(2, 250)}
    del proxies["kube-router"]["changes"]["policy"]
    text = policies.markdown({**where, "pods": 1000, "local": 110, "sizes": [0, 10], "proxies": proxies})
    assert "| 1,000 pods, 110 on the node; 0 / 10 policies | kroute, iptables | kube-router |\n" in text
    assert "| start with them | 1 s / 2 s | 2 s / 3 s |\n" in text
    assert "| more with them | 0 MiB / 1 MiB | 0 MiB / 1 MiB |\n" in text
    assert "| with 10, a policy comes: API server to kernel, p50 | 4 ms | - |\n| goes | 5.2 ms | - |\n" in text
    assert "a pod: CPU of the node for a connection | 200 us / 200 us | 250 us / 250 us |\n" in text
