"""What `kroute check` says of bridges: of large IPv6 datagrams, and of network policies."""

from unittest.mock import patch

import pytest

from kroute.checks.finding import Level
from kroute.checks.node_checks import CALLED, CALLED4, check_bridges, check_policies
from tests.builders import settings
from tests.fakes.kernel import FakeKernel
from tests.fakes.links import FakeLinks
from tests.fakes.sysctl import FakeSysctls


async def level(*, called: str | None, kind: str = "bridge", ipv6: bool = True) -> Level:
    kernel = FakeKernel()
    kernel.add_link("cbr0", kind=kind)
    if called is not None:
        kernel.sysctls[CALLED] = called
    async with FakeLinks(kernel) as links:
        with patch("socket.if_nameindex", lambda: [(1, "cbr0"), (2, "gone0")]):
            finding = await check_bridges(FakeSysctls(kernel), links, ipv6=ipv6)
    assert (finding.level is Level.WARNING) == ("cbr0" in finding.message)
    return finding.level


async def test_a_bridge_under_br_netfilter_loses_large_ipv6_datagrams() -> None:
    assert await level(called="1") is Level.WARNING


@pytest.mark.parametrize(
    "otherwise",
    [{"called": "0"}, {"called": None}, {"called": "1", "kind": "veth"}, {"called": "1", "ipv6": False}],
    ids=["switched off", "not loaded", "no bridge", "no IPv6"],
)
async def test_otherwise_all_is_well(otherwise: dict[str, object]) -> None:
    assert await level(**otherwise) is Level.OK


ENFORCED = {"network_policies": True}


@pytest.mark.parametrize(
    ("asked", "kind", "called", "ipv6", "found"),
    [
        ({}, "bridge", ("0", "0"), True, []),
        (ENFORCED, "bridge", ("1", "1"), True, [Level.OK]),
        (ENFORCED, "bridge", ("0", "1"), True, [Level.WARNING]),
        (ENFORCED, "bridge", ("1", "0"), True, [Level.WARNING]),
        (ENFORCED, "bridge", ("1", "0"), False, [Level.OK]),
        (ENFORCED, "veth", ("0", "0"), True, [Level.OK]),
    ],
)
async def test_policies_hold_on_a_bridge_under_br_netfilter(
    asked: dict[str, object], kind: str, called: tuple[str, str], ipv6: bool, found: list[Level]
) -> None:
    kernel = FakeKernel()
    kernel.add_link("cbr0", kind=kind)
    kernel.sysctls.update(zip((CALLED4, CALLED), called, strict=True))
    async with FakeLinks(kernel) as links:
        with patch("socket.if_nameindex", lambda: [(1, "cbr0")]):
            findings = await check_policies(settings(**asked), FakeSysctls(kernel), links, ipv6=ipv6)
    assert [finding.level for finding in findings] == found
    assert all(("cbr0" in it.message) == (it.level is Level.WARNING) for it in findings)
