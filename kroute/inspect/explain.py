"""Explain what happens to a packet: the plan for its address and port, the kernel's state, and what follows from both.

A verdict is what happens to a client's first packet on this node, in the order of docs/firewall-rules.md. It follows
from kroute's rules and from the kernel's state; what network policies say of it (`judged`), from the agent's plan.
"""

from collections.abc import Awaitable, Callable, Iterator, Sequence
from enum import StrEnum
from ipaddress import ip_network
from typing import ClassVar

import msgspec

from kroute.base.forwarding import TUNNEL
from kroute.base.wording import host_port
from kroute.firewall.backend import choose, clients_of, firewall_of, settled_on
from kroute.firewall.packet_trace import Ending, Packet, Rules, SourceChoice
from kroute.firewall.protocol import Firewall
from kroute.firewall.reasons import IN_WORDS
from kroute.firewall.sets import Sets
from kroute.inspect.planned_state import PlannedState
from kroute.inspect.snapshot import RealServerView
from kroute.kernel.ipvs.objects import RealServerKey, VirtualServerState
from kroute.kernel.net.routes import RouteLookup, Way
from kroute.kernel.node_kernel import NodeKernel, open_kernel
from kroute.model.addresses import Family, family_of
from kroute.model.document import Document, View
from kroute.model.node_facts import NodeFacts
from kroute.model.plan import AddressSet, Protocol, SetEntry, VirtualServerKey
from kroute.model.policy_plan import Direction
from kroute.planning.endpoint_reasons import FrontendView
from kroute.planning.policies.verdicts import Judgement
from kroute.reconcile.comparison import set_entries, source_routes, vips, virtual_servers
from kroute.settings import Settings

ELSEWHERE = {Family.IPV4: "192.0.2.1", Family.IPV6: "2001:db8::1"}
"""Documentation addresses (RFC 5737, RFC 3849), which belong to nobody."""
SOME_POD, SOME_LOCAL_POD = "a pod", "a pod of this node"
"""The names of clients that stand for pods whatever their labels are: no policy can be asked about them."""
SOME_INTERFACE = "(any)"
"""A name that no interface has, for clients whose incoming interface is not known."""


class AppliedState(msgspec.Struct):
    """`bound` are the addresses on the dummy interface. `server` and `route` are None if there is none.

    `is_steered`: direct return delivers packets from elsewhere to this node, though the address is on no link.
    """

    bound: set[str]
    sets: Sets
    server: VirtualServerState | None
    route: Way | None
    is_steered: bool = False

    @property
    def is_local(self) -> bool:
        """Whether packets to the address are for this node."""
        return self.is_steered or (self.route is not None and self.route.is_local)

    @property
    def source(self) -> str | None:
        """The address from which this node's own processes call it, or None."""
        return self.route.source if self.route is not None else None

    @property
    def is_tunnelled(self) -> bool:
        """Whether packets go on unchanged in a tunnel."""
        return self.server is not None and any(real.method == TUNNEL for real in self.server.real_servers.values())

    @property
    def serving(self) -> list[RealServerKey]:
        """The real servers that take new connections."""
        return sorted(key for key, real in self.server.real_servers.items() if real.weight) if self.server else []


class Fate(StrEnum):
    """The outcome for a new connection."""

    SERVED = "served"
    REFUSED = "refused"
    """The client gets a TCP reset or an ICMP error at once."""
    DROPPED = "dropped"
    """The client waits until it times out."""
    HOST = "left to the node"
    """No Service has it: the node itself answers, if something listens there."""
    PASSED_ON = "passed on"
    """Not for this node: routed like any other packet."""


class Client(msgspec.Struct, frozen=True, rename="camel"):
    """A client. Without `interface` it is a process of this node."""

    name: str
    address: str
    interface: str


class Verdict(msgspec.Struct, frozen=True, rename="camel"):
    """The outcome of a client's new connection, and why. `masquerade` says which source the real servers see.

    `judgements` are those of network policies, one for each real server that the connection may go to, or for its
    destination if no virtual server takes it. `unjudged` is how many more real servers there are.
    """

    client: Client
    fate: Fate
    why: str
    masquerade: str
    judgements: list[Judgement] = []
    unjudged: int = 0


