"""What NetworkPolicies mean on this node: which addresses of its pods are isolated, and what is allowed nevertheless.

An address that is not in the plan is not isolated. One that is has a group for each direction in which it is isolated;
a packet passes if the group of its source, for egress, and the group of its destination, for ingress, both allow it.
Whatever the groups say, a pod reaches itself, and the pod's own node reaches the pod. Pods that the same policies
isolate share a group.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import NamedTuple

import msgspec

from kroute.model.objects import ObjectKey
from kroute.model.plan import Protocol


class Direction(StrEnum):
    """The direction of a connection, as seen by the pod that is isolated; spelled as in `policyTypes`."""

    INGRESS = "Ingress"
    EGRESS = "Egress"


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


class GroupKey(NamedTuple):
    """The name of a group, which is the same after a restart.

    `policies` are those that isolate its pods in this direction, sorted. For ingress, `ports` are the numbers that its
    pods have for the port names in these policies, sorted.
    """

    direction: Direction
    policies: tuple[ObjectKey, ...]
    ports: tuple[tuple[PortName, int], ...] = ()

    @property
    def namespace(self) -> str:
        """The namespace of its pods and policies."""
        return self.policies[0].namespace

    @property
    def description(self) -> str:
        """What isolates its pods, for people."""
        return f"isolated by {self.namespace}: {', '.join([policy.name for policy in self.policies])}"


class PodGroups(NamedTuple):
    """The groups of an address of a pod. None: the pod is not isolated in that direction."""

    ingress: GroupKey | None
    egress: GroupKey | None

    def of(self, direction: Direction) -> GroupKey | None:
        """The group of one direction."""
        return self.ingress if direction is Direction.INGRESS else self.egress


NO_GROUPS = PodGroups(None, None)
"""Those of an address that is not isolated."""


class PortElement(NamedTuple):
    """A network of peers, and ports of one protocol that it is allowed."""

    network: str
    protocol: Protocol | None
    first: int
    last: int


class GroupChange(msgspec.Struct, frozen=True):
    """What a group allows now and did not before, and what no longer. A new group allowed nothing before.

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
    """The difference between two plans: groups with their changes, addresses of pods with their groups now, and the
    groups that no pod has any more.

    The group of an address is complete once the changes of `groups` are made. None: no policy isolates the address.
    """

    groups: Mapping[GroupKey, GroupChange]
    pods: Mapping[str, PodGroups | None]
    gone: tuple[GroupKey, ...] = ()
