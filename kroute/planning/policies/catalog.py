"""Join network policies with pods and Namespaces, and plan again what a change affects.

`take` keeps the changes, and `plan_marked` plans them, so nothing changes while a plan is made in pieces. Nothing here
awaits, and only one thread uses it.
"""

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple, TypeAlias, assert_never

from kroute.model.kinds import POLICY_KINDS, InitialSync
from kroute.model.objects import (
    Applied,
    Change,
    ClusterNetworkPolicy,
    Deleted,
    KubernetesObject,
    Listed,
    Namespace,
    NetworkPolicy,
    ObjectKey,
    Pod,
)
from kroute.model.plan import Problem, Problems, Protocol
from kroute.model.policy_plan import (
    NO_GROUPS,
    Action,
    Direction,
    GroupChange,
    GroupKey,
    PodGroups,
    PolicyChange,
    PortName,
    PortRange,
    Tier,
)
from kroute.model.steps import Meter, Steps, parts
from kroute.planning.policies.cluster_rules import reading_cluster
from kroute.planning.policies.first_match import parts_of
from kroute.planning.policies.groups import Group, NamedRule
from kroute.planning.policies.peers import (
    Identity,
    Peers,
    PodFacts,
    Selection,
    facts_of,
    network_of,
    network_ready,
    sharing,
)
from kroute.planning.policies.rules import DEFAULTS, NO_LIMITS, TOO_LARGE, Limits, PeerSelector, PolicyRules, reading
from kroute.planning.policies.verdicts import Judgement, Ruling, first_of

NOTHING = GroupChange()
Policy: TypeAlias = NetworkPolicy | ClusterNetworkPolicy


class _Changes(NamedTuple):
    """The newest state of what has changed, of Namespaces the labels. None: it is gone.

    `ready` has when the network of each pod of this node was ready that was not known before. `shared` are the values
    that several pods have.
    """

    namespaces: dict[ObjectKey, Mapping[str, str] | None]
    pods: dict[ObjectKey, PodFacts | None]
    policies: dict[ObjectKey, Policy | None]
    ready: dict[ObjectKey, float]
    shared: dict[Hashable, Hashable]

    @classmethod
    def none(cls) -> "_Changes":
        return cls({}, {}, {}, {}, {})


