"""kroute's plan of 40 Services beside the IPVS tables that kube-proxy 1.36 and kube-router 2.11 made of them.

Every Service that is served differently is in a table below with the reason; all other virtual servers are equal in
scheduler, persistence, real servers and weights.
"""

from collections import defaultdict
from collections.abc import Mapping
from enum import Enum

import pytest

from kroute.model.objects import Applied, Service
from kroute.model.plan import VirtualServerKey
from tests import real_proxies
from tests.real_proxies import KUBE_PROXY_IPVS, KUBE_ROUTER, NODE_IPV4, NODE_IPV6, RecordedServer
from tests.real_proxies.plans import planned_virtual_servers

Table = Mapping[VirtualServerKey, RecordedServer]


class Reason(Enum):
    """Why a Service is served differently, and why kroute does as it does."""

    HEADLESS_LABEL = (
        "the label service.kubernetes.io/headless and a ClusterIP: kube-router serves no such Service. kroute does as "
        "kube-proxy since 1.36"
    )
    INTERNAL_LOCAL = (
        "internalTrafficPolicy Local without an endpoint on this node: the API says that the port serves nobody. "
        "kube-proxy's IPVS mode serves endpoints of other nodes, if the Service can be reached from outside"
    )
    DUPLICATES = (
        "one endpoint in two slices with contradicting conditions and hints: kroute takes the ready copy, kube-proxy "
        "the one that it happens to see last"
    )
    NO_LOCAL = (
        "policy Local without an endpoint on this node: kube-router serves nothing and its VIP answers nothing. kroute "
        "plans the port, so that it is refused at once"
    )
    CONDITIONS = (
        "kube-router serves what is ready or serving, and takes an absent condition for false. In the API an absent "
        "ready means true, and what terminates serves only if nothing is ready"
    )
    HINTS = "kube-router has no topology hints"


KUBE_PROXY_DIFFERENCES = {
    "s0008": Reason.INTERNAL_LOCAL,
    "s0012": Reason.INTERNAL_LOCAL,
    "s0017": Reason.INTERNAL_LOCAL,
    "s0021": Reason.INTERNAL_LOCAL,
    "s0033": Reason.DUPLICATES,
}
KUBE_ROUTER_DIFFERENCES = {
    "s0002": Reason.HEADLESS_LABEL,
    "s0006": Reason.CONDITIONS,
    "s0008": Reason.HEADLESS_LABEL,
    "s0010": Reason.HEADLESS_LABEL,
    "s0011": Reason.NO_LOCAL,
    "s0012": Reason.NO_LOCAL,
    "s0014": Reason.CONDITIONS,
    "s0015": Reason.CONDITIONS,
    "s0016": Reason.HINTS,
    "s0017": Reason.NO_LOCAL,
    "s0018": Reason.CONDITIONS,
    "s0019": Reason.CONDITIONS,
    "s0020": Reason.CONDITIONS,
    "s0021": Reason.CONDITIONS,
    "s0023": Reason.NO_LOCAL,
    "s0025": Reason.CONDITIONS,
    "s0027": Reason.NO_LOCAL,
    "s0029": Reason.NO_LOCAL,
    "s0032": Reason.CONDITIONS,
    "s0033": Reason.HINTS,
    "s0035": Reason.HEADLESS_LABEL,
}


def differences(theirs: Table, ours: Table) -> dict[str, dict[VirtualServerKey, tuple[RecordedServer | None, ...]]]:
    """Return the virtual servers that differ, theirs and ours, by the names of their Services."""
    owners: dict[tuple[str, int], str] = {}
    for change in real_proxies.objects():
        if isinstance(change, Applied) and isinstance(change.item, Service):
            spec, status = change.item.spec, change.item.status.load_balancer
            addresses = [*(spec.cluster_ips or ()), *(spec.external_ips or ()), *(it.ip for it in status.ingress or ())]
            ends = [(address, port.port) for address in addresses for port in spec.ports or ()]
            ends += [(address, port.node_port) for address in (NODE_IPV4, NODE_IPV6) for port in spec.ports or ()]
            owners |= dict.fromkeys(ends, change.item.key.name)
    found: dict[str, dict[VirtualServerKey, tuple[RecordedServer | None, ...]]] = defaultdict(dict)
    for key in theirs.keys() | ours.keys():
        if theirs.get(key) != ours.get(key):
            found[owners[key.address, key.port]][key] = theirs.get(key), ours.get(key)
    return found


@pytest.mark.parametrize(
    ("proxy", "known"),
    [(KUBE_PROXY_IPVS, KUBE_PROXY_DIFFERENCES), (KUBE_ROUTER, KUBE_ROUTER_DIFFERENCES)],
    ids=[KUBE_PROXY_IPVS, KUBE_ROUTER],
)
def test_only_the_services_in_the_table_are_served_differently(proxy: str, known: Mapping[str, Reason]) -> None:
    found = differences(real_proxies.virtual_servers(proxy), planned_virtual_servers())
    assert {name: found[name] for name in found.keys() - known.keys()} == {}
    assert known.keys() - found.keys() == set()


def test_a_difference_is_no_larger_than_its_reason() -> None:
    """What is served although a policy says otherwise is theirs alone; the rest of such a Service agrees."""
    node = {NODE_IPV4, NODE_IPV6}
    for name, servers in differences(real_proxies.virtual_servers(KUBE_PROXY_IPVS), planned_virtual_servers()).items():
        for key, (theirs, ours) in servers.items():
            match KUBE_PROXY_DIFFERENCES[name]:
                case Reason.INTERNAL_LOCAL:
                    assert theirs
                    assert theirs.real_servers
                    assert ours == theirs._replace(real_servers={})
                    assert key.address not in node
                case Reason.DUPLICATES:
                    assert theirs
                    assert ours
                    assert ours == theirs._replace(real_servers=ours.real_servers)
                    assert ours.real_servers.keys() & theirs.real_servers.keys()
                case reason:
                    raise AssertionError(f"{reason} is none of kube-proxy's")


def test_kube_routers_differences_leave_scheduler_and_persistence_as_they_are() -> None:
    for name, servers in differences(real_proxies.virtual_servers(KUBE_ROUTER), planned_virtual_servers()).items():
        for theirs, ours in servers.values():
            assert ours, f"kroute does not plan what kube-router serves of {name}"
            if KUBE_ROUTER_DIFFERENCES[name] is Reason.HEADLESS_LABEL:
                assert theirs is None
            elif KUBE_ROUTER_DIFFERENCES[name] is Reason.NO_LOCAL:
                assert theirs is None
                assert not ours.real_servers
            elif theirs is not None:
                assert ours._replace(real_servers={}) == theirs._replace(real_servers={})
