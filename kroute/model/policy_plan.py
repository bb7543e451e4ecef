"""What network policies mean on this node: the groups of its pods' addresses, and what these do with packets.

An address that is not in the plan is open, unless its network is closed (`Extra`): then the plan has those of all pods
of the node. One that is in the plan has up to two groups for each direction, which are asked in order: one of
ClusterNetworkPolicies of the tier Admin; then one of the NetworkPolicies that isolate the pod or, where none does, one
of ClusterNetworkPolicies of the tier Baseline. A group accepts or drops a packet, or leaves the decision to the next
one; what the last one leaves is accepted. A packet passes if the groups of its source, for egress, and
those of its destination, for ingress, both accept it.

Whatever the groups say, the pod's own node reaches the pod. Whatever NetworkPolicies say, a pod reaches itself. Pods
that the same policies of a tier select share a group.
"""

from collections.abc import Collection, Mapping
from enum import StrEnum
from typing import NamedTuple, Self

import msgspec

from kroute.model.objects import ObjectKey
from kroute.model.plan import Protocol


class Direction(StrEnum):
    """The direction of a connection, as seen by the pod that is isolated; spelled as in `policyTypes`."""

    INGRESS = "Ingress"
    EGRESS = "Egress"


class Tier(StrEnum):
    """The tiers, in the order in which they are asked; Admin and Baseline are spelled as in `tier`."""

    ADMIN = "Admin"
    NETWORK_POLICY = "NetworkPolicy"
    BASELINE = "Baseline"


class Action(StrEnum):
    """What becomes of a packet, spelled as in `action`. Pass: the next group decides."""

    ACCEPT = "Accept"
    DENY = "Deny"
    PASS = "Pass"  # noqa: S105  no password


class Part(NamedTuple):
    """A part of a group: what it does with packets of the peers that have an element in this part.

    Parts `of_pods` are asked before all others. Of the parts of one kind, a packet may match elements with single ports
    or ranges in one, and elements with all ports in one: the former count.
    """

    of_pods: bool
    action: Action


ALLOWED = (Part(of_pods=False, action=Action.ACCEPT),)
"""The parts of a group of NetworkPolicies: peers are allowed, whether they are pods or networks."""


class PortName(NamedTuple):
    """The name of a port of a pod. Ports of two protocols may share a name."""

    protocol: Protocol
    name: str


class PortRange(NamedTuple):
    """Ports of a protocol, both ends included. The protocol is None in ANY alone."""

    protocol: Protocol | None
    first: int
    last: int


LAST_PORT = 65535
ANY = PortRange(None, 0, LAST_PORT)
"""All ports of all protocols, those without ports included."""


def kind_of(policy: ObjectKey) -> str:
    """The kind of a policy of this name: those of the cluster have no namespace."""
    return "NetworkPolicy" if policy.namespace else "ClusterNetworkPolicy"


class GroupKey(NamedTuple):
    """The name of a group, or of a part of it, which is the same after a restart.

    `policies` are those that select its pods in this direction: NetworkPolicies, sorted, or ClusterNetworkPolicies in
    the order in which they count. For ingress, `ports` are the numbers that its pods have for the port names in these
    policies, sorted. `parts` are those of the group. `part` is the number of one: the group itself is named as the
    first.
    """

    direction: Direction
    policies: tuple[ObjectKey, ...]
    ports: tuple[tuple[PortName, int], ...] = ()
    tier: Tier = Tier.NETWORK_POLICY
    parts: tuple[Part, ...] = ALLOWED
    part: int = 0

    @property
    def namespace(self) -> str:
        """The namespace of its pods and policies; empty for ClusterNetworkPolicies."""
        return self.policies[0].namespace

    @property
    def description(self) -> str:
        """What drops packets there, for people."""
        names = ", ".join([policy.name for policy in self.policies])
        if self.tier is Tier.NETWORK_POLICY:
            return f"isolated by {self.namespace}: {names}"
        return f"denied by the tier {self.tier}: {names}"

    @property
    def identity(self) -> tuple[object, ...]:
        """What tells the group from others: of NetworkPolicies only what they can differ in."""
        return self[:3] if self.tier is Tier.NETWORK_POLICY else self[:5]

    def of_parts(self) -> list[Self]:
        """The names of its parts."""
        return [self._replace(part=number) for number in range(len(self.parts))]


