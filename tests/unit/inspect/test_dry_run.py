"""`kroute plan` finds the agent's changes with the agent's own controllers, and changes nothing."""

import inspect
from pathlib import Path
from typing import Generic

import msgspec
import pytest

from kroute.inspect import recording
from kroute.inspect.dry_run import PlannedChanges, dry_run
from kroute.kernel import clients
from kroute.kernel.errors import KernelError
from kroute.kernel.ipset import DeleteEntry, Ipset
from kroute.kernel.ipvs.objects import AddVirtualServer, DeleteRealServer, SyncDaemon, SyncRole, VirtualServerOptions
from kroute.model.objects import Applied, Listed
from kroute.model.plan import ServicePlan
from kroute.planning.policies.catalog import PolicyCatalog
from tests.fakes.ipvs import FakeIpvs
from tests.fakes.kernel import Operation
from tests.fakes.node_kernel import FakeNodeKernel
from tests.unit.fake_node import DUMMY, NODE_IPV4, FakeNode, node_plan, plan, server
from tests.unit.planning.policies.cluster import KINDS, pod, policy

WEB = plan("web", 1, server("10.96.0.1", 80, "172.20.1.1", "172.20.2.1"), server("fd00::1", 80, "fd00:20::1"))
PLANS = (node_plan(1, "172.20.0.0/16"), WEB)


async def planned(node: FakeNode, *plans: ServicePlan, policies: PolicyCatalog | None = None) -> PlannedChanges:
    """Return what would change on this node; assert that nothing does."""
    kernel = node.kernel
    opened = await FakeNodeKernel.of(kernel).open()
    ledger = node.ledger.path
    before = ledger.read_bytes() if ledger.exists() else None
    kernel.writes.clear()
    tables = set(kernel.tables)
    found = await dry_run(node.settings, plans, opened, policies)
    assert kernel.writes == []
    assert set(kernel.tables) == tables
    assert (ledger.read_bytes() if ledger.exists() else None) == before
    return found


def of(found: PlannedChanges, service: str = "default/web") -> list[str]:
    return [change.what for change in found.changes if change.service == service]


async def test_nothing_changes_where_an_agent_has_been_at_work(tmp_path: Path) -> None:
    node = await FakeNode(tmp_path).start(*PLANS)
    assert await planned(node, *PLANS) == PlannedChanges([], [])


async def test_on_a_fresh_node_it_is_what_the_agent_then_does(tmp_path: Path) -> None:
    node = FakeNode(tmp_path)
    found = await planned(node, *PLANS)
    assert not found.problems
    said = {change.what.removesuffix(f" ({DUMMY})") for change in found.changes}
    await node.start(*PLANS)
    assert {str(change) for change in node.kernel.writes if not isinstance(change, Operation)} <= said
    kinds = {change.kind for change in found.changes}
    assert kinds == {"link", "set", "set entry", "rules", "virtual server", "real server", "route", "address", "sysctl"}


@pytest.mark.parametrize(
    ("drift", "changes"),
    [
        pytest.param(
            lambda kernel: kernel.delete_address(DUMMY, "10.96.0.1"),
            # the kernel deletes a link's IPv4 routes with its last IPv4 address
            [f"set the source {NODE_IPV4} on the local route of 10.96.0.1", f"bind 10.96.0.1 ({DUMMY})"],
            id="an address",
        ),
        pytest.param(
            lambda kernel: kernel.virtual_servers.pop((6, "10.96.0.1", 80)),
            [
                "add virtual server TCP 10.96.0.1:80 (scheduler rr)",
                "add real server 172.20.1.1:8080 to TCP 10.96.0.1:80",
                "add real server 172.20.2.1:8080 to TCP 10.96.0.1:80",
            ],
            id="a virtual server",
        ),
        pytest.param(
            lambda kernel: kernel.sets["KROUTE-CLUSTER-IP"].elements.clear(),
            ["add 10.96.0.1,TCP,80 to set KROUTE-CLUSTER-IP"],
            id="a set entry",
        ),
    ],
)
async def test_drift_is_found_and_named_after_its_service(drift, changes: list[str], tmp_path: Path) -> None:
    node = await FakeNode(tmp_path).start(*PLANS)
    drift(node.kernel)
    found = await planned(node, *PLANS)
    assert of(found) == changes
    assert len(found.changes) == len(changes)


