"""Which pods a selector names, kept as pods, Namespaces and selectors come and go.

Pods with equal labels, names of ports and namespace have one Identity: the replicas of a Deployment, most of all. A
selector is compared with identities, never with pods: once with each when it is new, and with a new identity.
"""

from collections.abc import Hashable, Mapping
from contextlib import suppress
from datetime import datetime
from sys import intern
from typing import NamedTuple, TypeVar, cast

import msgspec

from kroute.model.addresses import canonical
from kroute.model.objects import ObjectKey, Pod, PodCondition
from kroute.model.plan import Protocol
from kroute.model.policy_plan import LAST_PORT, GroupKey, PortName
from kroute.model.steps import Steps, parts
from kroute.planning.policies.rules import PeerSelector, holds

COMPLETED = frozenset({"Succeeded", "Failed"})
READY_TO_START = "PodReadyToStartContainers"
_decode_conditions = msgspec.json.Decoder(tuple[PodCondition, ...] | None).decode
MOST_ADDRESSES = 16
"""Addresses of a pod that are looked at. It has one of each family."""

K = TypeVar("K", bound=Hashable)
V = TypeVar("V", bound=Hashable)


class Constant(dict[K, V]):
    """A dict that never changes, so equal ones can be one."""

    __slots__ = ()

    def __hash__(self) -> int:  # type: ignore[override]  # a dict has none, since it may change
        return hash(frozenset(self.items()))


class PodKind(NamedTuple):
    """What pods of one Identity have in common. `ports` are numbers by name."""

    namespace: str
    labels: Constant[str, str]
    ports: Constant[PortName, int]


class PodFacts(msgspec.Struct, frozen=True, gc=False):
    """What counts of a pod with addresses (`10.244.1.5/32`). `node` is the name of its node."""

    kind: PodKind
    networks: tuple[str, ...]
    node: str
    is_local: bool
    """Whether the pod is on this node."""
    stays: bool
    created: str

    @property
    def rank(self) -> tuple[bool, bool, str]:
        """Of pods with one address that of the highest rank has it."""
        return self.stays, self.is_local, self.created


class Identity(msgspec.Struct, eq=False):
    """Pods of one kind, by their addresses, and the selections that they are in."""

    kind: PodKind
    networks: dict[str, None]
    selections: "set[Selection]"


class Selection(msgspec.Struct, eq=False):
    """What a selector selects. `size` is the number of addresses, `users` are the groups that need it."""

    selector: PeerSelector
    members: set[Identity]
    size: int
    users: set[GroupKey]


def facts_of(pod: Pod, node_name: str) -> PodFacts | None:
    """What counts of a pod; None: it has no address yet, has completed, or is on its node's network."""
    written = [one.ip for one in pod.status.pod_ips or ()] or [pod.status.pod_ip]
    addresses = [address for address in map(canonical, written[:MOST_ADDRESSES]) if address is not None]
    if not addresses or pod.status.phase in COMPLETED or pod.spec.host_network:
        return None
    meta = pod.metadata
    kind = PodKind(intern(meta.namespace), Constant(meta.labels or {}), _named_ports(pod))
    networks = tuple(dict.fromkeys(map(network_of, addresses)))
    node, created = pod.spec.node_name, meta.creation_timestamp or ""
    return PodFacts(kind, networks, intern(node), node == node_name, meta.deletion_timestamp is None, created)


def sharing(facts: PodFacts, values: dict[Hashable, Hashable]) -> PodFacts:
    """The same facts with those of `values` that equal theirs; it gets the others."""

    def one(value: V) -> V:
        return cast(V, values.setdefault(value, value))

    namespace, labels, ports = facts.kind
    kind = one(PodKind(namespace, one(labels), one(ports)))
    return msgspec.structs.replace(facts, kind=kind, created=one(facts.created))


def network_ready(pod: Pod) -> float | None:
    """When the pod's sandbox had its network, as Unix time by the kubelet's clock; None if that is not known.

    That is the condition PodReadyToStartContainers, which the kubelet has had by default since Kubernetes 1.29.
    """
    with suppress(msgspec.DecodeError, ArithmeticError, ValueError):  # the last two: beyond Unix time
        for one in _decode_conditions(pod.status.conditions) or ():
            if (one.type, one.status) == (READY_TO_START, "True") and one.last_transition_time is not None:
                return msgspec.convert(one.last_transition_time, datetime).timestamp()
    return None


def network_of(address: str) -> str:
    """The network of an address alone."""
    return f"{address}/{128 if ':' in address else 32}"


def _named_ports(pod: Pod) -> Constant[PortName, int]:
    """The numbers of named ports. Of two with one name the first counts, and those of sidecars come last."""
    sidecars = [container for container in pod.spec.init_containers or () if container.restart_policy == "Always"]
    found = Constant[PortName, int]()
    for container in (*(pod.spec.containers or ()), *sidecars):
        for port in container.ports or ():
            if port.name and port.protocol in Protocol.__members__ and 1 <= port.container_port <= LAST_PORT:
                found.setdefault(PortName(Protocol[port.protocol], port.name), port.container_port)
    return found


