"""Plan the routes to the pods of other nodes, and the networks of this node's own pods.

All that is needed is in the Nodes, which every agent watches: networks (`spec.podCIDRs`) and addresses. No node has to
tell another one anything.

A kubelet writes its Node's addresses, and may write `podCIDRs` while there are none, so it may lie. A network counts
only within `--cluster-cidr`, if no older Node has one that overlaps, and if nothing that this node needs is in it. What
is left out is one Problem, and costs the routes to that network alone.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network

import msgspec

from kroute.model.addresses import Family, family_of, is_subnet_of, network, networks, unicast
from kroute.model.node_facts import NodeFacts, first_of_each_family, written_addresses
from kroute.model.objects import Applied, Change, Deleted, Listed, Node, ObjectKey
from kroute.model.plan import Problem, quoted
from kroute.model.pod_routes import LEFT_OUT, NodeRoutes, PlannedRoute
from kroute.planning.index import Index
from kroute.settings import FULL, OFF, Settings

NODES_A_PIECE = 16
"""Nodes that are planned before other tasks run: a few milliseconds."""
MOST_NETWORKS = 4
"""Networks of one Node that are looked at; the API allows one of each family."""
LARGER = 4
"""By how many bits another Node's network may be shorter than this node's own: kube-controller-manager gives all the
same size, until it is told another one."""
MOST_SUBNETS = 256
"""Smaller networks in a network that are looked up one by one. If it has room for more, all of them are looked at."""

_Network = IPv4Network | IPv6Network


class _KnownNode(msgspec.Struct, frozen=True):
    """What the plan reads of a Node. `addresses` has one of each family at most. Older Nodes have a smaller `age`."""

    age: tuple[str, str]
    addresses: tuple[str, ...]
    pod_cidrs: tuple[str, ...]


class _Surroundings(msgspec.Struct, frozen=True):
    """What is this node's own. `taken` are networks that no pods of other nodes can be in, each with what it is.

    `shortest` has the least length of other Nodes' networks by IP version.
    """

    shortest: Mapping[int, int]
    subnets: tuple[_Network, ...]
    taken: tuple[tuple[_Network, str], ...]


class PodRouteCatalog:
    """Joins the Nodes. `own` are the networks of this node's pods, and `problems` what is wrong with each Node.

    Only one thread uses it. `is_ready`: all Nodes are known.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._cluster = networks(settings.cluster_cidrs)
        self._nodes: dict[str, _KnownNode] = {}
        self._claims = _Claims()
        self._marked: dict[str, None] = {}
        self._facts: NodeFacts | None = None
        self._surroundings = _Surroundings({}, (), ())
        self.is_ready = False
        self.own: tuple[str, ...] = ()
        self.problems: dict[str, tuple[Problem, ...]] = {}

    @property
    def has_marked(self) -> bool:
        """Whether there is something to plan."""
        return bool(self._marked) and self.is_ready and self._facts is not None

    def take(self, changes: Iterable[Change]) -> None:
        """Take what the watchers saw; only Nodes count."""
        for change in changes:
            match change:
                case Applied(Node() as node):
                    self._place(node.key.name, _known(node))
                case Deleted(kind, key) if kind is Node:
                    self._place(key.name, None)
                case Listed(kind) if kind is Node:
                    self.is_ready = True

    def set_node(self, facts: NodeFacts) -> None:
        """Plan for these facts of this node from now on."""
        if facts == self._facts:
            return
        self._facts = facts
        own, problems = self._own_networks(facts)
        self.own = tuple(map(str, own))
        self.problems[facts.name] = tuple(problems)
        self._surroundings = _surroundings(own, facts)
        self._marked.update(dict.fromkeys(self._nodes))

    def plan_marked(self, most: int = NODES_A_PIECE) -> list[NodeRoutes]:
        """Plan some Nodes of which something has changed. The plan of a Node that is gone is empty."""
        if not self.has_marked:
            return []
        names = [name for name, _ in zip(list(self._marked), range(most), strict=False)]
        for name in names:
            del self._marked[name]
        plans = [self._plan(name) for name in names if name != self._settings.node_name]
        for plan in plans:
            if plan.problems:
                self.problems[plan.key.name] = plan.problems
            else:
                self.problems.pop(plan.key.name, None)
        return plans

    def _place(self, name: str, known: _KnownNode | None) -> None:
        before = self._nodes.get(name)
        if before == known:
            return
        if known is None:
            del self._nodes[name]
        else:
            self._nodes[name] = known
        is_other = known is not None and name != self._settings.node_name
        claimed = list(filter(self._is_of_cluster, networks(known.pod_cidrs))) if known is not None and is_other else ()
        self._marked[name] = None
        # of equal claims the older Node's counts, so a Node's age matters, too
        for changed in {*self._claims.put(name, claimed), *self._claims.of(name)}:
            self._marked.update(dict.fromkeys(self._claims.overlapping(changed)))

    def _own_networks(self, facts: NodeFacts) -> tuple[list[_Network], list[Problem]]:
        """The networks of this node's pods, and what is wrong with its podCIDRs."""
        found: list[_Network] = []
        problems: list[Problem] = []
        for text in facts.pod_cidrs[:MOST_NETWORKS]:
            try:
                found.append(self._checked(text, facts))
            except ValueError as error:
                subject = f"podCIDR {quoted(text)} of Node {facts.name}"
                problems.append(Problem.about("InvalidPodCIDR", subject, f"{error}. Pods get no addresses of it."))
        found = [own for own in found if facts.address_for(str(own.network_address)) is not None]
        if not found and not problems:
            rest = "has no podCIDRs of its families: its pods get no addresses. kube-controller-manager gives out "
            rest += "podCIDRs with --allocate-node-cidrs and --cluster-cidr."
            problems.append(Problem.about("NoPodCIDR", f"Node {facts.name}", rest))
        return found, problems

    def _plan(self, name: str) -> NodeRoutes:
        key, known, facts = ObjectKey("", name), self._nodes.get(name), self._facts
        if known is None or facts is None:
            return NodeRoutes(key)
        routes: dict[str, PlannedRoute] = {}
        problems: list[Problem] = []
        for text in known.pod_cidrs:
            try:
                found = self._checked(text, facts)
                if (source := facts.address_for(str(found.network_address))) is None:
                    continue  # this node does not have the family
                self._refuse_taken(found, name)
                address = self._address(known, family_of(source), facts)
            except ValueError as error:
                rest = f"{error}. This node has no route to the pods there (docs/pod-network.md)."
                problems.append(Problem.about(LEFT_OUT, f"podCIDR {quoted(text)} of Node {name}", rest))
                continue
            parsed = ip_address(address)
            is_near = any(parsed in subnet for subnet in self._surroundings.subnets)
            is_tunnelled = self._settings.overlay == FULL or not (is_near or self._settings.overlay == OFF)
            if is_tunnelled or is_near:  # without tunnels, routers know the way to nodes in other subnets
                routes[str(found)] = PlannedRoute(address, source, is_tunnelled)
        return NodeRoutes(key, routes, tuple(problems))

    def _checked(self, text: str, facts: NodeFacts) -> _Network:
        """The network that a podCIDR names. Raises ValueError with what is wrong, as it goes on after the podCIDR."""
        try:
            found = network(text)
        except ValueError:
            raise ValueError("is not a network") from None
        if not self._is_of_cluster(found):
            raise ValueError(f"is not in --cluster-cidr ({', '.join(self._settings.cluster_cidrs)})")
        ranges = (*self._settings.service_cidrs, *facts.api.service_ranges)
        if any(map(found.overlaps, networks(ranges))):
            raise ValueError(f"overlaps with the Service range ({', '.join(ranges)})")
        return found

    def _is_of_cluster(self, found: _Network) -> bool:
        return any(is_subnet_of(found, of_cluster) for of_cluster in self._cluster)

    def _refuse_taken(self, found: _Network, name: str) -> None:
        shortest = self._surroundings.shortest.get(found.version, 0)
        if found.prefixlen < shortest:
            raise ValueError(f"is too large beside this node's own: at most a /{shortest} counts")
        for taken, what in self._surroundings.taken:
            if found.overlaps(taken):
                raise ValueError(f"overlaps with {taken}, {what}")
        oldest = min(self._claims.overlapping(found, shortest), key=lambda other: self._nodes[other].age)
        if oldest != name:
            raise ValueError(f"overlaps with that of Node {oldest}, which is older")

    def _address(self, known: _KnownNode, family: Family, facts: NodeFacts) -> str:
        """The address of a Node to which packets for its pods go. Raises ValueError as `_checked` does."""
        address = next((address for address in known.addresses if family_of(address) is family), None)
        if address is None:
            raise ValueError(f"cannot be reached: its Node has no {family} address")
        parsed, believed = ip_address(address), networks(self._settings.node_address_ranges)
        if address in facts.own:
            raise ValueError(f"cannot be reached: its Node claims {address}, which is this node's")
        if any(parsed in of_cluster for of_cluster in self._cluster):
            raise ValueError(f"cannot be reached: the address {address} of its Node is one of pods")
        if believed and not any(parsed in allowed for allowed in believed):
            raise ValueError(f"cannot be reached: the address {address} of its Node is not in --node-address-range")
        return address


