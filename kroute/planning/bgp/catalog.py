"""Plan with whom this node's BGP speaker speaks: routers outside, and other nodes.

Routers come from the settings and from the node's own annotations, of which one with the same address counts. Nodes of
one AS are peers of each other in a full mesh (`--nodes-full-mesh`), or by route reflectors: a node with the annotation
`rr.client` is a peer of those with `rr.server` and the same cluster, and servers are peers of each other. Both nodes
decide by the same rule.
"""

from collections.abc import Callable, Collection, Iterable, Iterator
from hashlib import sha256
from ipaddress import IPv4Address, ip_network
from typing import Any

import msgspec

from kroute.model.addresses import Family, canonical, family_of, is_subnet_of, network
from kroute.model.node_facts import EXCLUSION_LABEL, REMOVAL_TAINT, NodeFacts, first_of_each_family, written_addresses
from kroute.model.objects import Applied, Change, Deleted, Listed, Node
from kroute.model.plan import Problem
from kroute.model.speaker import BGP_PORT, Bfd, Peer, SpeakerPlan
from kroute.planning.bgp.annotations import (
    ASN,
    CLIENT,
    COMMUNITIES,
    NAMES,
    REJECTED,
    SERVER,
    PeerDefaults,
    Reader,
    read_asn,
    read_cluster_id,
    read_community,
    read_network,
)
from kroute.settings import Settings

CORDONED = "it is cordoned"
WITHDRAWING_TAINTS = {
    "node.kubernetes.io/not-ready": "it is not ready",
    REMOVAL_TAINT: "it is about to be removed",
    "node.kubernetes.io/unschedulable": CORDONED,
}
"""What each says, the weightiest first. Of `node.kubernetes.io/unreachable` nothing follows: a control plane that is
cut off gives it to all nodes."""


class _KnownNode(msgspec.Struct, frozen=True):
    """What the plan reads of a Node. `addresses` has at most one of each family. `withdraws` says why it leaves its
    addresses to others; "" if it does not. Of other nodes only what the mesh needs is in `annotations`."""

    addresses: tuple[str, ...]
    annotations: tuple[tuple[str, str], ...]
    withdraws: str

    @property
    def reader(self) -> Reader:
        return Reader(dict(self.annotations))


class _Member(msgspec.Struct, frozen=True):
    """What a node is in the mesh. `server` and `client` are ids of clusters of route reflectors; "" for none."""

    asn: int
    server: str
    client: str

    def speaks_with(self, other: "_Member", *, is_full_mesh: bool) -> bool:
        """Whether both are peers; the answer is the same for both."""
        if self.asn != other.asn:
            return False
        if self.client or other.client:
            return self.client == other.server != "" or other.client == self.server != ""
        return is_full_mesh or bool(self.server and other.server)


