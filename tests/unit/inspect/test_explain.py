"""`kroute explain` compares the kernel with the plan, and its verdict follows the kernel."""

import io
from contextlib import redirect_stdout

import msgspec
import pytest

from kroute.cli.explain import exit_code, print_explanations
from kroute.cli.terminal.output import DIFFERENT, DONE, NOT_SERVED, UNKNOWN
from kroute.cli.terminal.screen import Screen
from kroute.firewall.iptables.rules import family_rules
from kroute.firewall.iptables.tables import LEGACY
from kroute.firewall.reasons import HOST_PORT, IN_WORDS
from kroute.inspect import explain, planned_state
from kroute.inspect.explain import AppliedState, Client, Explanation, ExplanationList, Fate, judge
from kroute.inspect.planned_state import PlannedState
from kroute.kernel.ipvs.objects import DeleteRealServer, RealServerState, VirtualServerOptions, VirtualServerState
from kroute.kernel.net.routes import Way
from kroute.model.addresses import Family
from kroute.model.node_facts import NodeFacts, NodeInterfaces
from kroute.model.objects import Applied, ObjectKey, Service
from kroute.model.plan import Protocol, VirtualServerKey
from kroute.planning.catalog import Catalog
from kroute.reconcile.broadcaster import Broadcaster
from kroute.settings import Settings
from tests.builders import (
    LISTED,
    NODE,
    endpoint,
    endpoint_slice,
    service,
)
from tests.fakes.kernel import FakeKernel
from tests.fakes.node_kernel import open_fake_kernel
from tests.unit.fake_node import DUMMY, NODE_IPV4, FakeNode

KEY = VirtualServerKey(Protocol.TCP, "10.96.0.10", 80)
SETTINGS = Settings(node_name=NODE, firewall="iptables", cluster_cidrs=("10.244.0.0/16",))
FACTS = NodeFacts(
    NODE, ipv4=NODE_IPV4, interfaces=NodeInterfaces(frozenset({NODE_IPV4})), node_port_addresses=(NODE_IPV4,)
)
POD, ELSEWHERE = "10.244.1.9", "192.0.2.1"


def catalog(*services: Service) -> Catalog:
    made = Catalog(SETTINGS, FACTS)
    made.take(Applied(it) for it in services or (service(),))
    made.take([Applied(endpoint_slice("web-1", endpoint("10.244.1.1"), endpoint("10.244.2.1", ready=False)))])
    made.take(LISTED)
    return made


class FakeLookup:
    """The routing of a fake kernel."""

    def __init__(self, kernel: FakeKernel) -> None:
        self.kernel = kernel

    async def __aenter__(self) -> "FakeLookup":
        return self

    async def __aexit__(self, *_: object) -> None: ...

    async def towards(self, address: str) -> Way | None:
        for name, link in self.kernel.links.items():
            if address in link.addresses or link.routes.get(address):
                source = next((it.source for it in link.routes.get(address, ())), address)
                return Way(True, name, source)
        return Way(False, "eth0", NODE_IPV4)


@pytest.fixture
async def node(tmp_path, monkeypatch: pytest.MonkeyPatch) -> FakeNode:
    """A node on which an agent with these settings has applied the plans."""
    made = FakeNode(tmp_path, cluster_cidrs=SETTINGS.cluster_cidrs)
    await made.start(*catalog().plan_marked())
    monkeypatch.setattr(explain, "open_kernel", lambda only: open_fake_kernel(made.kernel))
    monkeypatch.setattr(explain, "RouteLookup", lambda: FakeLookup(made.kernel))
    return made


def published(made: Catalog) -> Broadcaster:
    """Return a broadcaster that has the plans of this catalog."""
    broadcaster = Broadcaster()
    broadcaster.publish(made.plan_marked())
    return broadcaster


async def known(key: VirtualServerKey = KEY, *services: Service) -> PlannedState:
    """Return what the agent answers on its socket."""
    made = catalog(*services)
    broadcaster = published(made)
    found = planned_state.decode(msgspec.json.encode(await planned_state.of_frontend(made, broadcaster, key)))
    assert found is not None
    return found


