"""The pods of `tests/lab/reachability.py` and the policies of one node, written without an agent.

So a test knows each write, and nothing runs between two of them.
"""

import asyncio
import signal
from collections.abc import Callable, Collection, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from kroute.firewall.backend import BACKENDS
from kroute.firewall.protocol import PolicyFirewall
from kroute.kernel.iptables import tools
from kroute.kernel.netlink.batch import BatchSocket
from kroute.kernel.netlink.netlink_socket import NetlinkSocket
from kroute.kernel.node_kernel import NodeKernel, open_kernel
from kroute.settings import Settings
from tests.kernel.test_kill_between_writes import NEVER, Steps, in_child
from tests.lab.cluster import Cluster, Node
from tests.lab.firewall import backend
from tests.lab.objects import Object
from tests.lab.reachability import HOMES, POD, Matrix, Way
from tests.scenarios.policy_stage import allowed, described, refused_throughout
from tests.unit.planning.policies import cluster
from tests.unit.planning.policies.oracle import World


class Writes(Steps):
    """Counts what is about to be written: transactions of nf_tables, messages to ipset, tables of iptables."""

    def count(self, patch: pytest.MonkeyPatch) -> None:
        batch, transact, run = BatchSocket.batch, NetlinkSocket.transact, tools.run

        async def batching(netlink: BatchSocket, *arguments: object, **options: object) -> object:
            self.take("transaction")
            return await batch(netlink, *arguments, **options)  # type: ignore[arg-type]

        async def transacting(netlink: NetlinkSocket, *arguments: object) -> object:
            self.take("messages")
            return await transact(netlink, *arguments)  # type: ignore[arg-type]

        async def running(argv: Sequence[str], stdin: str = "") -> str | None:
            if argv[0].endswith("-restore"):
                self.take(argv[0])
            return await run(argv, stdin)

        patch.setattr(BatchSocket, "batch", batching)
        patch.setattr(NetlinkSocket, "transact", transacting)
        patch.setattr(tools, "run", running)


async def restore(objects: list[Object]) -> None:
    """Make the node's tables those of the objects, as an agent does at its start."""
    plan = cluster.Cluster(*objects)
    async with open_kernel(only=BACKENDS[backend()].clients) as kernel:
        await policy_firewall(kernel).restore(plan.catalog.groups(), plan.catalog.pods)


def policy_firewall(kernel: NodeKernel) -> PolicyFirewall:
    return BACKENDS[backend()].make_policies(Settings("node1"), kernel)


class OneNode:
    """The pods, and the tables of node1 alone."""

    def __init__(self, node: Node, matrix: Matrix, steps: Path) -> None:
        self._node = node
        self._matrix = matrix
        self._steps = steps
        self.ways = [
            way for way in matrix.ways(by=[POD]) if node.name in {HOMES[pod].node for pod in (way.source, way.target)}
        ]
        """The calls that the node judges."""

    def restore(self, objects: list[Object]) -> None:
        """Make the node's tables those of the objects, in this process."""
        with self._node.namespace.inside():
            asyncio.run(restore(objects))

    def run(self, work: Callable[[], Coroutine[None, None, None]], last: int = NEVER) -> list[str]:
        """Do the work in a child, which is killed at a write; returns the writes of one that comes to its end."""
        with self._node.namespace.inside():
            ended = in_child(work, Writes(last), self._steps)
        assert ended in ({0} if last == NEVER else {0, -signal.SIGKILL}), "the child has failed"
        return self._steps.read_text().split() if ended == 0 else []

    def shows(self, *states: list[Object], ways: Collection[Way] | None = None, are_served: bool = True) -> None:
        """Make these calls, or all. Expect that what all states refuse is refused, and what all allow passes, if it is
        to be served.
        """
        tried = self.ways if ways is None else ways
        worlds = [World(state, self._node.name) for state in states]
        passing = set.intersection(*(allowed(world, tried) for world in worlds)) if are_served else set[Way]()
        refused = {way for way in tried if refused_throughout(worlds, way)}
        answered = self._matrix.call(tried, passing, refused)
        assert not (wrong := (answered & refused) | (passing - answered)), described(wrong, passing)


@contextmanager
def one_staged(directory: Path) -> Iterator[OneNode]:
    """A cluster of its own for the tests of a module; `directory` is for files."""
    lab = Cluster()
    try:
        matrix = asyncio.run(Matrix.build(lab, "node1"))
        yield OneNode(lab.node("node1"), matrix, directory / "steps")
        matrix.close()
    finally:
        lab.close()
