"""Compare the answers of the nodes of one cluster, and say of each node what it has differently. Pure.

Compared is what must be the same: the version of kroute, the backend of the firewall, the problems of Services, and the
virtual servers and real servers of `inspect.shared_state`, which leaves out what each node has for itself. What most
nodes have counts as right. If two values are equally frequent, every node is marked with its own.
"""

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import TypeVar

from kroute.cli.fleet.answers import NodeStatus
from kroute.inspect.shared_state import SharedServer, SharedState
from kroute.inspect.status import State, Status
from kroute.model.addresses import host_port

MOST_NAMED = 5
"""How many objects one sentence names."""

T = TypeVar("T", bound=Hashable)


def usual(values: Iterable[T]) -> T | None:
    """The most frequent value; None without any, and if two are equally frequent."""
    ranked = Counter(values).most_common(2)
    if not ranked or (len(ranked) > 1 and ranked[0][1] == ranked[1][1]):
        return None
    return ranked[0][0]


def differences(nodes: Sequence[NodeStatus]) -> dict[str, list[str]]:
    """For each node that differs in version, backend or problems: sentences about it."""
    answered = {it.node: it.status for it in nodes if it.status is not None and it.status.state is not State.NO_AGENT}
    if len(answered) < 2:
        return {}
    found: dict[str, list[str]] = {}
    rows: tuple[tuple[str, Callable[[Status], str]], ...] = (
        ("version", lambda status: status.version),
        ("firewall", lambda status: status.firewall),
    )
    for what, of in rows:
        most = usual(map(of, answered.values()))
        for node, status in answered.items():
            if (has := of(status)) != most:
                found.setdefault(node, []).append(f"{what} {has}" + (f", others have {most}" if most else ""))
    for node, sentences in _problems(answered).items():
        found.setdefault(node, []).extend(sentences)
    return found


def _problems(answered: Mapping[str, Status]) -> dict[str, list[str]]:
    """The problems of Services that less than half of the nodes have."""
    having: dict[tuple[str, str], list[str]] = {}
    for node, status in answered.items():
        for each in dict.fromkeys((it.service, it.reason) for it in status.problems if it.service):
            having.setdefault(each, []).append(node)
    found: dict[str, list[str]] = {}
    for (service, reason), nodes in having.items():
        for node in nodes if 2 * len(nodes) < len(answered) else ():
            found.setdefault(node, []).append(f"problem {reason} of {service}, which most others do not have")
    return {node: _shortened(sentences) for node, sentences in found.items()}


def to_compare(nodes: Sequence[NodeStatus]) -> tuple[str | None, list[str]]:
    """A node that plans what most do, and the nodes that plan something else.

    Without a majority the node that has the most Services is the first one, and all others differ from it.
    """
    digests = {it.node: it.status.shared for it in nodes if it.status is not None and it.status.shared}
    if len(set(digests.values())) < 2:
        return None, []
    services = {it.node: it.status.served.services for it in nodes if it.status is not None}
    most = usual(digests.values())
    right = [node for node, digest in digests.items() if digest == most] or [max(digests, key=lambda it: services[it])]
    return right[0], [node for node, digest in digests.items() if digest != digests[right[0]]]


def server_differences(mine: SharedState, others: SharedState) -> list[str]:
    """What a node plans in another way than the others, a sentence for each virtual server."""
    here, there = (_by_key(state) for state in (mine, others))
    found = [f"lacks the virtual server {_name(there[key])}" for key in there.keys() - here.keys()]
    found += [f"has the virtual server {_name(here[key])}, others have not" for key in here.keys() - there.keys()]
    for key in here.keys() & there.keys():
        found += _one_difference(here[key], there[key])
    return sorted(found)


def _one_difference(here: SharedServer, there: SharedServer) -> list[str]:
    found = []
    if here.service != there.service:
        found.append(f"{_name(here)} is of {here.service}, elsewhere of {there.service}")
    if here.options != there.options:
        found.append(f"{_name(here)} has the options {here.options}, elsewhere {there.options}")
    if here.real_servers is not None and there.real_servers is not None:
        mine, others = set(here.real_servers), set(there.real_servers)
        for word, some in (("lacks", others - mine), ("has besides", mine - others)):
            if some:
                found.append(f"{_name(here)} {word} the real servers {', '.join(_shortened(sorted(some)))}")
    return found


def lasting(first: Mapping[str, Sequence[str]], second: Mapping[str, Sequence[str]]) -> dict[str, list[str]]:
    """The sentences of each node that both looks have: a change that was on its way is in one of them only."""
    kept = {node: [it for it in second.get(node, ()) if it in first[node]] for node in first}
    return {node: _shortened(sentences) for node, sentences in kept.items() if sentences}


def _by_key(state: SharedState) -> dict[tuple[str, str, int], SharedServer]:
    return {(it.protocol, it.address, it.port): it for it in state.virtual_servers}


def _name(server: SharedServer) -> str:
    return f"{server.protocol} {host_port(server.address, server.port)} ({server.service})"


def _shortened(sentences: Sequence[str]) -> list[str]:
    more = len(sentences) - MOST_NAMED
    return [*sentences[:MOST_NAMED], f"and {more} more"] if more > 0 else list(sentences)
