"""Whatever Services contain, the allocator's plan raises nothing, and victims keep their addresses."""

from ipaddress import ip_address, ip_network

from hypothesis import given
from hypothesis import strategies as st

from kroute.model.objects import LoadBalancerIngress, LoadBalancerStatus, ObjectMeta, ServiceStatus
from kroute.planning.address_allocation import BalancedService, BalancedSpec, allocating
from kroute.watchers.kubernetes.decoding import ObjectDecoder
from tests.builders import finish, settings
from tests.unit.fuzz.objects import SERVICE
from tests.unit.fuzz.strategies import fuzzed, spoilt

RANGES = ("192.0.2.0/30", "2001:db8::/126")
ANNOTATIONS = {"kroute.io/load-balancer-ips": "192.0.2.0", "kroute.io/share-load-balancer-ip": "web"}
ATTACKER = {
    **SERVICE,
    "metadata": {**SERVICE["metadata"], "annotations": ANNOTATIONS},
    "spec": {
        **SERVICE["spec"],
        "loadBalancerClass": "kroute.io",
        "loadBalancerIP": "192.0.2.0",
        "ipFamilies": ["IPv4", "IPv6"],
        "ipFamilyPolicy": "PreferDualStack",
        "selector": {"app": "web"},
    },
    "status": {"loadBalancer": {}},
}
HAS = ("192.0.2.0", "2001:db8::")
VICTIM = BalancedService(
    ObjectMeta("victim", "default", "uid-victim"),
    BalancedSpec(type="LoadBalancer", ip_families=("IPv4", "IPv6")),
    ServiceStatus(LoadBalancerStatus(tuple(map(LoadBalancerIngress, HAS)))),
)


@fuzzed
@given(texts=st.lists(spoilt(ATTACKER), max_size=4))
def test_no_attacker_gets_what_a_victim_has(texts: list[bytes]) -> None:
    decoder = ObjectDecoder(BalancedService)
    decoded = [decoder.decode(text) for text in texts]
    attackers = {item.key: item for item in decoded if isinstance(item, BalancedService)}
    steps = allocating([*attackers.values(), VICTIM], {}, settings(load_balancer_ip_ranges=RANGES), lambda _: "")
    plan = finish(steps)
    networks = [*map(ip_network, RANGES)]
    for service, addresses in plan.assignments:
        assert service is not VICTIM
        assert not {*HAS} & {*addresses}
        assert all(any(ip_address(address) in network for network in networks) for address in addresses)
    assert all(len(problem.message) < 1024 for _, problem in plan.problems)