async def explained(key: VirtualServerKey = KEY, client: str | None = None, *, agent: bool = True) -> Explanation:
    return await explain.explain(SETTINGS, key, client, await known(key) if agent else None, FACTS)


def fates(found: Explanation) -> dict[str, tuple[Fate, str]]:
    return {it.client.name: (it.fate, it.masquerade.partition(" (")[0]) for it in found.verdicts}


async def test_all_kinds_of_clients_are_served(node: FakeNode) -> None:
    found = await explained()
    assert (found.source, found.service, found.is_bound, found.scheduler) == ("agent", "default/web", True, "rr")
    assert found.differences == []
    assert fates(found) == {
        "this node": (Fate.SERVED, "masqueraded"),
        "a pod": (Fate.SERVED, "the client's address is kept"),
        "elsewhere": (Fate.SERVED, "masqueraded"),
    }
    assert [it.address for it in found.real_servers] == ["10.244.1.1"]
    assert exit_code(ExplanationList([found])) == DONE


async def test_one_client_alone(node: FakeNode) -> None:
    assert fates(await explained(client=NODE_IPV4)) == {"this node": (Fate.SERVED, "masqueraded")}
    assert fates(await explained(client=POD)) == {POD: (Fate.SERVED, "the client's address is kept")}


async def test_a_port_that_no_service_has_is_refused_on_a_vip(node: FakeNode) -> None:
    found = await explained(KEY._replace(port=22))
    assert (found.service, found.frontend) == ("", None)
    assert {fate for fate, _ in fates(found).values()} == {Fate.REFUSED}
    assert {it.why.partition(" (")[0] for it in found.verdicts} == {IN_WORDS[HOST_PORT]}, "a refusal in words, too"
    assert found.differences == []
    assert exit_code(ExplanationList([found])) == NOT_SERVED


async def test_what_is_nobodys_is_not_kroutes_matter(node: FakeNode) -> None:
    found = await explained(VirtualServerKey(Protocol.TCP, "198.51.100.1", 80))
    assert {fate for fate, _ in fates(found).values()} == {Fate.PASSED_ON}
    assert all("packets leave by " in verdict.why for verdict in found.verdicts)
    assert exit_code(ExplanationList([found])) == UNKNOWN
    found = await explained(VirtualServerKey(Protocol.TCP, NODE_IPV4, 9999))
    assert {fate for fate, _ in fates(found).values()} == {Fate.HOST}


async def test_every_difference_is_named(node: FakeNode) -> None:
    kernel = node.kernel
    await node.ipvs.write([DeleteRealServer(KEY, ("10.244.1.1", 8080))])
    kernel.sets["KROUTE-CLUSTER-IP"].elements.clear()
    kernel.sets["KROUTE-NO-ENDPOINT"].elements.add((KEY.address, 6, 80))
    kernel.table(Family.IPV4.number, "filter").chains["KROUTE-VIPS"].pop()
    kernel.delete_address(DUMMY, KEY.address)
    found = await explained()
    assert found.differences == [
        "address 10.96.0.10 is not bound",
        "no local route leads to 10.96.0.10",
        "real server 10.244.1.1:8080 is missing",
        "entry 10.96.0.10,TCP,80 of set KROUTE-CLUSTER-IP is missing",
        "entry 10.96.0.10,TCP,80 of set KROUTE-NO-ENDPOINT was not planned",
        "IPv4 rules of table filter: chain KROUTE-VIPS has other rules",
    ]
    assert exit_code(ExplanationList([found])) == DIFFERENT


async def test_that_a_service_sends_clients_to_a_pod_is_no_difference_of_the_pods_own_port(node: FakeNode) -> None:
    node.kernel.sets["KROUTE-HAIRPIN"].elements.add(("10.244.1.1", 6, 8080, "10.244.1.1"))
    found = await explained(VirtualServerKey(Protocol.TCP, "10.244.1.1", 8080))
    assert (found.differences, {fate for fate, _ in fates(found).values()}) == ([], {Fate.PASSED_ON})


