"""Why a packet goes where it goes: what was planned for its address and port, and what the kernel has."""

from collections.abc import Sequence
from ipaddress import ip_network

import msgspec

from kroute.comparison import set_entries, source_routes, vips, virtual_servers
from kroute.firewall.backend import firewall_of
from kroute.firewall.protocol import Firewall
from kroute.firewall.sets import Sets
from kroute.inspect.dry_run.rehearsal import NodeReader
from kroute.inspect.planned_state import Dossier
from kroute.inspect.verdicts import Client, Verdict, World, judge
from kroute.kernel.ipvs.client import VirtualServerState
from kroute.kernel.net.route_lookup import RouteLookup, Way
from kroute.model.addresses import Family, family_of
from kroute.model.node_facts import NodeFacts
from kroute.model.plan import AddressSet, SetEntry, VirtualServerKey
from kroute.planning.endpoint_reasons import FrontendView
from kroute.settings import Settings

ELSEWHERE = {Family.IPV4: "192.0.2.1", Family.IPV6: "2001:db8::1"}
"""Documentation addresses (RFC 5737, RFC 3849): nobody's in particular."""
SOME_INTERFACE = "(any)"
"""A name that no interface has, for clients whose way in is not known."""


class RealServerView(msgspec.Struct, frozen=True):
    """A real server as the kernel has it."""

    address: str
    port: int
    weight: int
    active: int
    inactive: int


class Explanation(msgspec.Struct):
    """All that is known about an address and port.

    `source` is `agent`, or `kernel` when no agent answered: then nothing is known of Services. `route` is None where no
    way leads to the address. `frontend` is the Service's, with its endpoints; `verdicts` are by what the kernel has.
    `differences` are sentences about what is not as it was planned.
    """

    key: VirtualServerKey
    source: str
    service: str
    frontend: FrontendView | None
    is_bound: bool
    route: Way | None
    scheduler: str
    real_servers: list[RealServerView]
    verdicts: list[Verdict]
    differences: list[str]
    problems: list[str]

    @property
    def is_known(self) -> bool:
        """Whether the address and port, or the address, is kroute's matter."""
        return bool(self.service or self.real_servers or self.is_bound or self.scheduler)


class NodeState(msgspec.Struct):
    """What the kernel has of an address and port."""

    bound: set[str]
    sets: Sets
    server: VirtualServerState | None
    route: Way | None

    @property
    def is_local(self) -> bool:
        """Whether packets to the address are for this node."""
        return self.route is not None and self.route.is_local

    @property
    def source(self) -> str | None:
        """The address from which this node's own processes call it."""
        return self.route.source if self.route is not None else None

    @property
    def world(self) -> World:
        """What the judgement depends on."""
        weights = {key: state.weight for key, state in self.server.real_servers.items()} if self.server else None
        return World(self.is_local, self.sets, weights)


async def explain(
    settings: Settings, key: VirtualServerKey, client: str | None, dossier: Dossier | None, facts: NodeFacts
) -> Explanation:
    """Explain what becomes of packets to `key`.

    `client` is the address that they come from, None for one of each kind. `dossier` is the agent's, if one answered;
    `facts` are known of the node without one. Raises KernelError when the kernel does not tell.
    """
    node = dossier.node if dossier is not None else facts
    family = family_of(key.address)
    async with NodeReader() as reader, RouteLookup() as lookup:
        firewall = firewall_of(settings, reader.ipset, reader.xtables)
        state = await read_state(settings, key, reader, firewall, lookup)
        rules = await firewall.rules(family, node)
        clients = await _clients(client, family, settings, node, state, lookup)
        differences = await firewall.rule_differences(family, node)
    if dossier is not None:
        differences = [*_differences(key, dossier, state, firewall), *differences]
    real_servers = state.server.real_servers if state.server else {}
    return Explanation(
        key=key,
        source="agent" if dossier is not None else "kernel",
        service=dossier.service if dossier is not None else "",
        frontend=_frontend(key, dossier),
        is_bound=key.address in state.bound,
        route=state.route,
        scheduler=state.server.options.scheduler if state.server else "",
        real_servers=[
            RealServerView(*server, it.weight, it.active, it.inactive) for server, it in sorted(real_servers.items())
        ],
        verdicts=[judge(key, one, state.world, rules) for one in clients],
        differences=differences,
        problems=dossier.problems if dossier is not None else [],
    )


async def read_state(
    settings: Settings, key: VirtualServerKey, reader: NodeReader, firewall: Firewall, lookup: RouteLookup
) -> NodeState:
    """Read what the kernel has of this address and port."""
    return NodeState(
        bound=await reader.addresses.read(settings.dummy_interface),
        sets=await firewall.read_sets(family_of(key.address)),
        server=(await reader.ipvs.read()).get(key),
        route=await lookup.towards(key.address),
    )


async def _clients(
    address: str | None, family: Family, settings: Settings, node: NodeFacts, state: NodeState, lookup: RouteLookup
) -> list[Client]:
    """The one client that was asked about, or one of each kind: this node, a pod if pods are told, and anybody else."""
    if address is not None:
        way = await lookup.towards(address)
        if way is not None and way.is_local:
            return [Client("this node", address, "")]
        return [Client(address, address, way.interface if way is not None else SOME_INTERFACE)]
    clients = [Client("this node", state.source or node.address_for(ELSEWHERE[family]) or ELSEWHERE[family], "")]
    pods = sorted(str(network[0]) for network in state.sets.get(AddressSet.POD_NETWORK, ()))
    if pods:
        network = ip_network(pods[0])
        clients.append(Client("a pod", str(network[min(2, network.num_addresses - 1)]), SOME_INTERFACE))
    elif settings.pod_bridge_interface or settings.pod_interface_name_prefix:
        interface = settings.pod_bridge_interface or settings.pod_interface_name_prefix
        clients.append(Client("a pod of this node", ELSEWHERE[family], interface))
    return [*clients, Client("elsewhere", ELSEWHERE[family], SOME_INTERFACE)]


def _frontend(key: VirtualServerKey, dossier: Dossier | None) -> FrontendView | None:
    if dossier is None or dossier.view is None:
        return None
    return next((it for it in dossier.view.frontends if it.key == key), None)


def _differences(key: VirtualServerKey, dossier: Dossier, state: NodeState, firewall: Firewall) -> list[str]:
    """What of this address and port is not in the kernel as it was planned, or is there besides.

    Of set entries those of the address and port count; those of others on the same VIP are not its matter.
    """
    desired = next((it for it in dossier.virtual_servers if it.key == key), None)
    vip = next((it for it in dossier.vips if it.address == key.address), None)
    entries = {SetEntry(AddressSet(it.set), it.element) for it in dossier.entries if _is_about(key, it.element)}
    present = {SetEntry(name, it) for name, elements in state.sets.items() for it in elements if _is_about(key, it)}
    return [
        *vips.differences(vip, is_bound=key.address in state.bound),
        *source_routes.differences(vip, state.source, is_local=state.is_local),
        *virtual_servers.differences(key, desired, state.server),
        *set_entries.differences(entries, present, lambda entry: firewall.set_name(entry.family, entry.set)),
    ]


def _is_about(key: VirtualServerKey, element: Sequence[str | int]) -> bool:
    return tuple(element[:3]) == (key.address, int(key.protocol), key.port) or tuple(element) == (key.address,)
