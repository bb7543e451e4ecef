"""kroute is removed by the commands of docs/uninstall.md, and leaves the nodes as they were before it came."""

from tests.cluster import footprint
from tests.cluster.footprint import Footprint
from tests.cluster.installation import install, uninstall
from tests.cluster.machines import Cluster
from tests.cluster.web import Web


def test_nothing_is_left(cluster: Cluster, web: Web, untouched: dict[str, Footprint]) -> None:
    assert footprint.of_nodes(cluster) != untouched
    uninstall(cluster)
    try:
        left = footprint.of_nodes(cluster)
        differences = {
            (node, what): sorted(set(left[node][what]) ^ set(lines))
            for node, before in untouched.items()
            for what, lines in before.items()
            if sorted(left[node][what]) != sorted(lines)  # a kubelet that began again has its rules in another order
        }
        assert differences == {}
    finally:
        install(cluster)
    assert web.answers_from_pod("node1", f"http://{web.addresses[0]}") == web.names()
