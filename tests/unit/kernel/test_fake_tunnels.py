"""The fake tunnels keep the contract that the real ones keep in the lab."""

import pytest

from kroute.kernel.pods.client import LINKS
from tests.fakes.kernel import FakeKernel
from tests.fakes.tunnels import FakePod, FakeTunnels
from tests.kernel import contracts_tunnels


class FakeTunnelNode:
    """A fake kernel with direct return."""

    def __init__(self) -> None:
        self.tunnels = FakeTunnels(FakeKernel())

    def add_pod(self, *addresses: str, depth: int = 0) -> int:
        return self.tunnels.add_pod(*addresses, depth=depth).pid

    def end_pod(self, pid: int) -> None:
        self.tunnels.pods.remove(self._pod(pid))

    def add_link_like_ours(self, pid: int, name: str) -> None:
        self._pod(pid).foreign |= {family for family, link in LINKS.items() if link == name}

    def be_strict(self, pid: int) -> None:
        self.tunnels.strict |= {it for it in self._pod(pid).addresses if ":" not in it}

    def _pod(self, pid: int) -> FakePod:
        return next(it for it in self.tunnels.pods if it.pid == pid)


@pytest.fixture
def node() -> FakeTunnelNode:
    return FakeTunnelNode()


class TestFakeTunnels(contracts_tunnels.TunnelsContract):
    pass