class SpeakerCatalog:
    """Joins the Nodes. `read_yaml` gives the value of a text of YAML (ValueError). Only one thread uses it."""

    def __init__(self, settings: Settings, read_yaml: Callable[[str], Any]) -> None:
        self._settings = settings
        self._read_yaml = read_yaml
        self._nodes: dict[str, _KnownNode] = {}
        self.is_ready = False
        """Whether all Nodes are known."""
        self.has_changed = True
        """Whether another plan may be due. The caller resets it."""

    def take(self, changes: Iterable[Change]) -> None:
        """Take what the watchers saw; only Nodes count."""
        for change in changes:
            match change:
                case Applied(Node() as node):
                    self._place(node.key.name, self._known(node))
                case Deleted(kind, key) if kind is Node:
                    self._place(key.name, None)
                case Listed(kind) if kind is Node:
                    self.is_ready = self.has_changed = True

    def plan(self, node: NodeFacts) -> tuple[SpeakerPlan, list[Problem]]:
        """The plan for this node, and what is wrong with its annotations and with those of its peers."""
        settings = self._settings
        own = self._nodes.get(node.name, _KnownNode((), (), ""))
        reader = own.reader
        member = self._member(reader)
        addresses = {family_of(address): address for address in (node.ipv4, node.ipv6) if address is not None}
        routers = {peer.address: peer for peer in self._routers(reader, addresses)}
        nodes = [] if not addresses else [*self._mesh(node, member, addresses)]
        staying = self._staying(node.name) if own.withdraws else frozenset[str]()
        plan = SpeakerPlan(
            asn=member.asn,
            router_id=settings.router_id or node.ipv4 or _hashed(node.name),
            families=tuple(sorted(addresses)),
            port=settings.bgp_port_number,
            peers=tuple(sorted([*routers.values(), *nodes], key=lambda peer: (peer.is_node, peer.address))),
            hold_time=int(settings.bgp_holdtime),
            restart_time=int(settings.bgp_graceful_restart_time),
            is_next_hop_self=settings.override_nexthop,
            cluster_id=member.server,
            prepended=reader.prepended(),
            communities=tuple(sorted(reader.all(COMMUNITIES, read_community))),
            rejected=tuple(sorted(reader.all(REJECTED, read_network))),
            withdraws=own.withdraws if staying else "",  # if all withdrew, nobody would serve
            staying=staying if own.withdraws == CORDONED else None,
            pod_networks=tuple(sorted(self._pod_networks(node, addresses))),
            pod_ranges=settings.cluster_cidrs if settings.advertise_pod_cidr else (),
        )
        return plan, reader.problems

    def _pod_networks(self, node: NodeFacts, families: Collection[Family]) -> Iterator[str]:
        """The networks of this node's pods that routers may learn: a kubelet may write others."""
        ranges = [ip_network(cidr) for cidr in self._settings.cluster_cidrs]
        for cidr in node.pod_cidrs if self._settings.advertise_pod_cidr else ():
            try:
                found = network(cidr)
            except ValueError:
                continue  # the node's plan says so
            if family_of(str(found)) in families and any(is_subnet_of(found, pods) for pods in ranges):
                yield str(found)

    def _place(self, name: str, known: _KnownNode | None) -> None:
        if self._nodes.get(name) == known:
            return
        self.has_changed = True
        if known is None:
            del self._nodes[name]
        else:
            self._nodes[name] = known

    def _known(self, node: Node) -> _KnownNode:
        first = first_of_each_family(map(canonical, written_addresses(node)))
        annotations = (node.metadata.annotations or {}).items()
        ours = tuple(sorted((name, value) for name, value in annotations if name in NAMES))
        return _KnownNode(tuple(sorted(first.values())), ours, _why_it_withdraws(node))

    def _member(self, reader: Reader) -> _Member:
        asn = reader.value(ASN, read_asn, self._settings.cluster_asn)
        server = reader.value(SERVER, read_cluster_id, "")
        return _Member(asn, server, "" if server else reader.value(CLIENT, read_cluster_id, ""))

    def _routers(self, reader: Reader, addresses: dict[Family, str]) -> Iterator[Peer]:
        settings = self._settings
        interval = int(settings.bfd_interval * 1000)
        usual = Bfd(interval, interval, settings.bfd_multiplier)
        bfd = usual if settings.bfd else None
        ttl, has_security = settings.peer_router_multihop_ttl, settings.peer_ttl_security
        ports = settings.peer_router_ports or (BGP_PORT,) * len(settings.peer_router_ips)
        for address, asn, port in zip(settings.peer_router_ips, settings.peer_router_asns, ports, strict=True):
            if (local := addresses.get(family_of(address))) is not None:
                yield Peer(
                    address=address,
                    asn=asn,
                    local=local,
                    port=port or BGP_PORT,
                    ttl=ttl,
                    has_ttl_security=has_security,
                    bfd=bfd,
                )
        defaults = PeerDefaults(lambda address: addresses.get(family_of(address)), ttl, has_security, bfd, usual)
        yield from reader.peers(defaults, self._read_yaml)

    def _mesh(self, node: NodeFacts, own: _Member, addresses: dict[Family, str]) -> Iterator[Peer]:
        """The other nodes with which this one speaks: over IPv4 where both have it."""
        for name, other in self._nodes.items():
            if name == node.name:
                continue
            member = self._member(other.reader)
            if not own.speaks_with(member, is_full_mesh=self._settings.nodes_full_mesh):
                continue
            shared = {family_of(address): address for address in other.addresses if family_of(address) in addresses}
            if shared:
                family = min(shared)
                yield Peer(
                    address=shared[family],
                    asn=member.asn,
                    local=addresses[family],
                    port=self._settings.bgp_port_number,
                    is_node=True,
                    is_client=bool(own.server and member.client),
                )

    def _staying(self, own: str) -> frozenset[str]:
        """The other nodes that do not withdraw."""
        return frozenset([name for name, it in self._nodes.items() if name != own and not it.withdraws])


def _why_it_withdraws(node: Node) -> str:
    if node.metadata.deletion_timestamp is not None:
        return "its Node object is being deleted"
    if EXCLUSION_LABEL in (node.metadata.labels or {}):
        return f"it has the label {EXCLUSION_LABEL}"
    taints = {taint.key for taint in node.spec.taints or ()}
    return next((why for key, why in WITHDRAWING_TAINTS.items() if key in taints), "")


def _hashed(name: str) -> str:
    """A router id for a node without IPv4: any number but 0, the same after a restart."""
    return str(IPv4Address(int.from_bytes(sha256(name.encode()).digest()[:4]) or 1))
