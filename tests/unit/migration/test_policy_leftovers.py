"""What kube-router has of network policies and of routing goes when kroute's own stands and that part of kube-router
has ended, not before."""

from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from kroute.checks.other_proxies import OTHER_PROXIES, OtherProxy
from kroute.inspect.agent_socket import AgentUnreachableError
from kroute.migration import take_over
from kroute.migration.leftovers import Leftovers, NodeScan
from kroute.migration.take_over import DEFAULTS, NOT_WRITTEN, look
from kroute.reconcile.pass_status import ControllerStatistics
from kroute.settings import Settings
from tests.builders import settings
from tests.real_proxies import KUBE_ROUTER_FIREWALL
from tests.unit.migration.test_real_leftovers import scan

WRITTEN = ControllerStatistics(last_success=1.0)
AT_WORK = "kube-router's health port 20244 is open"


class KubeRoutersNode:
    """A node on which kube-router has left its firewall, beside an agent."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.controllers: dict[str, ControllerStatistics] | None = {"network_policy": WRITTEN}
        """What the agent says of its controllers; None: no agent answers."""
        self.firewall = ""
        """Why kube-router's firewall counts as running."""
        self.scanned = scan(KUBE_ROUTER_FIREWALL)
        monkeypatch.setattr(take_over, "scan_node", self._scan)
        monkeypatch.setattr(take_over, "ask_for", self._ask)
        monkeypatch.setattr(take_over, "firewall_at_work", lambda: self.firewall)

    async def look(
        self, *, policies: bool = True, pods: bool = False, force: bool = False, by_hand: bool = False
    ) -> Leftovers:
        options = msgspec.structs.replace(DEFAULTS, force=force, is_by_hand=by_hand)
        chosen = settings(network_policies=policies, pod_network=pods)
        return await look(OTHER_PROXIES["kube-router"], chosen, options)

    async def _scan(self, proxy: OtherProxy, chosen: Settings) -> NodeScan:
        expected = OTHER_PROXIES["kube-router"]
        expected = expected.with_firewall() if chosen.network_policies else expected
        assert proxy == (expected.with_routing() if chosen.pod_network else expected), "what kroute does itself"
        return self.scanned

    async def _ask(self, _state_dir: Path, _question: str, read: Callable[[bytes], object]) -> object:
        if self.controllers is None:
            raise AgentUnreachableError("no agent answers")
        return read(msgspec.json.encode({"now": 1.0, "controllers": self.controllers}))


@pytest.fixture
def node(monkeypatch: pytest.MonkeyPatch) -> KubeRoutersNode:
    return KubeRoutersNode(monkeypatch)


async def test_they_go_when_kroutes_stand_and_the_firewall_has_ended(node: KubeRoutersNode) -> None:
    found = await node.look()
    assert [table.variant for table in found.tables] == ["IPv4 legacy", "IPv6 legacy"]
    assert len(found.sets) == 4
    assert (found.warnings, found.are_removed) == ([], False)
    assert found.whose == OTHER_PROXIES["kube-router"].with_firewall()


@pytest.mark.parametrize(
    "controllers",
    [
        None,
        {"masquerade": WRITTEN},
        {"network_policy": ControllerStatistics()},
        {"network_policy": ControllerStatistics(last_success=1.0, failing_for=3.0)},
    ],
    ids=["no agent", "an agent without policies", "nothing written yet", "failing"],
)
@pytest.mark.parametrize("force", [False, True])
async def test_they_stay_until_kroutes_stand_whatever_is_said(
    controllers: dict[str, ControllerStatistics] | None, force: bool, node: KubeRoutersNode
) -> None:
    node.controllers = controllers
    found = await node.look(force=force)
    assert found.are_removed, "nothing of it is to be removed"
    assert found.warnings == [f"kube-router's rules of network policies stay: {NOT_WRITTEN}"]


async def test_they_stay_while_the_firewall_seems_to_run_unless_the_operator_knows_better(
    node: KubeRoutersNode,
) -> None:
    node.firewall = AT_WORK
    found = await node.look()
    assert found.are_removed
    assert f"its firewall seems to run ({AT_WORK})" in found.warnings[0]
    assert not (await node.look(force=True)).are_removed


async def test_without_network_policies_they_are_nobodys_business(node: KubeRoutersNode) -> None:
    found = await node.look(policies=False)
    assert (found.are_removed, found.warnings) == (True, [])
    assert found.whose == OTHER_PROXIES["kube-router"]


async def test_what_it_has_of_routing_goes_by_the_same_rule_and_its_file_by_hand_alone(
    node: KubeRoutersNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    tunnels, files = ("tun-2b2488a2f2a",), ("/etc/cni/net.d/10-kuberouter.conflist",)
    node.scanned = msgspec.structs.replace(node.scanned, tunnels=tunnels, cni_files=files)
    assert (await node.look(policies=False)).are_removed, "kroute connects no pods"
    found = await node.look(policies=False, pods=True)
    assert found.warnings == [f"kube-router's routes to pods stay: {NOT_WRITTEN}"]
    node.controllers = {"pod_routes": WRITTEN}
    monkeypatch.setattr(take_over, "routing_at_work", lambda: AT_WORK)
    found = await node.look(policies=False, pods=True)
    assert f"its routing seems to run ({AT_WORK})" in found.warnings[0]
    monkeypatch.setattr(take_over, "routing_at_work", str)
    found = await node.look(policies=False, pods=True)
    assert (found.tunnels, found.cni_files, found.warnings) == (tunnels, (), [])
    assert (await node.look(policies=False, pods=True, by_hand=True)).cni_files == files
    assert found.whose == OTHER_PROXIES["kube-router"].with_routing()