class PolicyCatalog:
    """The network policies of the cluster, and what they mean for the pods of a node.

    What it says of the plan is complete when nothing is marked.
    """

    def __init__(self, node_name: str, limits: Limits = DEFAULTS, *, all_pods: bool = False) -> None:
        self.pods: dict[str, PodGroups] = {}
        """The groups of each address of this node's pods that a policy selects; with `all_pods` also NO_GROUPS."""
        self.problems: dict[ObjectKey, tuple[Problem, ...]] = {}
        """What is wrong with the policies of those namespaces that have pods on this node, and of the cluster."""
        self._node_name = node_name
        self._limits = limits
        self._all_pods = all_pods
        self._initial_sync = InitialSync(POLICY_KINDS)
        self._peers = Peers()
        self._policies: dict[str, dict[ObjectKey, PolicyRules]] = {}
        """By namespace; those of the cluster have none."""
        self._groups: dict[GroupKey, Group] = {}
        self._changes = _Changes.none()
        self._planning: Steps[PolicyChange] | None = None

    @property
    def ready(self) -> bool:
        """Whether the initial sync is complete, so that plans are complete."""
        return self._initial_sync.is_complete

    @property
    def has_marked(self) -> bool:
        """Whether there is something to plan."""
        return self._planning is not None or any(self._changes)

    def take(self, changes: Iterable[Change]) -> None:
        """Keep what the watchers saw. Plans nothing."""
        for change in changes:
            match change:
                case Listed(kind):
                    self._initial_sync.listed(kind)
                case Applied(item):
                    self._keep(type(item), item.key, item)
                case Deleted(kind, key):
                    self._keep(kind, key, None)
                case _:
                    assert_never(change)

    def plan_marked(self, work: int | None = None, *, differs: bool = True) -> PolicyChange | None:
        """Plan all changes that were taken before planning began. Returns the difference to the plan before.

        With `work`, planning stops after about that many units, of one or two microseconds, and the next call goes on.
        Without `differs`, the difference has no elements of groups: the caller compares all of them. Returns None until
        the plan is made, if it is as before, and before the initial sync is complete.
        """
        if not self.ready or not self.has_marked:
            return None
        if self._planning is None:
            self._planning, self._changes = self._plan(self._changes, differs=differs), _Changes.none()
        meter = Meter(work)
        try:
            while meter.spent < meter.limit:
                meter.spent += next(self._planning)
        except StopIteration as end:
            self._planning = None
            made: PolicyChange = end.value
            return made if made.groups or made.pods or made.gone else None
        return None

    def groups(self) -> Iterator[tuple[GroupKey, Iterator[tuple[str, PortRange]]]]:
        """All parts of groups, each with its networks and their ranges of ports."""
        return (part for group in self._groups.values() for part in group.elements())

    def addresses_of(self, key: GroupKey) -> list[str]:
        """The addresses of the pods of the group of which this is a part."""
        return [*self._groups[key._replace(part=0)].pods]

    def uid_of(self, key: ObjectKey) -> str:
        """The uid of a policy; empty if no policy of that name exists."""
        known = self._policies.get(key.namespace, {}).get(key)
        return known.uid if known is not None else ""

    def pod(self, key: ObjectKey) -> PodFacts | None:
        """What is known of a pod of any node; None if it has no address of its own."""
        return self._peers.facts(key)

    def pod_at(self, address: str) -> ObjectKey | None:
        """The pod that has this address."""
        return self._peers.owner(network_of(address))

    def isolated(self) -> Iterator[tuple[GroupKey, list[str]]]:
        """All groups in order, each with the addresses of its pods."""
        return ((key, sorted(group.pods)) for key, group in sorted(self._groups.items(), key=lambda item: item[0]))

    def judging(self, source: str, destination: str, protocol: Protocol | None, port: int) -> Steps[Judgement]:
        """What policies say of a connection. None: one of a protocol without ports."""
        found: list[Ruling] = []
        for direction, address, peer in (
            (Direction.EGRESS, source, destination),
            (Direction.INGRESS, destination, source),
        ):
            pod = self.pod_at(address)
            facts = self.pod(pod) if pod is not None else None
            if facts is None:
                continue
            of_peer = self._peers.at.get(network_of(peer))
            exempt = "a pod reaches itself" if source == destination else ""
            found.append(ruling := Ruling(direction, str(pod), facts.node, facts.is_local, [], [], exempt))
            for key in self.pods.get(address, NO_GROUPS).of(direction):
                rules = yield from self._groups[key].matching(network_of(peer), of_peer, protocol, port)
                if _decides(key, rules, ruling):
                    break
        return Judgement(source, destination, port, found)

    def _keep(self, kind: type[KubernetesObject], key: ObjectKey, item: KubernetesObject | None) -> None:
        """Keep the newest state of an object, if it counts and is another one than before."""
        changes, peers, may_differ = self._changes, self._peers, self._planning is not None
        if kind is Pod:
            pod = item if isinstance(item, Pod) else None
            facts = facts_of(pod, self._node_name) if pod is not None else None
            if may_differ or key in changes.pods or facts != peers.facts(key):
                changes.pods[key] = sharing(facts, changes.shared) if facts is not None else None
            is_new = facts is not None and facts.is_local and peers.facts(key) is None
            if pod is not None and is_new and (ready := network_ready(pod)) is not None:
                changes.ready[key] = ready
        elif kind is Namespace:
            labels = item.metadata.labels or {} if item is not None else None
            if may_differ or key in changes.namespaces or labels != peers.labels_of(key.name):
                changes.namespaces[key] = labels
        elif kind in {NetworkPolicy, ClusterNetworkPolicy}:
            changes.policies[key] = item if isinstance(item, Policy) else None

    def _plan(self, changes: _Changes, *, differs: bool) -> Steps[PolicyChange]:
        concerned: set[str] = set()
        for key, labels in changes.namespaces.items():
            yield from self._peers.place_namespace(key.name, labels)
            if "" in self._policies:
                local = self._peers.local.items()
                concerned.update([network for network, identity in local if identity.kind.namespace == key.name])
                yield len(local)
        for key, facts in changes.pods.items():
            concerned |= yield from self._peers.place_pod(key, facts)
        for key, policy in changes.policies.items():
            rules = (yield from _read(policy, self._limits)) if policy is not None else None
            concerned |= yield from self._place_policy(key, rules)
        pods = yield from self._assign(concerned)
        closed = {key: self._groups.pop(key) for key in [key for key, group in self._groups.items() if not group.pods]}
        stale = {key.namespace for key in changes.policies} | {key.namespace for key in closed}
        stale |= {key.namespace for key, group in self._groups.items() if group.is_new}
        for namespace in stale:
            yield from self._load(namespace)
        for former, group in closed.items():
            self._release(former, group.selections.values())
        groups = yield from self._update(stale, differs=differs)
        self.problems = yield from self._find_problems()
        ready = {key: since for key, since in changes.ready.items() if self._is_planned(changes.pods.get(key))}
        gone = tuple([part for key in closed for part in key.of_parts()])
        return PolicyChange(groups, pods, gone, ready)

    def _is_planned(self, facts: PodFacts | None) -> bool:
        return facts is not None and any(network.partition("/")[0] in self.pods for network in facts.networks)

    def _place_policy(self, key: ObjectKey, rules: PolicyRules | None) -> Steps[set[str]]:
        """Take a policy; None: it is gone. Returns the addresses that it selects or did."""
        of_namespace = self._policies.setdefault(key.namespace, {})
        versions = [of_namespace.pop(key, None), rules]
        if rules is not None:
            of_namespace[key] = rules
        if not of_namespace:
            del self._policies[key.namespace]
        yield 1 + len(self._peers.local)
        return {
            network
            for network, identity in self._peers.local.items()
            if key.namespace in {"", identity.kind.namespace}
            if any(policy is not None and self._selects(policy, identity) for policy in versions)
        }

    def _selects(self, policy: PolicyRules, identity: Identity) -> bool:
        return policy.selector is not None and self._peers.selects(policy.selector, identity)

    def _assign(self, networks: Iterable[str]) -> Steps[dict[str, PodGroups | None]]:
        """Find the groups of these addresses of pods. Returns those that have changed."""
        changed: dict[str, PodGroups | None] = {}
        known: dict[Identity, PodGroups | None] = {}
        for network in networks:
            after, identity = None, self._peers.local.get(network)
            if identity is not None:
                if identity not in known:
                    known[identity] = self._groups_of(identity)
                    yield sum([len(self._policies.get(scope, ())) for scope in (identity.kind.namespace, "")])
                after = known[identity]
            address, _, _ = network.partition("/")
            before = self.pods.pop(address, None)
            if after is not None:
                self.pods[address] = after
            if before == after:
                continue
            changed[address] = after
            for key in filter(None, before or ()):
                self._groups[key].pods.discard(address)
            for key in filter(None, after or ()):
                self._groups.setdefault(key, Group(key)).pods.add(address)
            yield 1
        return changed

    def _groups_of(self, identity: Identity) -> PodGroups | None:
        """The groups of pods of this identity; None: no policy selects them, and they need not be in the plan."""
        selecting: dict[Tier, list[tuple[int, ObjectKey]]] = {tier: [] for tier in Tier}
        for scope in {identity.kind.namespace, ""}:
            for key, policy in self._policies.get(scope, {}).items():
                if self._selects(policy, identity):
                    selecting[policy.tier].append((policy.priority, key))
        found = {
            (tier, direction): self._group_of(tier, direction, [key for _, key in sorted(policies)], identity)
            for tier, policies in selecting.items()
            for direction in Direction
        }
        last = [found[Tier.NETWORK_POLICY, each] or found[Tier.BASELINE, each] for each in Direction]
        groups = PodGroups(*last, *[found[Tier.ADMIN, each] for each in Direction])
        return groups if self._all_pods or any(groups) else None

    def _group_of(
        self, tier: Tier, direction: Direction, selecting: Iterable[ObjectKey], identity: Identity
    ) -> GroupKey | None:
        """The group of pods that these policies of a tier select; None: no policy is about the direction."""
        rules = {key: self._policies[key.namespace][key].rules.get(direction) for key in selecting}
        policies = tuple([key for key, of_policy in rules.items() if of_policy is not None])
        every = [rule for of_policy in rules.values() for rule in of_policy or ()]
        names: set[PortName] = set()
        if direction is Direction.INGRESS:
            names.update(*[rule.ports.names for rule in every])
        ports = tuple(sorted([(name, identity.kind.ports[name]) for name in names & identity.kind.ports.keys()]))
        if not policies or tier is Tier.NETWORK_POLICY:
            return GroupKey(direction, policies, ports) if policies else None
        return GroupKey(direction, policies, ports, tier, parts_of(every))

    def _load(self, namespace: str) -> Steps[None]:
        """Give the groups of a namespace the rules of their policies, and the selections that these need."""
        limits, known = self._limits_of(namespace), set[PeerSelector]()
        room = limits.of_namespace
        for key, group in sorted((key, group) for key, group in self._groups.items() if key.namespace == namespace):
            rules, refused, peers = self._rules_of(key), set[int](), dict[PeerSelector, None]()
            for number, (_, rule) in enumerate(rules):
                new = {*rule.peers} - known
                if rule.parts > room or len(known) + len(new) > limits.selectors:
                    refused.add(number)
                else:
                    room -= rule.parts
                    known |= new
                    peers |= dict.fromkeys(rule.peers)
            yield 1 + len(rules)
            if (rules, refused) == (group.rules, group.refused):
                continue
            before, selections = group.selections, {}
            for peer in peers:
                selections[peer] = yield from self._peers.select(peer)
                selections[peer].users.add(key)
            group.set_rules(rules, refused, selections)
            self._release(key, [selection for peer, selection in before.items() if peer not in selections])

    def _limits_of(self, namespace: str) -> Limits:
        return self._limits if namespace else NO_LIMITS

    def _release(self, key: GroupKey, selections: Iterable[Selection]) -> None:
        for selection in selections:
            selection.users.discard(key)
            if not selection.users:
                self._peers.release(selection)

    def _update(self, namespaces: Iterable[str], *, differs: bool) -> Steps[dict[GroupKey, GroupChange]]:
        """Decide again what is touched, where there is room; there may be more of it in these namespaces. Returns what
        has changed.
        """
        touched_networks, moved = self._peers.take_touched()
        for selection, networks in touched_networks.items():
            for key in selection.users:
                self._groups[key].touch(networks)
                yield len(networks)
        touched = {key.namespace for key, group in self._groups.items() if group.is_touched}
        room = {namespace: self._limits_of(namespace).of_namespace for namespace in touched.union(namespaces)}
        for key, group in sorted((key, group) for key, group in self._groups.items() if key.namespace in room):
            most = min(self._limits_of(key.namespace).elements, room[key.namespace])
            room[key.namespace] -= group.admit(most)
            yield 1 + len(group.rules)
        changed: dict[GroupKey, GroupChange] = {}
        for group in self._groups.values():
            if group.is_touched:
                of_parts = yield from group.update(self._peers.at, moved, differs=differs)
                changed |= {key: change for key, change in of_parts.items() if change != NOTHING}
        return changed

    def _find_problems(self) -> Steps[dict[ObjectKey, tuple[Problem, ...]]]:
        found: dict[ObjectKey, Problems] = {}
        namespaces = {identity.kind.namespace for identity in self._peers.local.values()}
        if namespaces:
            namespaces.add("")
        for namespace in namespaces:
            for key, policy in self._policies.get(namespace, {}).items():
                if policy.problems:
                    found[key] = Problems(policy.problems)
        for group in [group for group in self._groups.values() if group.left_out]:
            for part in parts(sorted(group.left_out)):
                for key, rule in map(group.rules.__getitem__, part):
                    found.setdefault(key, Problems()).append(self._no_room(rule.name))
                yield 2 * len(part)
        return {key: problems.all() for key, problems in found.items()}

    def _rules_of(self, key: GroupKey) -> list[NamedRule]:
        of_namespace = self._policies[key.namespace]
        return [(policy, rule) for policy in key.policies for rule in of_namespace[policy].rules[key.direction]]

    def _no_room(self, rule: str) -> Problem:
        elements, of_namespace, selectors = self._limits
        rest = (
            f"allows nothing: it exceeds what a node plans. Allowed: {elements} pods and networks times ports for a "
            f"pod, {of_namespace} for all pods of the namespace, and {selectors} different selectors."
        )
        return Problem.about(TOO_LARGE, rule, rest)


def _read(policy: Policy, limits: Limits) -> Steps[PolicyRules]:
    return reading(policy, limits) if isinstance(policy, NetworkPolicy) else reading_cluster(policy)


def _decides(key: GroupKey, rules: Sequence[NamedRule], ruling: Ruling) -> bool:
    """Whether the group decides about a connection, by these rules about it. The ruling says how."""
    names = first_of(f"{policy} {rule.name}" for policy, rule in rules)
    if key.tier is Tier.NETWORK_POLICY:
        ruling.isolated_by, ruling.allowed_by = first_of(map(str, key.policies)), names
        return True
    action = rules[0][1].action if rules else Action.PASS
    if action is Action.ACCEPT:
        ruling.allowed_by = names[:1]
    elif action is Action.DENY:
        ruling.refused_by = names[:1]
    return action is not Action.PASS
