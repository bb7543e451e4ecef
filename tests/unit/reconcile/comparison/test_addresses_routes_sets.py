"""Whether the kernel has the addresses, source routes and set entries of the plans, and the text that says so."""

import pytest

from kroute.model.plan import AddressSet, SetEntry, Vip
from kroute.reconcile.comparison import set_entries, source_routes, vips
from kroute.reconcile.comparison.source_routes import ANY_SOURCE, SourceRoute

NODE = "192.168.123.1"
VIP = Vip("10.96.0.10", NODE)
ANY = Vip("10.96.0.10", None)


def test_an_address_is_bound_or_not() -> None:
    assert vips.differences(VIP, is_bound=False) == ["address 10.96.0.10 is not bound"]
    assert vips.differences(VIP, is_bound=True) == vips.differences(None, is_bound=True) == []
    assert vips.agrees(ANY, VIP), "the source is the route's matter"
    assert vips.describe_drift(VIP.address, VIP) == "address 10.96.0.10 is not wanted"
    assert vips.describe_drift(VIP.address, None) == "address 10.96.0.10 was missing"


@pytest.mark.parametrize(
    ("desired", "source", "is_local", "said"),
    [
        (VIP, NODE, True, []),
        (ANY, "10.96.0.10", True, []),
        (None, None, False, []),
        (VIP, NODE, False, ["no local route leads to 10.96.0.10"]),
        (VIP, "10.96.0.10", True, [f"the route to 10.96.0.10 has the source 10.96.0.10, not {NODE}"]),
        (VIP, None, True, [f"the route to 10.96.0.10 has the source None, not {NODE}"]),
    ],
    ids=["right", "any source", "no VIP", "not local", "the kernel's own source", "no source"],
)
def test_the_way_to_a_vip(desired: Vip | None, source: str | None, is_local: bool, said: list[str]) -> None:
    assert source_routes.differences(desired, source, is_local=is_local) == said


def test_routes_agree_with_the_one_that_is_desired_and_wins() -> None:
    desired = source_routes.desired_by(VIP)
    assert source_routes.agrees(SourceRoute((NODE,)), desired)
    assert not source_routes.agrees(SourceRoute((NODE,), wins=False), desired)
    assert not source_routes.agrees(SourceRoute((NODE, "192.168.123.2")), desired)
    assert source_routes.agrees(SourceRoute(("192.168.123.2",)), source_routes.desired_by(ANY))
    assert source_routes.desired_by(ANY) == ANY_SOURCE


def test_what_a_resync_says_of_routes() -> None:
    applied = SourceRoute((NODE, "192.168.123.2"), wins=False)
    said = f"route to 10.96.0.10 had source {NODE} and 192.168.123.2, behind the kernel's own"
    assert source_routes.describe_drift(VIP.address, applied) == said
    assert source_routes.describe_drift(VIP.address, None) == "route to 10.96.0.10 was missing"


def test_set_entries() -> None:
    http = SetEntry(AddressSet.CLUSTER_IP, ("10.96.0.10", 6, 80))
    https = SetEntry(AddressSet.CLUSTER_IP, ("10.96.0.10", 6, 443))
    assert set_entries.missing([https, http], {http}) == [https]
    assert set_entries.differences([http], [https], lambda entry: f"KROUTE-{entry.set}") == [
        "entry 10.96.0.10,TCP,80 of set KROUTE-CLUSTER-IP is missing",
        "entry 10.96.0.10,TCP,443 of set KROUTE-CLUSTER-IP was not planned",
    ]
    assert set_entries.differences([http], [http], str) == []
    for is_there, word in ((True, "not wanted"), (False, "missing")):
        said = set_entries.describe_drift(http, "PORTS", is_there=is_there)
        assert said == f"entry 10.96.0.10,TCP,80 of set PORTS was {word}"


def test_a_pod_network_lacks_nothing_where_the_kernel_has_one_that_contains_it() -> None:
    pods = [SetEntry(AddressSet.POD_NETWORK, (it,)) for it in ("10.244.0.0/16", "10.244.1.0/24")]
    assert set_entries.differences(pods, pods[:1], str) == []
    assert len(set_entries.differences(pods, pods[1:], str)) == 1
    ranges = [SetEntry(AddressSet.SOURCE_RANGE, ("203.0.113.1", 6, 80, it.element[0])) for it in pods]
    assert len(set_entries.differences(ranges, ranges[:1], str)) == 1, "each source range stands by itself"