class RouteView(View):
    """A route. `is_local`: it delivers to this node. `source`: the source address that the kernel chooses for it."""

    is_local: bool
    interface: str
    source: str | None


class Explanation(View):
    """Everything that is known about an address and port.

    `source` is `agent`, or `kernel` if no agent answered; then Services are not known. `route` is None if no route
    leads to the address. `is_steered`: the address is on no link, and direct return delivers its packets. `frontend`
    is the Service's, with its endpoints. `verdicts` are by the kernel's state. `differences` are sentences about
    deviations from the plan. `scheduler` is the kernel's. `scheduler_reason` says what has chosen it; it is
    empty if the plan has another one. `routers` says what these learn; it is empty if nothing is announced.
    """

    protocol: str
    address: str
    port: int
    source: str
    service: str
    frontend: FrontendView | None
    is_bound: bool
    route: RouteView | None
    scheduler: str
    real_servers: list[RealServerView]
    verdicts: list[Verdict]
    differences: list[str]
    problems: list[str]
    is_steered: bool = False
    scheduler_reason: str = ""
    routers: str = ""

    @property
    def key(self) -> VirtualServerKey:
        """The key of the virtual server that would serve it."""
        return VirtualServerKey(Protocol[self.protocol], self.address, self.port)

    @property
    def is_known(self) -> bool:
        """Whether kroute has anything to do with the address, or with the address and port."""
        is_served = self.service or self.real_servers or self.is_bound or self.scheduler or self.is_steered
        return bool(is_served) or self.has_rulings

    @property
    def has_rulings(self) -> bool:
        """Whether some end is a pod that network policies were asked about."""
        return any(judgement.rulings for verdict in self.verdicts for judgement in verdict.judgements)


class ExplanationList(Document):
    """An explanation of one address and port, or of each that a Service has."""

    kind: ClassVar[str] = "ExplanationList"

    items: list[Explanation]

    def names(self) -> Iterator[str]:
        """The addresses and ports that were explained."""
        return (f"{host_port(item.address, item.port)}/{item.protocol}" for item in self.items)


async def explain(
    settings: Settings, key: VirtualServerKey, client: str | None, planned: PlannedState | None, facts: NodeFacts
) -> Explanation:
    """Explain what happens to packets to `key`.

    `client` is the address that they come from; if None, one client of each kind is examined. `planned` is the agent's
    planned state, if an agent answered. `facts` are used instead of its node facts otherwise. Raises KernelError if the
    kernel does not tell its state.
    """
    known = planned or PlannedState(facts, "", None, [], [], [], [])
    node, view = known.node, known.view
    family = family_of(key.address)
    settings = settled_on(settings, (await choose(settings)).name)
    async with open_kernel(only=("ipvs", "addresses", *clients_of(settings))) as kernel, RouteLookup() as lookup:
        firewall = firewall_of(settings, kernel)
        applied = await read_applied_state(settings.dummy_interface, key, kernel, firewall, lookup)
        rules = await firewall.rules(family, node)
        clients = await _clients(client, family, settings, node, applied, lookup)
        differences = await firewall.rule_differences(family, node)
    if planned is not None:
        differences = [*_differences(key, planned, applied, firewall), *differences]
    real_servers = applied.server.real_servers if applied.server else {}
    scheduler = applied.server.options.scheduler if applied.server else ""
    return Explanation(
        protocol=key.protocol.name,
        address=key.address,
        port=key.port,
        source="agent" if planned is not None else "kernel",
        service=known.service,
        frontend=next((one for one in view.frontends if one.key == key), None) if view is not None else None,
        is_bound=key.address in applied.bound,
        route=RouteView(*applied.route) if applied.route is not None else None,
        scheduler=scheduler,
        real_servers=[
            RealServerView(*server, real.weight, real.active, real.inactive)
            for server, real in sorted(real_servers.items())
        ],
        verdicts=[judge(key, one, applied, rules) for one in clients],
        differences=differences,
        problems=known.problems,
        is_steered=applied.is_steered,
        routers=known.learned.get(key.address, ""),
        scheduler_reason=view.scheduler_reason if view is not None and view.scheduler == scheduler else "",
    )


