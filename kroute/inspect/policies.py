"""What the agent knows of network policies, as its socket answers: `kroute show policies`, and a part of `explain`."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from heapq import nlargest
from itertools import islice
from typing import TYPE_CHECKING, ClassVar, NamedTuple

import msgspec

from kroute.base.histogram import Histogram
from kroute.inspect.agent_socket import Answer
from kroute.model.document import Document, View, encode
from kroute.model.objects import ObjectKey
from kroute.model.plan import Protocol
from kroute.model.policy_plan import Direction
from kroute.planning.policies.verdicts import Judgement, first_of
from kroute.reconcile.batches import in_turns

if TYPE_CHECKING:
    from kroute.firewall.protocol import PolicyFirewall
    from kroute.inspect.refusals import Refusals
    from kroute.planning.policies.catalog import PolicyCatalog

QUESTIONS = GROUPS, JUDGE, POD, REFUSED = "policies", "judge", "pod", "refused"
"""The questions: `policies`, `judge PROTOCOL SOURCE ADDRESS PORT [ADDRESS PORT ...]`, `pod NAMESPACE/NAME`, and
`refused NUMBER` about the packets after the one with this number.

The answer is null if the agent enforces no network policies, if it knows no such pod, and if it logs no packets.
"""
MOST_LISTED = 1_000
"""Groups, addresses of pods, and problems that a list names."""
MOST_JUDGED = 100
"""Addresses and ports that one question is about."""


class Enforced(NamedTuple):
    """What plans network policies, what has them in the kernel, how long that takes for new pods, in seconds, and what
    they have refused, if that is logged."""

    catalog: "PolicyCatalog"
    firewall: "PolicyFirewall"
    lag: Histogram
    refusals: "Refusals | None" = None

    def isolated_pods(self) -> int:
        """How many pods of this node are isolated."""
        return len({self.catalog.pod_at(address) for address, groups in self.catalog.pods.items() if any(groups)})


class IsolatedPod(View):
    """An address of a pod of this node. `pod` is NAMESPACE/NAME; empty while a change is planned."""

    pod: str
    address: str


class PolicyGroup(View):
    """Pods of this node that the same policies isolate in one direction.

    `name` is that of the chain. `policies` are the first of `policies_total`. `refused_packets` counts since the chain
    was written; what is allowed is not counted.
    """

    name: str
    direction: Direction
    namespace: str
    policies: list[str]
    policies_total: int
    refused_packets: int
    pods: list[IsolatedPod]


class PolicyProblem(View):
    """What is wrong with a policy, NAMESPACE/NAME."""

    policy: str
    reason: str
    message: str


class PolicyGroupList(Document):
    """The pods of this node that network policies isolate, by their groups, and what is wrong with policies.

    `isolated_pods` and `policies_with_problems` count all, and up to MOST_LISTED groups, addresses and problems are
    listed.
    """

    kind: ClassVar[str] = "PolicyGroupList"

    items: list[PolicyGroup]
    isolated_pods: int
    policies_with_problems: int
    problems: list[PolicyProblem]

    def names(self) -> Iterator[str]:
        """The pods, as `kroute explain` takes them."""
        return (f"pod/{pod.pod}" for group in self.items for pod in group.pods)


class PodView(View):
    """A pod of any node."""

    pod: str
    node: str
    addresses: list[str]


class PolicyFigures(NamedTuple):
    """Counts, the packets that were refused by direction, namespace and names of policies, and the lag of new pods."""

    isolated_pods: int
    policies_with_problems: int
    refused: Sequence[tuple[tuple[str, str, str], int]]
    lag: Histogram


async def groups_of(enforced: Enforced) -> PolicyGroupList:
    """What the node has. Raises KernelError."""
    catalog, firewall, *_ = enforced
    refused, room, groups = await firewall.refused(), MOST_LISTED, []
    for key, addresses in islice(catalog.isolated(), MOST_LISTED):
        pods = [IsolatedPod(str(catalog.pod_at(address) or ""), address) for address in addresses[:room]]
        room -= len(pods)
        name, policies = firewall.group_name(key), first_of(policy.name for policy in key.policies)
        total = len(key.policies)
        groups.append(PolicyGroup(name, key.direction, key.namespace, policies, total, refused.get(name, 0), pods))
    problems = (
        PolicyProblem(str(policy), problem.reason, problem.message)
        for policy, found in sorted(catalog.problems.items())
        for problem in found
    )
    listed = list(islice(problems, MOST_LISTED))
    return PolicyGroupList(groups, enforced.isolated_pods(), len(catalog.problems), listed)


async def figures_of(enforced: Enforced, limit: int) -> PolicyFigures:
    """The figures, with refused packets of those `limit` labels that have most of them. Raises KernelError."""
    catalog, firewall, *_ = enforced
    refused = await firewall.refused()
    packets: dict[tuple[str, str, str], int] = {}
    for key, _ in catalog.isolated():
        labels = key.direction, key.namespace, ",".join(first_of(policy.name for policy in key.policies))
        packets[labels] = packets.get(labels, 0) + refused.get(firewall.group_name(key), 0)
    most = nlargest(limit, packets.items(), key=lambda each: each[1])
    return PolicyFigures(enforced.isolated_pods(), len(catalog.problems), sorted(most), enforced.lag)


def question_about(protocol: Protocol, source: str, ends: Iterable[tuple[str, int]]) -> str:
    """The question for connections to MOST_JUDGED of these addresses and ports."""
    words = [f"{address} {port}" for address, port in list(ends)[:MOST_JUDGED]]
    return " ".join([JUDGE, protocol.name, source, *words])


async def judgements(catalog: "PolicyCatalog", about: str) -> list[Judgement]:
    """The answer. Raises ValueError for a malformed question."""
    protocol, source, *words = about.split()
    if protocol not in Protocol.__members__ or len(words) > 2 * MOST_JUDGED:
        raise ValueError(f"{protocol} is not a protocol, or the question is too long")
    ends = zip(words[::2], map(int, words[1::2]), strict=True)
    return [await in_turns(catalog.judging(source, address, Protocol[protocol], port)) for address, port in ends]


def decode_judgements(answer: bytes) -> list[Judgement]:
    """The agent's answer; nothing if it enforces no policies."""
    return msgspec.json.decode(answer, type=list[Judgement] | None) or []


