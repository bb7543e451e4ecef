"""The node under test, controlled from the process of the API stand-in.

The node is a lab machine, or a namespace of this host. With a lab machine, a tap device is the wire between the two. So
the stand-in costs the machine's one processor only the packets that a real API server would send as well. This end of
the wire is in a network namespace of this host.
"""

import asyncio
import contextlib
import filecmp
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from bench.phases.lengths import BenchError
from bench.place.host import cpu_seconds
from bench.place.runner import PORT, PROGRAM
from bench.workload import NODE_ADDRESS
from tests.lab.mode import lab_mode
from tests.lab.namespaces import Namespace, enter
from tests.lab.places import PROJECT
from tests.lab.run import environment
from tests.lab.vm.machine import Machine

API_ADDRESS = "192.168.250.1"
_CLOCK_READINGS = 5
_STARTS_WITHIN = 600.0
_LINE_LIMIT = 1 << 26


class RunnerError(Exception):
    """The node could not fulfil a request. The message says why."""


class NodeUnderTest:
    """Sends requests to the node's runner (bench/place/runner.py), one at a time.

    `shared` is a directory that both see. `lab` says what kind of lab it is, and which kernel the node has; `python` is
    the version of the agent's interpreter.
    """

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, shared: Path, process: int) -> None:
        self.shared = shared
        self.lab = self.python = ""
        self._reader = reader
        self._writer = writer
        self._process = process
        self._busy = asyncio.Lock()
        self._asked = 0

    async def ask(self, command: str, **arguments: Any) -> Any:
        """Have the runner execute a command, and return its answer."""
        async with self._busy:
            self._asked += 1
            self._writer.write(json.dumps({"number": self._asked, "command": command, **arguments}).encode() + b"\n")
            answer = await self._answer(self._asked)
        if "error" in answer:
            raise RunnerError(f"{command}: {answer['error']}")
        return answer["answer"]

    async def _answer(self, number: int) -> dict[str, Any]:
        """The answer to the request with this number. Those to requests that were cancelled come before it."""
        while line := await self._reader.readline():
            answer: dict[str, Any] = json.loads(line)
            if answer["number"] == number:
                return answer
        return {"error": "the node has gone"}

    async def clock_ahead(self) -> float:
        """How many seconds its clock is ahead of this one, by the reading that took the shortest."""
        readings = []
        for _ in range(_CLOCK_READINGS):
            asked = time.time()
            theirs = await self.ask("clock")
            answered = time.time()
            readings.append((answered - asked, theirs - (asked + answered) / 2))
        return float(min(readings)[1])

    def cpu(self) -> float:
        """Seconds of processor time that the whole node has used: its kernel and all its processes."""
        return cpu_seconds(self._process)


@contextlib.asynccontextmanager
async def node_under_test() -> AsyncIterator[NodeUnderTest]:
    """A node with its runner, for the length of an `async with`; this process is on the other end of the wire.

    Raises:
        BenchError: the image has another program than this tree.
        MachineError, OSError: the lab cannot run here (docs/lab.md says what it needs; the wire needs root).
    """
    _check_program()
    with Path("/proc/self/ns/net").open() as home, contextlib.ExitStack() as stack:
        wire = Namespace(f"kl-bench-{os.getpid()}")
        stack.callback(wire.delete)
        boot = _in_machine if lab_mode() == "vm" else _in_namespace
        shared, process = boot(wire, stack)
        enter(wire.fd)  # every socket that this process opens from now on is on the wire
        stack.callback(enter, home.fileno())
        reader, writer = await _connect()
        stack.callback(writer.close)
        node = NodeUnderTest(reader, writer, shared, process)
        node.lab, node.python = await node.ask("kernel"), await node.ask("python")
        yield node


def _check_program() -> None:
    """Make sure that what is measured is the program of this tree."""
    sources = [it.relative_to(PROJECT) for it in (PROJECT / "kroute").rglob("*.py")]
    for packages in PROGRAM.glob("lib/python3*/site-packages"):
        _, others, missing = filecmp.cmpfiles(PROJECT, packages, sources, shallow=False)
        if not others and not missing:
            return
    raise BenchError("the image in .lab has another program than this tree: run scripts/setup bench")


def _in_machine(wire: Namespace, stack: contextlib.ExitStack) -> tuple[Path, int]:
    wire.ip(f"link set lo up\ntuntap add dev tap0 mode tap\naddress add {API_ADDRESS}/24 dev tap0\nlink set tap0 up\n")
    machine = stack.enter_context(Machine("bench"))
    setup = (
        f"ip link set lo up && ip address add {NODE_ADDRESS}/24 dev vec0 && ip link set vec0 up && "
        f"ip route add default via {API_ADDRESS} && exec {sys.executable} -m bench.place.runner {machine.shared}"
    )
    with wire.inside():
        machine.start(
            ["bash", "-c", setup],
            environment=environment(),
            words=("vec0:transport=tap,ifname=tap0,depth=128,gro=1",),
        )
    return machine.shared, machine.pid


def _in_namespace(wire: Namespace, stack: contextlib.ExitStack) -> tuple[Path, int]:
    place = Namespace(f"{wire.name}-node")
    stack.callback(place.delete)
    wire.ip(
        f"link set lo up\nlink add wire type veth peer name eth0 netns {place.name}\n"
        f"address add {API_ADDRESS}/24 dev wire\nlink set wire up\n"
    )
    place.ip(
        f"link set lo up\naddress add {NODE_ADDRESS}/24 dev eth0\nlink set eth0 up\n"
        f"route add default via {API_ADDRESS}\n"
    )
    shared = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="kroute-bench-", dir="/run")))
    runner = ["unshare", "--mount", sys.executable, "-m", "bench.place.runner", str(shared)]
    with place.inside():
        process = stack.enter_context(subprocess.Popen(runner, cwd=PROJECT))
    stack.callback(process.terminate)
    return shared, process.pid


async def _connect() -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    deadline = time.monotonic() + _STARTS_WITHIN
    while True:
        try:
            async with asyncio.timeout(1):
                return await asyncio.open_connection(NODE_ADDRESS, PORT, limit=_LINE_LIMIT)
        except (OSError, TimeoutError):
            if time.monotonic() > deadline:
                raise
            await asyncio.sleep(0.1)