Judge = Callable[[str, Sequence[RealServerKey]], Awaitable[list[Judgement]]]
"""Asks what network policies say of connections from an address to these; some of them may be left out."""


async def judged(found: Explanation, judge: Judge) -> Explanation:
    """The explanation with what network policies say of each client, whose packets they may drop.

    They are not asked about a client that stands for any pod.
    """
    serving = [(real.address, real.port) for real in found.real_servers if real.weight]
    ends = {Fate.SERVED: serving, Fate.HOST: [found.key[1:]], Fate.PASSED_ON: [found.key[1:]]}
    verdicts = []
    for verdict in found.verdicts:
        asked = ends.get(verdict.fate, []) if verdict.client.name not in {SOME_POD, SOME_LOCAL_POD} else []
        judgements = await judge(verdict.client.address, asked) if asked else []
        verdicts.append(_under_policies(verdict, judgements, len(asked)))
    return msgspec.structs.replace(found, verdicts=verdicts)


def _under_policies(verdict: Verdict, judgements: list[Judgement], asked: int) -> Verdict:
    """The verdict with the judgements of policies, of so many that were asked for."""
    rulings = [ruling for one in judgements for ruling in one.rulings] if not verdict.client.interface else []
    for ruling in rulings:
        if ruling.direction is Direction.INGRESS and ruling.is_here:
            ruling.exempt, ruling.refused_by = "the node reaches its own pods", []
    refused, more = sum(one.is_refused for one in judgements), asked - len(judgements) if judgements else 0
    verdict = msgspec.structs.replace(verdict, judgements=judgements, unjudged=more)
    if not refused:
        return verdict
    is_whole = refused == asked
    where = "" if is_whole else f" on the way to {refused} of {asked} real servers"
    masquerade = "" if is_whole else verdict.masquerade
    why = f"network policies drop it{where}"
    return msgspec.structs.replace(verdict, fate=Fate.DROPPED, why=why, masquerade=masquerade)


async def _clients(
    address: str | None, family: Family, settings: Settings, node: NodeFacts, applied: AppliedState, lookup: RouteLookup
) -> list[Client]:
    """The clients to examine: `address`, or one of each kind.

    The kinds are this node, a pod (if pods can be distinguished from others), and any other client.
    """
    if address is not None:
        way = await lookup.towards(address)
        if way is not None and way.is_local:
            return [Client("this node", address, "")]
        return [Client(address, address, way.interface if way is not None else SOME_INTERFACE)]
    clients = [Client("this node", applied.source or node.address_for(ELSEWHERE[family]) or ELSEWHERE[family], "")]
    pods = sorted(str(network[0]) for network in applied.sets.get(AddressSet.POD_NETWORK, ()))
    if pods:
        network = ip_network(pods[0])
        clients.append(Client(SOME_POD, str(network[min(2, network.num_addresses - 1)]), SOME_INTERFACE))
    elif settings.pod_bridge_interface or settings.pod_interface_name_prefix:
        interface = settings.pod_bridge_interface or settings.pod_interface_name_prefix
        clients.append(Client(SOME_LOCAL_POD, ELSEWHERE[family], interface))
    return [*clients, Client("elsewhere", ELSEWHERE[family], SOME_INTERFACE)]


