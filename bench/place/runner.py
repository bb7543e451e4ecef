"""The bench's process on the node under test: executes commands from a TCP connection, one JSON line each way.

    python -m bench.place.runner SHARED_DIRECTORY

It starts and stops the agent, passes questions on to it, reads the kernel's state, and times the batch tools.
"""

import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.place import batch_tools, kernel_content
from bench.place.host import kernel_name
from bench.scale import looks
from kroute.inspect import agent_socket
from kroute.watchers.kubernetes.authentication import service_account
from tests.lab.places import PROJECT

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

PORT = 7070
PACE_ADDITIONS = 5_000_000
_READY_POLL = 0.1
"""Seconds. What it costs counts as the agent's, so it is seldom; no figure depends on when it is seen."""
_READY_LOGGED = '"kroute.ready"'
_LINE_LIMIT = 1 << 26
_STATE_DIR = "KROUTE_STATE_DIR"

PROGRAM = PROJECT / ".lab" / "image" / "opt" / "kroute"
"""The image's: it has its own packages and their byte code. The interpreter itself is this Debian's, as the image's is.
"""
_PYTHON = str(PROGRAM / "bin" / "python3")
_KROUTE = _PYTHON, str(PROGRAM / "bin" / "kroute")


class Runner:
    """Each method `do_…` is a command. Its arguments and its answer are JSON."""

    def __init__(self, shared: Path, state_dir: Path) -> None:
        self._shared = shared
        self._state_dir = state_dir
        self._agent: subprocess.Popen[bytes] | None = None
        self._load: subprocess.Popen[str] | None = None
        self._log = shared / "agent.log"
        self._environment = _without_pythons(os.environ)

    async def do_join(self, host: str, port: int, files: dict[str, str]) -> None:
        """Be a Pod of the cluster with this API server: `files` are those of its service account, by name."""
        directory = service_account.DIRECTORY
        directory.mkdir(parents=True, exist_ok=True)
        mount = ["mount", "-t", "tmpfs", "tmpfs", str(directory)]
        await asyncio.to_thread(subprocess.run, mount, check=True)
        for name, text in files.items():
            (directory / name).write_text(text)
        self._environment |= {service_account.HOST: host, service_account.PORT: str(port)}

    async def do_rehearse(self, settings: dict[str, str], within: float) -> None:
        """Run `kroute run` with these variables, without network, until it knows that no API server answers.

        After that the files of the program are in memory, as they are on a node that has just pulled the image.
        """
        with tempfile.TemporaryDirectory(dir="/run") as state_dir:
            agent = await asyncio.create_subprocess_exec(
                *("unshare", "--net", *_KROUTE, "run"),
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                env={**self._environment, **settings, _STATE_DIR: state_dir},
            )
            assert agent.stdout is not None
            async with asyncio.timeout(within):
                await agent.stdout.readuntil(b'"api.away"')
                agent.terminate()
                await agent.communicate()

    async def do_start(self, settings: dict[str, str], profile: bool) -> float:
        """Start `kroute run` with these variables and an empty log. Returns the Unix time just before the start.

        With `profile` it is the tree's, whose functions are sampled.
        """
        (self._state_dir / "ready").unlink(missing_ok=True)
        program = [_PYTHON, "-m", "bench.place.sampling", str(self._shared / "profile")] if profile else _KROUTE
        with self._log.open("wb") as log:
            started = time.time()
            environment = {**self._environment, **settings, _STATE_DIR: str(self._state_dir)}
            self._agent = subprocess.Popen([*program, "run"], stdout=log, stderr=log, env=environment)
        return started

    async def do_launch(self, argv: list[str]) -> float:
        """Start another proxy, with the iptables of the legacy tables. Returns the Unix time just before the start.

        kube-router gives its routing tables names in /etc/iproute2 at each synchronization.
        """
        tools = Path(tempfile.mkdtemp(prefix="bench-tools-", dir="/run"))
        names = shutil.copytree("/etc/iproute2", tools / "iproute2")
        await asyncio.to_thread(subprocess.run, ["mount", "--bind", names, "/etc/iproute2"], check=True)
        for name in ("iptables", "ip6tables"):
            for action in ("", "-save", "-restore"):
                (tools / f"{name}{action}").symlink_to(f"/usr/sbin/{name}-legacy{action}")
        environment = {**os.environ, "HOME": "/root", "PATH": f"{tools}:{os.environ['PATH']}"}
        with self._log.open("wb") as log:
            started = time.time()
            self._agent = subprocess.Popen(argv, stdout=log, stderr=log, env=environment)
        return started

    async def do_see(self, what: str, **arguments: Any) -> float:
        """Wait for something that `bench.scale.looks` sees."""
        look: Callable[..., Awaitable[float]] = getattr(looks, what)
        try:
            return await look(**arguments)
        except TimeoutError:
            raise TimeoutError(f"{what} {arguments}; the end of the log: {self._log.read_text()[-1000:]}") from None

    async def do_logged(self, texts: list[str], within: float) -> float:
        """Wait until the proxy has logged all of these. Returns the Unix time."""
        end = time.monotonic() + within
        while not all(map(self._log.read_text().__contains__, texts)):
            if self._running().poll() is not None or time.monotonic() > end:
                raise RuntimeError(f"{texts} are not in its log, which ends: {self._log.read_text()[-2000:]}")
            await asyncio.sleep(_READY_POLL)
        return time.time()

    async def do_nft_differences(self, expected: dict[str, list[str]]) -> int:
        """How many Services have other endpoints than expected in kube-proxy's table."""
        return await asyncio.to_thread(looks.nft_differences, expected)

    async def do_kroute(self, settings: dict[str, str], arguments: list[str]) -> list[Any]:
        """Run a command of kroute's with these variables. Returns its exit code and its output."""
        environment = {**self._environment, **settings, _STATE_DIR: str(self._state_dir)}
        done = await asyncio.to_thread(
            subprocess.run, [*_KROUTE, *arguments], capture_output=True, text=True, check=False, env=environment
        )
        return [done.returncode, done.stdout + done.stderr]

    async def do_python(self) -> str:
        """The version of the image's interpreter."""
        return (await self.do_command([_PYTHON, "-c", "import platform; print(platform.python_version())"])).strip()

    async def do_command(self, argv: list[str]) -> str:
        """Run a command, and return what it has written."""
        done = await asyncio.to_thread(subprocess.run, argv, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(f"{argv}: {done.stderr}{done.stdout}")
        return done.stdout

    async def do_load(self, argv: list[str]) -> None:
        """Start the load generator (bench/datapath/load.c)."""
        self._load = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    async def do_call(self, line: str) -> dict[str, Any]:
        """Have the load generator make the calls of a line. Returns what it has measured."""
        assert self._load is not None, "no load generator has been started"
        assert self._load.stdin is not None
        assert self._load.stdout is not None
        self._load.stdin.write(f"{line}\n")
        self._load.stdin.flush()
        answer: dict[str, Any] = json.loads(await asyncio.to_thread(self._load.stdout.readline))
        if "error" in answer:
            raise RuntimeError(f"{line}: {answer['error']}")
        return answer

    async def do_signal(self, name: str) -> None:
        """Send the agent a signal."""
        self._running().send_signal(signal.Signals[name])

    async def do_ready(self, within: float) -> None:
        """Wait until the agent is ready, everything of the initial sync in the kernel, and has logged that."""
        async with asyncio.timeout(within):
            while not ((self._state_dir / "ready").exists() and _READY_LOGGED in self._log.read_text()):
                if self._running().poll() is not None:
                    raise RuntimeError(f"kroute ended before it was ready: {self._log.read_text()[-2000:]}")
                await asyncio.sleep(_READY_POLL)

    async def do_stop(self) -> int:
        """End the agent by SIGTERM. Returns its exit code."""
        agent = self._running()
        agent.send_signal(signal.SIGTERM)
        return await asyncio.to_thread(agent.wait, 600)

    async def do_question(self, question: str) -> Any:
        """Pass a question on to the agent's socket."""
        return json.loads(await agent_socket.ask(self._state_dir, question))

    async def do_memory(self) -> dict[str, int]:
        """The agent's resident memory in bytes, now and at its peak."""
        lines = Path(f"/proc/{self._running().pid}/status").read_text().splitlines()
        fields = dict(line.split(":", 1) for line in lines)
        return {name: int(fields[field].split()[0]) * 1024 for name, field in (("now", "VmRSS"), ("peak", "VmHWM"))}

    async def do_log(self) -> list[dict[str, Any]]:
        """The events that the agent has logged since it was started."""
        written, _, _being_written = self._log.read_text().rpartition("\n")
        return [json.loads(line) for line in written.splitlines() if line.startswith("{")]

    async def do_kernel(self) -> str:
        """The kind of lab, and this node's kernel."""
        return kernel_name()

    async def do_clock(self) -> float:
        """The Unix time here."""
        return time.time()

    async def do_pace(self) -> float:
        """The seconds that a fixed loop of Python takes here, so that hours and machines can be compared."""
        began, total = time.perf_counter(), 0
        for number in range(PACE_ADDITIONS):
            total += number
        return time.perf_counter() - began

    async def do_content(self) -> dict[str, int]:
        """How many objects of each kind the kernel holds."""
        return await asyncio.to_thread(kernel_content.count)

    async def do_differences(self, expected: dict[str, list[str]], port: int, target_port: int) -> int:
        """How many virtual servers have other real servers than expected."""
        return await asyncio.to_thread(kernel_content.differences, expected, port, target_port)

    async def do_batch_tools(self, services: int, endpoints: int) -> dict[str, float]:
        """Time the batch tools on this content, in a new namespace. Returns seconds by the tool's name."""
        return await asyncio.to_thread(batch_tools.measure, services, endpoints)

    def _running(self) -> subprocess.Popen[bytes]:
        if self._agent is None:
            raise RuntimeError("no agent has been started")
        return self._agent

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> int:
        """Answer requests until the other end closes the connection. Returns how many there were."""
        served = 0
        while line := await reader.readline():
            served += 1
            request = json.loads(line)
            number = request.pop("number")
            command: Callable[..., Awaitable[Any]] = getattr(self, f"do_{request.pop('command')}")
            try:
                answer = {"answer": await command(**request)}
            except Exception as error:  # noqa: BLE001 - the caller gets every error
                answer = {"error": f"{type(error).__name__}: {error}"}
            writer.write(json.dumps({"number": number, **answer}).encode() + b"\n")
            await writer.drain()
        return served

    def end_agent(self) -> None:
        """Kill the agent and the load generator, if they still run: nobody else would end them."""
        for process in (self._agent, self._load):
            if process is not None and process.poll() is None:
                process.kill()
                process.wait()


def _without_pythons(variables: Mapping[str, str]) -> dict[str, str]:
    """The variables that an agent has of Python's: that of the image."""
    own = {name: text for name, text in variables.items() if not name.startswith("PYTHON")}
    return {**own, "PYTHONDONTWRITEBYTECODE": "1"}


async def main(shared: Path, state_dir: Path) -> None:
    """Serve until a connection that had requests is closed, or SIGTERM.

    Whoever connects gives up after a second, and tries again.
    """
    runner = Runner(shared, state_dir)
    over = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, over.set)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        served = 1
        try:
            served = await runner.serve(reader, writer)
        except asyncio.CancelledError:
            pass  # this process ends
        finally:
            writer.close()
            if served:
                over.set()

    server = await asyncio.start_server(serve, "0.0.0.0", PORT, limit=_LINE_LIMIT)
    try:
        await over.wait()
    finally:
        runner.end_agent()
        server.close()  # no wait for its connections: their other end may wait for the end of this process


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="kroute-bench-state-", dir="/run") as directory:
        asyncio.run(main(Path(sys.argv[1]), Path(directory)))