class PodGroups(NamedTuple):
    """The groups of an address of a pod by direction; None: there is none.

    Those of the tier Admin are asked first, if there are any. The others are of the tier NetworkPolicy or Baseline.
    """

    ingress: GroupKey | None
    egress: GroupKey | None
    admin_ingress: GroupKey | None = None
    admin_egress: GroupKey | None = None

    @property
    def is_of_cluster(self) -> bool:
        """Whether a ClusterNetworkPolicy selects the pod."""
        return any(key.tier is not Tier.NETWORK_POLICY for key in self if key is not None)

    def of(self, direction: Direction) -> list[GroupKey]:
        """The groups of one direction, in the order in which they are asked."""
        is_ingress = direction is Direction.INGRESS
        both = (self.admin_ingress, self.ingress) if is_ingress else (self.admin_egress, self.egress)
        return [key for key in both if key is not None]


NO_GROUPS = PodGroups(None, None)
"""Those of an address that no policy selects."""


class Answer(NamedTuple):
    """TCP packets from an address and port to the address of a client."""

    address: str
    port: int
    client: str


class Extra(NamedTuple):
    """What is dropped whatever the groups say, if it begins a connection in the eyes of the connection tracker.

    `closed` are networks: what their addresses send and get that are not in the plan, apart from what always passes.
    `cut` are answers of connections that were cut, which would go on otherwise; None: none is ever cut.
    """

    closed: Collection[str] = ()
    cut: Collection[Answer] | None = None


NO_EXTRA = Extra()


class PortElement(NamedTuple):
    """A network of peers, and ports of one protocol."""

    network: str
    protocol: Protocol | None
    first: int
    last: int


class GroupChange(msgspec.Struct, frozen=True):
    """The elements that a part of a group has now and had not before, and those that it has no longer. One that is new
    had none before.

    Peers are networks of both families with their length, a pod's is its address (`10.244.1.5/32`); they are sources
    for ingress and destinations for egress. `networks` have all ports of all protocols, and none of them is within
    another. Of two `ports` no packet matches both, so they may stand in one set of the kernel, although their networks
    may be within each other. To keep it so, what was removed has to leave the set before what was added enters it.
    """

    is_new: bool = False
    networks_added: tuple[str, ...] = ()
    ports_added: tuple[PortElement, ...] = ()
    networks_removed: tuple[str, ...] = ()
    ports_removed: tuple[PortElement, ...] = ()

    @property
    def added(self) -> list[PortElement]:
        """All that was added, of networks with ANY."""
        return [*(PortElement(network, *ANY) for network in self.networks_added), *self.ports_added]

    @property
    def removed(self) -> list[PortElement]:
        """All that was removed, of networks with ANY."""
        return [*(PortElement(network, *ANY) for network in self.networks_removed), *self.ports_removed]


class PolicyChange(msgspec.Struct, frozen=True):
    """The difference between two plans: parts of groups with their changes, addresses of pods with their groups now,
    and the parts of groups that no pod has any more.

    The groups of an address are complete once the changes of `groups` are made. All parts of a new group are there,
    in order. None: no policy selects the address. `ready` are new pods among those of `pods`, with the Unix time when
    their network was ready, where that is known.
    """

    groups: Mapping[GroupKey, GroupChange]
    pods: Mapping[str, PodGroups | None]
    gone: tuple[GroupKey, ...] = ()
    ready: Mapping[ObjectKey, float] = msgspec.field(default_factory=dict)