def _differences(key: VirtualServerKey, planned: PlannedState, applied: AppliedState, firewall: Firewall) -> list[str]:
    """The deviations of the kernel's state from the plan for this address and port.

    Set entries count if they are for this address and port, or for the address alone.
    """
    desired = next((server for server in planned.virtual_servers if server.key == key), None)
    vip = next((vip for vip in planned.vips if vip.address == key.address), None)
    entries = {entry for entry in planned.entries if _is_about(key, entry)}
    read = (SetEntry(name, element) for name, elements in applied.sets.items() for element in elements)
    present = {entry for entry in read if _is_about(key, entry)}
    return [
        *vips.differences(vip, is_bound=key.address in applied.bound),
        *vips.delivery_differences(key.address, planned.direct_vips, is_steered=applied.is_steered),
        *source_routes.differences(vip, applied.source, is_local=applied.is_local),
        *virtual_servers.differences(key, desired, applied.server),
        *set_entries.differences(entries, present, lambda entry: firewall.set_name(entry.family, entry.set)),
    ]


def _is_about(key: VirtualServerKey, entry: SetEntry) -> bool:
    """Whether a packet to `key` may meet the entry, which is of no real server: those of HAIRPIN are."""
    element = tuple(entry.element)
    of_port = element[:3] == (key.address, int(key.protocol), key.port) and entry.set is not AddressSet.HAIRPIN
    return of_port or element == (key.address,)


async def read_applied_state(
    interface: str, key: VirtualServerKey, kernel: NodeKernel, firewall: Firewall, lookup: RouteLookup
) -> AppliedState:
    """Read the kernel's state. `interface` is the dummy interface's name. Raises KernelError."""
    route = await lookup.towards(key.address)
    is_here = route is not None and route.is_local
    return AppliedState(
        bound=await kernel.addresses.read(interface),
        sets=await firewall.read_sets(family_of(key.address)),
        server=(await kernel.ipvs.read()).get(key),
        route=route,
        is_steered=not is_here and key.address in await kernel.tunnels.steered(),
    )


_AGAINST = {Ending.REFUSED: Fate.REFUSED, Ending.DROPPED: Fate.DROPPED}


def judge(key: VirtualServerKey, client: Client, applied: AppliedState, rules: Rules) -> Verdict:
    """Trace the client's first packet."""
    packet = Packet(int(key.protocol), client.address, key.address, key.port, client.interface)
    fate, why = _fate(packet, applied, rules)
    comment, *how = why.partition(" (")  # of a refusal, how it is refused is in brackets
    why = "".join([IN_WORDS.get(comment, comment), *how])
    masquerade = _masquerade(packet, applied, rules) if fate is Fate.SERVED else ""
    return Verdict(client, fate, why, masquerade)


def _fate(packet: Packet, applied: AppliedState, rules: Rules) -> tuple[Fate, str]:
    if not applied.is_local:
        way = f"; packets leave by {applied.route.interface}" if applied.route is not None else ""
        return Fate.PASSED_ON, f"the address is not this node's, and no local route leads to it{way}"
    if applied.route is None and not packet.in_interface:
        return Fate.REFUSED, "this node has no route towards it, and its own calls need one"
    ending, why = rules.admission(packet, applied.sets, has_virtual_server=applied.server is not None)
    if ending in _AGAINST:
        return _AGAINST[ending], why
    if applied.serving:
        return Fate.SERVED, why or "no rule is against it"
    if applied.server is not None:
        return Fate.REFUSED, "its virtual server has no real server that takes new connections"
    return Fate.HOST, "no virtual server and no rule is for it"


def _masquerade(packet: Packet, applied: AppliedState, rules: Rules) -> str:
    """The source that the real servers see, listed for each of them if they do not all see the same."""
    if applied.is_tunnelled:
        return "the client's address is kept (packets go on as they are, in a tunnel)"
    serving = applied.serving
    said = list(map(_source, rules.sources(packet, serving, applied.sets)))
    if len(set(said)) == 1:
        return said[0]
    names = [host_port(*server) for server in serving]
    return "; ".join(f"to {name}: {text}" for name, text in zip(names, said, strict=True))


def _source(choice: SourceChoice) -> str:
    why = f" ({IN_WORDS.get(choice.why, choice.why)})" if choice.why else ""
    if choice.is_kept:
        return f"the client's address is kept{why}"
    return f"source {choice.address}{why}" if choice.address else f"masqueraded{why}"