async def test_a_real_server_that_lost_its_weight_or_is_missing(tmp_path: Path) -> None:
    node = await FakeNode(tmp_path).start(*PLANS)
    await node.ipvs.write([DeleteRealServer((6, "10.96.0.1", 80), ("172.20.1.1", 8080))])
    found = await planned(node, *PLANS)
    [change] = found.changes
    assert (change.kind, change.action) == ("real server", "add")


async def test_rules_and_sysctls_that_were_changed(tmp_path: Path) -> None:
    node = await FakeNode(tmp_path).start(*PLANS)
    node.kernel.table(2, "filter").chains["KROUTE-INPUT"].clear()
    node.kernel.sysctls["net.ipv4.vs.conntrack"] = "0"
    found = await planned(node, *PLANS)
    assert of(found, "") == [
        "set net.ipv4.vs.conntrack to 1 (is 0)",
        "write the IPv4 rules of table filter: chain KROUTE-INPUT has other rules",
    ]


async def test_rules_whose_set_is_gone_are_gone_too(tmp_path: Path) -> None:
    node = await FakeNode(tmp_path).start(*PLANS)
    node.kernel.tables.clear()
    del node.kernel.sets["KROUTE-HAIRPIN"]
    found = await planned(node, *PLANS)
    assert "create set KROUTE-HAIRPIN (hash:ip,port,ip)" in of(found, "")
    assert any("chain KROUTE-POSTROUTING is missing" in what for what in of(found, ""))


async def test_a_service_that_is_gone_is_withdrawn(tmp_path: Path) -> None:
    node = await FakeNode(tmp_path).start(*PLANS)
    found = await planned(node, node_plan(1, "172.20.0.0/16"))
    assert f"unbind 10.96.0.1 ({DUMMY})" in of(found, "")
    assert "delete virtual server TCP 10.96.0.1:80" in of(found, "")
    assert {change.action for change in found.changes} == {"delete"}


async def test_a_virtual_server_of_somebody_elses_is_a_problem_and_no_change(tmp_path: Path) -> None:
    node = await FakeNode(tmp_path).start(PLANS[0])
    await node.ipvs.write([AddVirtualServer((6, "10.96.0.1", 80), VirtualServerOptions("rr", 0, 0, 0))])
    found = await planned(node, *PLANS)
    assert not any("10.96.0.1:80" in change.what for change in found.changes)
    assert any("ForeignVirtualServer" in problem for problem in found.problems)


async def test_a_family_without_tables_is_reported(tmp_path: Path) -> None:
    node = await FakeNode(tmp_path).start(*PLANS)
    node.kernel.ipv6 = False
    found = await planned(node, *PLANS)
    assert any(problem.startswith("the IPv6 rules cannot be compared") for problem in found.problems)


async def test_a_kernel_that_does_not_answer_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    node = await FakeNode(tmp_path).start(*PLANS)

    async def read(_self: FakeIpvs) -> dict:
        raise KernelError("the table cannot be read")

    monkeypatch.setattr(FakeIpvs, "read", read)
    with pytest.raises(KernelError, match="the table cannot be read"):
        await planned(node, *PLANS)


PROTOCOLS = {
    recording.RecordingLinks: clients.LinkClient,
    recording.RecordingIpvs: clients.IpvsClient,
    recording.RecordingAddresses: clients.AddressClient,
    recording.RecordingRoutes: clients.RouteClient,
    recording.RecordingSysctls: clients.SysctlClient,
    recording.NoConntrack: clients.ConntrackClient,
    recording.RecordingIpset: clients.IpsetClient,
    recording.RecordingXtables: clients.XtablesClient,
    recording.RecordingNftables: clients.NftablesClient,
    recording.RecordingTunnels: clients.TunnelClient,
    recording.RecordingPodNetwork: clients.PodNetworkClient,
}