async def test_a_weight_and_a_real_server_of_somebody_elses_differ(node: FakeNode) -> None:
    reals = node.kernel.virtual_servers[KEY].real_servers
    reals["10.244.1.1", 8080] = reals["10.244.1.1", 8080]._replace(weight=7)
    reals["10.9.9.9", 80] = reals["10.244.1.1", 8080]
    reals["10.9.9.8", 80] = reals["10.244.1.1", 8080]._replace(weight=0)  # it drains
    assert (await explained()).differences == [
        "real server 10.244.1.1:8080 has weight 7, not 1",
        "real server 10.9.9.9:80 takes new connections and was not planned",
    ]


async def test_a_route_with_another_source_differs(node: FakeNode) -> None:
    node.kernel.links[DUMMY].routes[KEY.address].pop(0)
    assert (await explained()).differences == [
        f"the route to 10.96.0.10 has the source 10.96.0.10, not {NODE_IPV4}",
    ]


async def test_a_virtual_server_that_is_missing(node: FakeNode) -> None:
    del node.kernel.virtual_servers[KEY]
    found = await explained()
    assert found.differences == ["virtual server TCP 10.96.0.10:80 is missing"]
    assert {fate for fate, _ in fates(found).values()} == {Fate.HOST}


async def test_without_an_agent_the_kernel_speaks_alone(node: FakeNode) -> None:
    found = await explained(agent=False)
    assert (found.source, found.service, found.frontend) == ("kernel", "", None)
    assert fates(found)["elsewhere"] == (Fate.SERVED, "masqueraded")
    assert exit_code(ExplanationList([found])) == DONE


async def test_it_is_printed_for_a_person(node: FakeNode) -> None:
    screen = io.StringIO()
    with redirect_stdout(screen):
        print_explanations(ExplanationList([await explained()]), Screen())
    text = screen.getvalue()
    for line in (
        "TCP 10.96.0.10:80",
        "default/web, clusterIP, traffic policy Cluster",
        f"for this node by {DUMMY}, source {NODE_IPV4}",
        "in  10.244.1.1:8080 on node2: ready, weight 1",
        "out 10.244.2.1:8080 on node2: not ready",
        "masqueraded (the client is not a pod, and calls a ClusterIP)",
    ):
        assert line in text


@pytest.mark.parametrize(
    ("client", "real_servers", "fate"),
    [
        (Client("this node", NODE_IPV4, ""), {("10.244.1.1", 80): 0}, Fate.REFUSED),
        (Client("elsewhere", ELSEWHERE, "eth0"), {("10.244.1.1", 80): 0}, Fate.REFUSED),
        (Client("this node", NODE_IPV4, ""), None, Fate.HOST),
    ],
    ids=["all drain, from the node", "all drain, from elsewhere", "no virtual server and no rule"],
)
def test_without_a_serving_real_server(client: Client, real_servers: dict | None, fate: Fate) -> None:
    reals = {key: RealServerState(weight) for key, weight in (real_servers or {}).items()}
    server = VirtualServerState(VirtualServerOptions(), reals) if real_servers is not None else None
    applied = AppliedState(set(), {}, server, Way(True, DUMMY, NODE_IPV4))
    assert judge(KEY, client, applied, family_rules(SETTINGS, Family.IPV4, FACTS)).fate is fate


async def test_the_planned_state_of_a_service_and_of_none() -> None:
    made = catalog()
    broadcaster = published(made)
    found = await planned_state.of_service(made, broadcaster, ObjectKey("default", "web"))
    assert found is not None
    assert found.service == "default/web"
    assert {it.set for it in found.entries} == {"CLUSTER-IP", "VIP"}
    assert await planned_state.of_service(made, broadcaster, ObjectKey("default", "none")) is None


def test_a_question_without_sense_is_refused() -> None:
    assert planned_state.read_key("UDP 10.0.0.1 53") == VirtualServerKey(Protocol.UDP, "10.0.0.1", 53)
    for text in ("ICMP 10.0.0.1 53", "TCP 10.0.0.1", "TCP 10.0.0.1 http"):
        with pytest.raises(ValueError, match=r"not a protocol|not enough|invalid literal"):
            planned_state.read_key(text)


def test_every_family_has_its_rules() -> None:
    for family in Family:
        rules = family_rules(SETTINGS, family, FACTS)
        assert {name: table.table for name, table in rules.tables.items()} == {it: it for it in LEGACY}
