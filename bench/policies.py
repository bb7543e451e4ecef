"""What planning NetworkPolicies costs on one node: `python -m bench.policies [--pods N] [--local N] [--policies N]`.

Processor time of this process and the memory that Python has allocated; the kernel is not part of it. No garbage is
collected meanwhile, as in an agent (`kroute/runtime/memory.py`).
"""

import argparse
import gc
import time
import tracemalloc
from collections.abc import Callable, Iterable

from kroute.controllers.network_policy import WORK
from kroute.model.kinds import POLICY_KINDS
from kroute.model.objects import Applied, KubernetesObject, Listed
from kroute.model.policy_plan import PolicyChange
from kroute.planning.policies.catalog import PolicyCatalog
from tests.unit.planning.policies import cluster, large

LISTED = [Listed(kind.type) for kind in POLICY_KINDS]
REPEATED = 20
"""How often a change is made; the median counts."""


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(prog="bench.policies", description=__doc__)
    parser.add_argument("--pods", type=int, default=10_000)
    parser.add_argument("--local", type=int, default=110)
    parser.add_argument("--policies", type=int, default=1000)
    chosen = parser.parse_args()
    gc.disable()
    items = list(large.objects(chosen.pods, chosen.local, chosen.policies))
    made = PolicyCatalog(cluster.NODE)
    print(f"{chosen.pods} pods, {chosen.local} of them on this node, {chosen.policies} policies")
    print(f"take the lists: {seconds(lambda: made.take([*map(Applied, items), *LISTED])):.2f} s")
    change, pieces = planned(made)
    print(f"first plan: {sum(pieces):.2f} s in {len(pieces)} pieces, the longest {max(pieces) * 1000:.1f} ms")
    counts = [len(it.networks_added) + len(it.ports_added) for it in change.groups.values()]
    print(f"{len(change.pods)} addresses in {len(counts)} groups, {sum(counts)} elements, at most {max(counts)} of one")
    namespaces = chosen.policies // 5
    for name, versions in changes(namespaces).items():
        print(f"{name}: {median(made, versions)}")
    print(f"memory: {memory(items):.1f} MiB")


def changes(namespaces: int) -> dict[str, list[KubernetesObject]]:
    """Pairs of versions of an object, each of which is a change after the other one."""

    def pod(number: int, **labels: str) -> KubernetesObject:
        return large.read(large.pod(number, namespaces, "node9", **labels))

    first = 60_000 // namespaces * namespaces
    wide = cluster.ingress({"namespaceSelector": {}}, namespace="n0", name="wide")
    narrow = cluster.ingress(cluster.pods_with(app="a9"), namespace="n0", name="wide")
    block = cluster.ingress(cluster.pods_with(app="a9"), cluster.block("192.0.2.0/24"), namespace="n0", name="wide")
    return {
        "a pod of a known kind comes": [pod(first + namespaces * number) for number in range(REPEATED)],
        "a pod with new labels comes": [
            pod(first + namespaces * number + 1, new=f"{number}") for number in range(REPEATED)
        ],
        "a Namespace has other labels": [
            large.read(cluster.namespace("n1", team=team)) for team in ("x", "n1") * (REPEATED // 2)
        ],
        "a policy has one ipBlock more or less": [large.read(item) for item in (narrow, block) * (REPEATED // 2)],
        "a policy names all pods or few": [large.read(item) for item in (wide, narrow) * (REPEATED // 2)],
    }


def median(made: PolicyCatalog, versions: Iterable[KubernetesObject]) -> str:
    times = []
    longest = 0.0
    for item in versions:
        taken = seconds(lambda item=item: made.take([Applied(item)]))  # type: ignore[misc]
        _, pieces = planned(made)
        times.append(taken + sum(pieces))
        longest = max(longest, *pieces)
    return f"{sorted(times)[len(times) // 2] * 1000:.2f} ms, the longest piece {longest * 1000:.1f} ms"


def planned(made: PolicyCatalog) -> tuple[PolicyChange, list[float]]:
    """Plan everything; the change, and the seconds of each piece."""
    change, pieces = None, []

    def piece() -> None:
        nonlocal change
        change = made.plan_marked(WORK) or change

    while made.has_marked:
        pieces.append(seconds(piece))
    return change or PolicyChange({}, {}), pieces


def memory(items: Iterable[KubernetesObject]) -> float:
    """What a catalog keeps, in MiB, without the objects that it was given."""
    tracemalloc.start()
    made = PolicyCatalog(cluster.NODE)
    made.take([*map(Applied, items), *LISTED])
    made.plan_marked()
    gc.collect()
    size, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return size / (1 << 20)


def seconds(action: Callable[[], object]) -> float:
    before = time.process_time()
    action()
    return time.process_time() - before


if __name__ == "__main__":
    main()