class _Claims:
    """Which Nodes name a network, and which of all these networks overlap with one."""

    def __init__(self) -> None:
        self._by_node: Index[str, _Network] = Index()
        self._of_node: dict[str, tuple[_Network, ...]] = {}
        self._lengths: Counter[tuple[int, int]] = Counter()
        """How many times the networks of each version and length are named."""

    def of(self, name: str) -> tuple[_Network, ...]:
        """What a Node names."""
        return self._of_node.get(name, ())

    def put(self, name: str, networks: Iterable[_Network]) -> Iterable[_Network]:
        """Replace what a Node names; returns what it names now and did not before, or no longer."""
        before, after = self.of(name), tuple(dict.fromkeys(networks))
        self._of_node[name] = after
        self._lengths.subtract((each.version, each.prefixlen) for each in before)
        self._lengths.update((each.version, each.prefixlen) for each in after)
        if not after:
            del self._of_node[name]
        return self._by_node.put(name, after)

    def overlapping(self, found: _Network, shortest: int = 0) -> set[str]:
        """The Nodes that name a network which overlaps with this one, of this length at least."""
        overlaps = (other for other in self._overlaps(found) if other.prefixlen >= shortest)
        return {name for other in overlaps for name in self._by_node.owners(other)}

    def _overlaps(self, found: _Network) -> Iterator[_Network]:
        for (version, length), count in self._lengths.items():
            if version != found.version or not count:
                continue
            if length <= found.prefixlen:
                yield found.supernet(new_prefix=length)
            elif 1 << (length - found.prefixlen) <= MOST_SUBNETS:
                yield from found.subnets(new_prefix=length)
            else:
                named = (each for of_node in self._of_node.values() for each in of_node)
                yield from (each for each in named if each.prefixlen == length and is_subnet_of(each, found))


