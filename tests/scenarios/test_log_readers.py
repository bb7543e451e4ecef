"""Nobody reads the log, as a container runtime that stands still: a node is served as ever, and can be stopped."""

import fcntl
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.lab.cluster import Node
from tests.lab.deployment import Deployment, eventually
from tests.lab.objects import endpoint_slices, service
from tests.lab.world import World

SERVICES = 30
PIPE_SIZE = 4096
"""Bytes: the least that the kernel gives a pipe. A handful of log lines fills it."""


@contextmanager
def unread_log(node: Node) -> Iterator[Path]:
    """Let the next kroute of this node log into a pipe that nobody reads."""
    log = node.state_dir.parent / f"kroute-{len(node.processes) + 1}.log"
    os.mkfifo(log)
    reader = os.open(log, os.O_RDONLY | os.O_NONBLOCK)
    try:
        fcntl.fcntl(reader, fcntl.F_SETPIPE_SZ, PIPE_SIZE)
        yield log
    finally:
        log.unlink()
        log.write_bytes(os.read(reader, PIPE_SIZE))
        os.close(reader)


async def test_a_log_that_nobody_reads_keeps_no_service_waiting_and_no_sigterm(
    world: World, deployment: Deployment
) -> None:
    node = world.cluster.node("node1")
    with unread_log(node) as log:
        await deployment.start("--log-level", "debug", nodes=("node1",))
        for number in range(1, SERVICES + 1):
            vips = f"10.254.1.{number}", f"fd00:10:254::1:{number}"
            deployment.apply(service(f"web-{number}", *vips), *endpoint_slices(f"web-{number}", world.web))
        expected = {f"10.254.1.{number}" for number in range(1, SERVICES + 1)}
        await eventually(lambda: bound_includes(node, expected), within=60)
        assert (await world.visitor.spread("10.254.1.1", 8080, 3)).total() == 3
        assert stat.S_ISFIFO(log.stat().st_mode)
        assert await deployment.agents.pop("node1").terminate() == 0


def bound_includes(node: Node, expected: set[str]) -> None:
    bound = {address.partition("/")[0] for address in node.addresses("kube-ipvs0")}
    assert expected <= bound