class Peers:
    """The pods that have addresses, and the selections that are in use."""

    def __init__(self) -> None:
        self.at: dict[str, Identity] = {}
        """The identity of each pod's address."""
        self.local: dict[str, Identity] = {}
        """The same for this node's pods alone."""
        self._touched: dict[Selection, set[str]] = {}
        self._moved: dict[str, Identity | None] = {}
        self._namespaces: dict[str, Mapping[str, str]] = {}
        self._pods: dict[ObjectKey, PodFacts] = {}
        self._pods_at: dict[str, tuple[ObjectKey, ...]] = {}
        """The pods with each address; the last one has it."""
        self._identities: dict[str, dict[PodKind, Identity]] = {}
        """By namespace."""
        self._selections: dict[str, dict[PeerSelector, Selection]] = {}
        """By the namespace of their selectors, which is empty if that is selected."""

    def facts(self, key: ObjectKey) -> PodFacts | None:
        """What is known of a pod."""
        return self._pods.get(key)

    def owner(self, network: str) -> ObjectKey | None:
        """The pod that has this address."""
        return self._pods_at[network][-1] if network in self._pods_at else None

    def labels_of(self, namespace: str) -> Mapping[str, str] | None:
        """The labels of a Namespace; None if it is not known."""
        return self._namespaces.get(namespace)

    def selects(self, selector: PeerSelector, identity: Identity) -> bool:
        """Whether the selector names the pods of this identity."""
        if selector.namespace and selector.namespace != identity.kind.namespace:
            return False
        if selector.namespaces is not None:
            labels = self._namespaces.get(identity.kind.namespace)
            if labels is None or not holds(selector.namespaces, labels):
                return False
        return holds(selector.pods, identity.kind.labels)

    def take_touched(self) -> tuple[dict[Selection, set[str]], dict[str, Identity | None]]:
        """The addresses that have entered or left a selection since the last time, or may have other ports there; and
        the identities that addresses had then, of those that have other ones.
        """
        touched, self._touched = self._touched, {}
        moved, self._moved = self._moved, {}
        return touched, moved

    def place_namespace(self, name: str, labels: Mapping[str, str] | None) -> Steps[None]:
        """Take the labels of a Namespace; None: it is gone."""
        self._namespaces.pop(name, None)
        if labels is not None:
            self._namespaces[name] = labels
        for identity in self._identities.get(name, {}).values():
            selections = self._selections.get("", {})
            for selection in selections.values():
                self._compare(selection, identity)
            yield len(selections)

    def place_pod(self, key: ObjectKey, facts: PodFacts | None) -> Steps[set[str]]:
        """Take a pod; None: it is gone. Returns the addresses that pods of this node have or had."""
        before = self._pods.pop(key, None)
        networks = {*(before.networks if before is not None else ()), *(facts.networks if facts is not None else ())}
        concerned = networks & self.local.keys()
        if facts is not None:
            known = self._identities.get(facts.kind.namespace, {}).get(facts.kind)
            if known is not None and known.kind is not facts.kind:
                facts = msgspec.structs.replace(facts, kind=known.kind)
            self._pods[key] = facts
        for network in networks:
            yield from self._settle(network, key)
        return concerned | (networks & self.local.keys())

    def select(self, selector: PeerSelector) -> Steps[Selection]:
        """What the selector selects, from now on."""
        of_scope = self._selections.setdefault(selector.namespace, {})
        found = of_scope.get(selector)
        if found is None:
            found = of_scope[selector] = Selection(selector, set(), 0, set())
            names = [selector.namespace] if selector.namespace else self._identities
            for part in parts(identity for name in names for identity in self._identities.get(name, {}).values()):
                for identity in part:
                    self._compare(found, identity)
                yield len(part)
        return found

    def release(self, selection: Selection) -> None:
        """Forget a selection, which nobody uses any more."""
        of_scope = self._selections[selection.selector.namespace]
        del of_scope[selection.selector]
        if not of_scope:
            del self._selections[selection.selector.namespace]
        for identity in selection.members:
            identity.selections.discard(selection)

    def _settle(self, network: str, changed: ObjectKey) -> Steps[None]:
        """Find whose address this is, after the change of a pod."""
        known = {*self._pods_at.pop(network, ()), changed} & self._pods.keys()
        ranked = sorted([(self._pods[key].rank, key) for key in known if network in self._pods[key].networks])
        before, after = self.at.pop(network, None), None
        self.local.pop(network, None)
        if ranked:
            self._pods_at[network] = tuple([key for _, key in ranked])
            owner = self._pods[ranked[-1][1]]
            after = self.at[network] = yield from self._identity(owner.kind)
            if owner.is_local:
                self.local[network] = after
        if before is after:
            return
        self._moved.setdefault(network, before)
        if after is not None:
            after.networks[network] = None
        if before is not None:
            del before.networks[network]
        for identity, count in ((after, 1), (before, -1)):
            if identity is None:
                continue
            for selection in identity.selections:
                selection.size += count
                self._touched.setdefault(selection, set()).add(network)
            if not identity.networks:
                self._forget(identity)

    def _identity(self, kind: PodKind) -> Steps[Identity]:
        of_namespace = self._identities.setdefault(kind.namespace, {})
        found = of_namespace.get(kind)
        if found is None:
            found = of_namespace[kind] = Identity(kind, {}, set())
            selections = [one for scope in (kind.namespace, "") for one in self._selections.get(scope, {}).values()]
            for selection in selections:
                self._compare(selection, found)
            yield len(selections)
        yield 6
        return found

    def _forget(self, identity: Identity) -> None:
        of_namespace = self._identities[identity.kind.namespace]
        del of_namespace[identity.kind]
        if not of_namespace:
            del self._identities[identity.kind.namespace]
        for selection in identity.selections:
            selection.members.discard(identity)

    def _compare(self, selection: Selection, identity: Identity) -> None:
        """Let the identity enter or leave the selection."""
        is_member = self.selects(selection.selector, identity)
        if (identity in selection.members) == is_member:
            return
        selection.members ^= {identity}
        identity.selections ^= {selection}
        selection.size += len(identity.networks) * (1 if is_member else -1)
        self._touched.setdefault(selection, set()).update(identity.networks)
