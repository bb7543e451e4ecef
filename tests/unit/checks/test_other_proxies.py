"""Traces of other proxies, for a caller that asks again and again. Real tables: tests/kernel/test_iptables_nft.py."""

import socket

import pytest

from kroute.checks import other_proxies
from kroute.checks.other_proxies import ProxyTraces
from kroute.kernel.iptables import table_digest
from tests.builders import settings
from tests.fakes.kernel import FakeKernel
from tests.fakes.node_kernel import open_fake_kernel


class LegacyTables:
    """The legacy tables of a node, of IPv4 or IPv6, by name, and how often their chains were read."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.chains: dict[tuple[int, str], list[str]] = {}
        self.readings: list[str] = []
        monkeypatch.setattr(other_proxies, "is_present", lambda _module: False)
        monkeypatch.setattr(other_proxies, "legacy_tables", self._names)
        monkeypatch.setattr(table_digest, "legacy_outline", lambda *table: f"{self.chains[table]}".encode())
        monkeypatch.setattr(table_digest, "legacy_chains", self._read)

    def _names(self, family: int) -> list[str]:
        return [name for of, name in self.chains if of == family]

    def _read(self, family: int, name: str) -> list[str]:
        self.readings.append(name)
        return self.chains[family, name]


@pytest.mark.parametrize("backend", ["nftables", "iptables"])
async def test_legacy_tables_are_looked_at_with_each_backend_and_read_after_a_change(
    backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = LegacyTables(monkeypatch)
    async with open_fake_kernel(FakeKernel()) as kernel, ProxyTraces(kernel, settings(firewall=backend)) as traces:
        assert await traces.read() == frozenset()
        node.chains = {(socket.AF_INET, "nat"): ["DOCKER"], (socket.AF_INET6, "nat"): [], (socket.AF_INET, "raw"): []}
        assert await traces.read() == frozenset()
        assert node.readings == ["nat", "nat"], "of a table that no proxy writes to nothing is read"
        node.chains[socket.AF_INET, "nat"] = ["DOCKER", "KUBE-SERVICES"]
        assert [await traces.read() for _ in range(3)] == [{"kube-proxy"}] * 3
        assert node.readings == ["nat"] * 3
        node.chains[socket.AF_INET, "nat"] = ["DOCKER"]
        assert await traces.read() == frozenset()


async def test_with_network_policies_the_same_reading_shows_who_else_enforces_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    node = LegacyTables(monkeypatch)
    node.chains = {(socket.AF_INET, "filter"): ["KUBE-ROUTER-FORWARD"]}
    for policies in (False, True):
        async with (
            open_fake_kernel(FakeKernel()) as kernel,
            ProxyTraces(kernel, settings(firewall="nftables", network_policies=policies)) as traces,
        ):
            assert await traces.read() == frozenset(), "a firewall serves no Service"
            found = traces.enforcer()
            assert (found.enforcer.name if found else None) == ("kube-router's firewall" if policies else None)