def _known(node: Node) -> _KnownNode:
    first = first_of_each_family(map(unicast, written_addresses(node)))
    age = (node.metadata.creation_timestamp or "", node.metadata.name)
    return _KnownNode(age, tuple(sorted(first.values())), (node.spec.pod_cidrs or ())[:MOST_NETWORKS])


def _surroundings(own: list[_Network], facts: NodeFacts) -> _Surroundings:
    """This node's own networks. Its own pods' bridge has an address in theirs, which makes that no subnet."""
    on_links = {(ip_network(text, strict=False), interface) for interface, text in facts.interfaces.on_links}
    subnets = sorted(
        ((subnet, interface) for subnet, interface in on_links if not any(map(subnet.overlaps, own))), key=str
    )
    needed = [
        (it, "an address that this node needs") for it in networks(facts.interfaces.dns_servers | facts.api.servers)
    ]
    taken = [
        *((it, "the network of this node's own pods") for it in own),
        *((subnet, f"the network of this node's interface {interface}") for subnet, interface in subnets),
        *needed,
    ]
    shortest: dict[int, int] = {it.version: max(0, it.prefixlen - LARGER) for it in own}
    return _Surroundings(shortest, tuple(subnet for subnet, _ in subnets if subnet.num_addresses > 1), tuple(taken))