def decode_pod(answer: bytes) -> PodView | None:
    """The agent's answer; None if it knows no such pod."""
    return msgspec.json.decode(answer, type=PodView | None)


def pod_of(catalog: "PolicyCatalog", key: ObjectKey) -> PodView | None:
    """A pod that has addresses of its own."""
    facts = catalog.pod(key)
    if facts is None:
        return None
    return PodView(str(key), facts.node, [network.partition("/")[0] for network in facts.networks])


def decode_groups(answer: bytes) -> PolicyGroupList | None:
    """The agent's answer; None if it enforces no policies."""
    return msgspec.json.decode(answer, type=PolicyGroupList | None)


def answers_about(enforced: Enforced | None) -> Mapping[str, Answer]:
    """The agent's answers by question."""

    async def nothing(_about: str) -> bytes:
        return b"null"

    if enforced is None:
        return dict.fromkeys(QUESTIONS, nothing)

    async def groups(_about: str) -> bytes:
        return encode(await groups_of(enforced))

    async def judge(about: str) -> bytes:
        return msgspec.json.encode(await judgements(enforced.catalog, about))

    async def pod(about: str) -> bytes:
        return msgspec.json.encode(pod_of(enforced.catalog, ObjectKey.parse(about)))

    async def refused(about: str) -> bytes:
        return encode(enforced.refusals.after(int(about))) if enforced.refusals is not None else b"null"

    return {GROUPS: groups, JUDGE: judge, POD: pod, REFUSED: refused}