@pytest.mark.parametrize("recorded", PROTOCOLS, ids=lambda kind: kind.__name__)
def test_a_recording_client_answers_what_may_be_asked_and_inherits_nothing(recorded: type) -> None:
    assert recorded.__mro__ == (recorded, recording.Recording, Generic, object)
    asked = {name for name, _ in inspect.getmembers(PROTOCOLS[recorded], inspect.isfunction) if name[0] != "_"}
    assert {name for name in vars(recorded) if name[0] != "_"} - {"is_needed"} == asked


@pytest.mark.parametrize("recorded", PROTOCOLS, ids=lambda kind: kind.__name__)
def test_a_method_of_a_recording_client_has_the_parameters_of_the_protocol(recorded: type) -> None:
    for name, asked in inspect.getmembers(PROTOCOLS[recorded], inspect.isfunction):
        if name[0] != "_":
            taken = [*inspect.signature(getattr(recorded, name)).parameters]
            assert taken in ([*inspect.signature(asked).parameters], ["self", "arguments"])


async def test_a_client_that_lacks_a_method_of_its_protocol_cannot_be_defined() -> None:
    with pytest.raises(TypeError, match="repair"):

        class Lacking(recording.Recording[clients.LinkClient], reads=("index", "names", "read")): ...


async def test_every_client_of_a_recording_kernel_records(tmp_path: Path) -> None:
    recorded = recording.recording(FakeNode(tmp_path).clients, recording.Recorder())
    members = [getattr(recorded, each) for each in recorded.__struct_fields__]
    kinds = {type(each) for it in members for each in (it.values() if isinstance(it, dict) else [it])}
    assert kinds - PROTOCOLS.keys() == {tuple, type}
    assert recorded.monitor is recording.NoEvents


async def test_what_is_not_recorded_cannot_reach_the_kernel() -> None:
    ipset = recording.RecordingIpset(Ipset(), recording.Recorder())
    with pytest.raises(AttributeError):
        await ipset.open()
    assert DeleteEntry("KROUTE-VIP", ("10.0.0.1",)) not in ipset._recorder.changes


async def test_what_only_a_cleanup_or_a_director_asks_for_is_recorded_too(tmp_path: Path) -> None:
    node = await FakeNode(tmp_path).start()
    node.kernel.writes.clear()
    recorder = recording.Recorder()
    kernel = recording.recording(node.clients, recorder)
    await kernel.links.delete(DUMMY)
    await kernel.ipvs.start_sync_daemon(SyncDaemon(SyncRole.MASTER, "eth0", 7))
    await kernel.ipvs.stop_sync_daemon(SyncDaemon(SyncRole.MASTER, "eth0", 7))
    assert [change.what for change in recorder.changes] == [
        f"delete link {DUMMY}",
        "start the IPVS master synchronization daemon on eth0",
        "stop the IPVS master synchronization daemon on eth0",
    ]
    assert node.kernel.writes == []


ISOLATED = pod("web", "10.244.1.5", "fd00:244:1::5", on="node3"), policy()
OBJECTS = [*(Applied(msgspec.convert(it, KINDS[it["kind"]])) for it in ISOLATED), *map(Listed, KINDS.values())]


def known() -> PolicyCatalog:
    """What plans the policies of the node, with all objects."""
    made = PolicyCatalog("node3")
    made.take(OBJECTS)
    return made


@pytest.mark.parametrize(
    ("firewall", "change"),
    [("nftables", "add table {0} kroute-policies"), ("iptables", "add 10.244.1.5 to set KROUTENP-INGRESS")],
)
async def test_network_policies_are_compared_too(tmp_path: Path, firewall: str, change: str) -> None:
    node = FakeNode(tmp_path, firewall=firewall, network_policies=True)
    found = await planned(node, *PLANS, policies=known())
    assert {change.format("ip"), change.format("ip6")} <= {*of(found, "")}
    assert node.wiring.optional.network_policy is not None
    node.wiring.optional.network_policy.take_changes(OBJECTS)
    await node.start(*PLANS)
    assert await planned(node, *PLANS, policies=known()) == PlannedChanges([], [])
