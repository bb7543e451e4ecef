"""Tests that share a cluster leave it as they found it: after each file it is compared with what it was before.

Files are given to the lab's machines in an order that changes from run to run, so what one leaves would break another
only now and then.
"""

import contextlib
import os
import time
from collections import Counter
from pathlib import Path

from tests.lab.deployment import POLL, SLOWNESS
from tests.lab.patience import Looks
from tests.lab.shared_state import State, client_state, node_state, server_state
from tests.lab.world import World

SETTLES_WITHIN = 5.0 * SLOWNESS
"""Seconds that the kernel may take to remove what a test has removed: sockets, links of a deleted namespace."""
LINES = 8
CONTROL_PLANE = "control-plane"
"""The machine of the API server, which the first test that is fed by it starts for all."""

Look = dict[str, State]
"""The state of each host, by name, and that of the `cluster`."""


class Guard:
    """Knows what the shared cluster was like, and which files have used it since then."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._before = self._look(with_agents=False)
        looks = Looks(SETTLES_WITHIN)
        while self._before != (now := self._look(with_agents=False)) and not looks.are_over():
            self._before = now
        self._files: dict[str, list[str]] = {host: [] for host in now}

    def note(self, file: str) -> None:
        """Say that a test of `file` has used the cluster."""
        for files in self._files.values():
            if file not in files:
                files.append(file)

    def compare(self, *, agents_go_on: bool = False) -> None:
        """Raise AssertionError if a host has changed, with the files that used it since it was last compared.

        A node on which an agent goes on, for the tests of the next file, is compared once that has ended.
        """
        if not any(self._files.values()):
            return
        looks = Looks(SETTLES_WITHIN)
        while changed := difference(self._before, now := self._look(with_agents=agents_go_on)):
            if looks.are_over():
                break
            time.sleep(POLL)
        files = dict.fromkeys(file for host in changed for file in self._files[host])
        self._before |= now
        self._files |= {host: [] for host in now}
        said = "\n".join(f"{host}, {line}" for host, lines in changed.items() for line in lines)
        assert not changed, f"{' or '.join(files)} has changed the cluster that all tests share:\n{said}"

    def _look(self, *, with_agents: bool) -> Look:
        world = self._world
        busy = [node for node in world.nodes if with_agents and any(it.running for it in node.processes)]
        states = {node.name: node_state(node) for node in world.nodes if node not in busy}
        states |= {host.name: client_state(host) for host in (world.visitor, world.cluster.client)}
        states |= {pod.name: server_state(pod) for pod in world.web}
        return {**states, "cluster": self._cluster_state(except_of={node.name for node in busy})}

    def _cluster_state(self, except_of: set[str]) -> State:
        """The state of the cluster; its hosts' processes but those of the nodes `except_of`."""
        world = self._world
        hosts = [*world.nodes, *world.web, world.visitor, world.cluster.client]
        names = {os.fstat(host.namespace.fd).st_ino: host.name for host in hosts if host.name not in except_of}
        return {
            "hosts": sorted(set(world.cluster.host_names) - {CONTROL_PLANE}),
            "pods": [pod.name for node in world.nodes for pod in node.pods],
            "open streams": [host.name for host in hosts for _ in range(host.open_streams)],
            "processes": _processes(names),
        }


def difference(before: Look, after: Look) -> dict[str, list[str]]:
    """Return what came (+) and went (-), at most LINES of a kind, for each host that is in both and differs."""
    found = {}
    for host in sorted(before.keys() & after.keys()):
        changes: list[str] = []
        for kind, was in before[host].items():
            came, went = Counter(after[host][kind]), Counter(was)
            came, went = came - went, went - came
            if kind == "sysctls":  # a module that is loaded meanwhile brings more of them
                names = {line.partition(" = ")[0] for line in was}
                came = Counter(line for line in came if line.partition(" = ")[0] in names)
            lines = [f"{kind}: + {line}" for line in sorted(came.elements())]
            lines += [f"{kind}: - {line}" for line in sorted(went.elements())]
            changes += lines[:LINES] + ([f"{kind}: and {len(lines) - LINES} more"] if len(lines) > LINES else [])
        if changes:
            found[host] = changes
    return found


def _processes(namespaces: dict[int, str]) -> list[str]:
    """The processes in some network namespaces, whose names are by their inodes."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has just ended
            if host := namespaces.get((process / "ns/net").stat().st_ino):
                command = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                found.append(f"{host}: {command.strip()}")
    return sorted(found)
