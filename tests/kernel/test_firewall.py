"""The backends keep the contract of a firewall on a real kernel."""

import socket
import subprocess
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from kroute.firewall.iptables.firewall import IptablesFirewall
from kroute.firewall.nftables.firewall import NftablesFirewall
from kroute.firewall.sets import ROOM, Room
from kroute.kernel.ipset import Ipset
from kroute.kernel.iptables.tools import VARIANTS
from kroute.kernel.iptables.xtables import Xtables
from kroute.kernel.nftables.client import Nftables
from kroute.settings import Settings
from tests.kernel.contracts_firewall import NODE, ONE_OF_EACH, SMALL, FirewallContract


@asynccontextmanager
async def iptables_firewall(room: Room) -> AsyncIterator[IptablesFirewall]:
    async with Ipset() as ipset:
        xtables = {variant: Xtables(variant) for variant in VARIANTS[:2]}
        yield IptablesFirewall(Settings("node1"), ipset, xtables, room=room)


@pytest.mark.legacy
class TestIptablesFirewall(FirewallContract):
    @pytest.fixture
    async def firewall(self, namespace: None) -> AsyncIterator[IptablesFirewall]:
        async with iptables_firewall(ROOM) as firewall:
            yield firewall

    @pytest.fixture
    async def small(self, namespace: None) -> AsyncIterator[IptablesFirewall]:
        async with iptables_firewall(SMALL) as firewall:
            yield firewall


def run(command: str) -> str:
    return subprocess.run(command, shell=True, check=True, capture_output=True, text=True).stdout


async def quiet(firewall: IptablesFirewall) -> tuple[bool, bool]:
    """Whether the sets, and the rules, look as if nobody else had changed them."""
    counts = Counter((it.family, it.set) for it in ONE_OF_EACH)
    return await firewall.looks_untouched(lambda *key: counts[key]), await firewall.are_rules_untouched()


async def resync(firewall: IptablesFirewall) -> None:
    """Read and write all until nothing is left to write."""
    for _ in range(2):
        await firewall.ensure_sets()
        assert await firewall.change_elements(dict.fromkeys(ONE_OF_EACH, True)) == {}
        found = {entry async for part in firewall.elements() for entry in part}
        assert await firewall.change_elements(dict.fromkeys(found - set(ONE_OF_EACH), False)) == {}
        await firewall.ensure_rules(NODE)


FOREIGN_SETS = ("ipset del KROUTE-VIP 10.96.0.1", "ipset add KROUTE-VIP 10.96.0.77", "ipset flush KROUTE-CLUSTER-IP")
FOREIGN_RULES = (
    "iptables-legacy -I KROUTE-INPUT -s 192.0.2.1 -j ACCEPT",
    "iptables-legacy -t nat -I PREROUTING -s 192.0.2.1 -j ACCEPT",
    "iptables-legacy -t nat -F KROUTE-SERVICES",
    "iptables-legacy -F",
    "ip6tables-legacy -t mangle -F",
)
"""All but the first two delete rules that refer to sets, and each set counts these."""


@pytest.mark.legacy
async def test_what_somebody_changes_is_seen_without_reading_it_and_traffic_is_no_change(namespace: None) -> None:
    async with iptables_firewall(ROOM) as firewall:
        await resync(firewall)
        assert await quiet(firewall) == (True, True)
        counters = run("iptables-legacy-save -c -t filter")
        run("ip link set lo up")
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
            sender.sendto(b"", ("127.0.0.1", 9))
        assert run("iptables-legacy-save -c -t filter") != counters
        assert await quiet(firewall) == (True, True)
        for command in (*FOREIGN_SETS, *FOREIGN_RULES):
            run(command)
            are_sets, are_rules = await quiet(firewall)
            assert are_rules is (command in FOREIGN_SETS), command
            assert are_sets is (command in FOREIGN_RULES[:2]), command
            await resync(firewall)
            assert await quiet(firewall) == (True, True), command
        run("ipset del KROUTE-VIP 10.96.0.1; ipset add KROUTE-VIP 10.96.0.77")
        assert await quiet(firewall) == (False, True), "one element was exchanged for another"


@pytest.mark.nftables
class TestNftablesFirewall(FirewallContract):
    @pytest.fixture
    async def firewall(self, namespace: None) -> AsyncIterator[NftablesFirewall]:
        async with Nftables() as nftables:
            yield NftablesFirewall(Settings("node1"), nftables)

    @pytest.fixture
    async def small(self, namespace: None) -> AsyncIterator[NftablesFirewall]:
        async with Nftables() as nftables:
            yield NftablesFirewall(Settings("node1"), nftables, room=SMALL)
