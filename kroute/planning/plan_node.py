"""Plan the node itself: what the rules need to know that depends on no Service."""

from collections.abc import Iterable, Iterator

from kroute.base.schedulers import BY_SHARE, IGNORE_WEIGHTS
from kroute.model.addresses import network
from kroute.model.node_facts import NodeFacts
from kroute.model.objects import Node
from kroute.model.plan import AddressSet, NodePlan, Problem, SetEntry, quoted
from kroute.planning.weight_facts import weight_of
from kroute.settings import Settings


def plan_node(settings: Settings, node: NodeFacts, known: Iterable[Problem] = ()) -> NodePlan:
    """Plan the node itself. `known` is what is wrong with its Node object."""
    problems = [*known]
    entries = {SetEntry(AddressSet.POD_NETWORK, (each,)) for each in _pod_networks(settings, node, problems)}
    whole = node.of_pod_network if settings.pod_network else None
    return NodePlan(node.without_needs, set_entries=tuple(sorted(entries)), problems=tuple(problems), whole=whole)


def node_problems(node: Node | None, settings: Settings) -> list[Problem]:
    """What is wrong with the Node object of an agent's own node."""
    if node is None:
        rest = (
            "does not exist yet: its zone and podCIDRs are not known, and its addresses are those of the default "
            "routes' interfaces. All else is served. Check --node-name if the Node has another name."
        )
        return [Problem.about("NodeNotFound", f"Node {settings.node_name}", rest)]
    weight, refused = weight_of(node.metadata)
    if refused:
        message = f"{refused}: no weight; the real servers of Node {node.key.name} weigh 1. Allowed: 0 to 65535."
        return [Problem("InvalidWeight", refused, message)]
    if weight > 1 and settings.scheduler in IGNORE_WEIGHTS:
        rest = (
            f"has no effect on Services with the scheduler {settings.scheduler}, which is --scheduler's. "
            f"Take one that divides connections by weight: {', '.join(BY_SHARE)}."
        )
        return [Problem.about("SchedulerIgnoresWeights", f"weight {weight} of Node {node.key.name}", rest)]
    return []


def _pod_networks(settings: Settings, node: NodeFacts, problems: list[Problem]) -> Iterator[str]:
    """The networks whose addresses count as pods.

    If ClusterCIDR is set without cluster networks, those of the Node are used: they tell this node's pods from outside
    clients, though not the pods of other nodes.
    """
    if settings.detect_local_mode not in {"ClusterCIDR", "NodeCIDR"}:
        return
    given = settings.cluster_cidrs if settings.detect_local_mode == "ClusterCIDR" else ()
    for cidr in given or node.pod_cidrs:
        try:
            found = network(cidr)
        except ValueError:
            rest = f"of Node {node.name} is not a network; pods in it count as clients outside."
            problems.append(Problem.about("InvalidPodCIDR", f"podCIDR {quoted(cidr)}", rest))
            continue
        # Not every type of ipset accepts a /0.
        yield from map(str, found.subnets() if found.prefixlen == 0 else [found])
