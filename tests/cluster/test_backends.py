"""The chart's values change the firewall's backend, there and back: nothing is lost, and no rule is left."""

import pytest

from tests.cluster import footprint
from tests.cluster.installation import upgrade
from tests.cluster.machines import Cluster, Host
from tests.cluster.streams import open_streams
from tests.cluster.web import Web

TOOLS = ("--set", "iptables=true")
"""The way back needs them, too: docs/deploy.md."""
RULES = {
    "nftables": "nft list tables | grep ' kroute$'",
    "iptables": "for it in legacy nft; do iptables-$it-save; ip6tables-$it-save; done 2>/dev/null | grep KROUTE-;"
    "ipset list -n | grep KROUTE-",
}
"""The commands that print what a backend has in the kernel."""


def present(cluster: Cluster, node: Host) -> set[str]:
    """The backends that have something on a node."""
    return {backend for backend, command in RULES.items() if cluster.on(node, command, check=False)}


def are_those_of(cluster: Cluster, backend: str) -> None:
    cluster.wait_until(
        f"each node has the rules of {backend} alone",
        lambda: all(present(cluster, node) == {backend} for node in cluster.nodes.values()),
    )


@pytest.mark.thorough
@pytest.mark.usefixtures("kept")
def test_another_backend_and_back_cost_no_call_and_no_connection(cluster: Cluster, web: Web) -> None:
    are_those_of(cluster, "nftables")
    kernels = footprint.at_rest(cluster)
    with open_streams(cluster), web.under_load():
        for backend in ("iptables", "nftables"):
            upgrade(cluster, *TOOLS, "--set", f"settings.firewall={backend}")
            are_those_of(cluster, backend)
        upgrade(cluster, "--set", "iptables=false,settings.firewall=auto")
        are_those_of(cluster, "nftables")
    assert footprint.in_order(footprint.of_nodes(cluster)) == footprint.in_order(kernels)
