"""One more address of an API server, which can fail by itself: what connects to it talks to the server.

    async with ApiServer() as server, Relay(server.port) as first, Relay(server.port) as second:
        Settings(node_name="node1", master=(first.url, second.url))

As a process that a signal kills or stops: `python -m tests.apiserver.relay PORT`, or `RelayProcess`.
"""

import argparse
import asyncio
import signal
import subprocess
import sys
from contextlib import suppress
from typing import Self

_AT_ONCE = 64 << 10


class Relay:
    """A port of `host` (0: any) that leads to the port `to` of the same host, as an async context manager."""

    def __init__(self, to: int, *, host: str = "127.0.0.1", port: int = 0, scheme: str = "http") -> None:
        self.to = to
        self.connections = 0
        """How many were ever accepted."""
        self._host, self._port, self._scheme = host, port, scheme
        self.delay = 0.0
        """Seconds by which everything that the server says is late."""
        self.says = b""
        """What new connections get instead of an answer of the server: another program has the port."""
        self._flows = asyncio.Event()
        self._flows.set()
        self._open: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server

    async def __aenter__(self) -> Self:
        await self.open_port()
        return self

    async def __aexit__(self, *_exc: object) -> None:
        await self.go()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await asyncio.sleep(0)  # for the ends of the connections

    @property
    def url(self) -> str:
        return f"{self._scheme}://{self._host}:{self._port}"

    async def open_port(self) -> None:
        self._server = await asyncio.start_server(self._pass_on, self._host, self._port, reuse_address=True)
        self._port = self._server.sockets[0].getsockname()[1]

    async def go(self) -> None:
        """Refuse connections, and reset those that are open, as a process that is killed."""
        for listener in self._server.sockets:  # what asyncio accepts in the turn in which it closes, it would leak
            asyncio.get_running_loop().remove_reader(listener.fileno())
        await asyncio.sleep(0)
        self._server.close()
        for writer in list(self._open):
            writer.transport.abort()
        await asyncio.sleep(0)

    def hang(self) -> None:
        """Accept connections, and nothing comes through any more, as with a process that is stopped."""
        self._flows.clear()

    def forget(self) -> None:
        """Let nothing through on the connections that are open, as a load balancer whose server has vanished."""
        self._flows.clear()
        self._flows = asyncio.Event()
        self._flows.set()

    def resume(self) -> None:
        self._flows.set()

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self._open.add(writer)
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        flows = self._flows
        try:
            if self.says:
                await reader.read(_AT_ONCE)
                writer.write(self.says)
                await writer.drain()
                return
            await flows.wait()
            far_reader, far_writer = await asyncio.open_connection(self._host, self.to)
            self._open.add(far_writer)
            try:
                async with asyncio.TaskGroup() as group:
                    group.create_task(self._copy(reader, far_writer, flows))
                    group.create_task(self._copy(far_reader, writer, flows, answers=True))
            finally:
                self._open.discard(far_writer)
                far_writer.transport.abort()
        except* OSError:
            pass
        finally:
            self._open.discard(writer)
            writer.transport.abort()

    async def _copy(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, flows: asyncio.Event, *, answers: bool = False
    ) -> None:
        while piece := await reader.read(_AT_ONCE):
            await flows.wait()
            if answers and self.delay:
                await asyncio.sleep(self.delay)
            writer.write(piece)
            await writer.drain()
        raise ConnectionResetError  # ends the other direction


class RelayProcess:
    """A relay in a process of its own, as a context manager: `kill` it, `stop` it (it hangs), `start` it again."""

    def __init__(self, to: int, *, host: str = "127.0.0.1", scheme: str = "http") -> None:
        self._to, self._host, self._scheme = to, host, scheme
        self._port = 0
        self._process: subprocess.Popen[str]

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_exc: object) -> None:
        self.kill()

    @property
    def url(self) -> str:
        return f"{self._scheme}://{self._host}:{self._port}"

    def start(self) -> None:
        """Start it at its port; returns when it listens."""
        options = [str(self._to), "--host", self._host, "--port", str(self._port)]
        command = [sys.executable, "-m", "tests.apiserver.relay", *options]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        self._port = int(self._process.stdout.readline())

    def kill(self) -> None:
        """End it by SIGKILL: the kernel resets its connections."""
        self._process.kill()
        self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()

    def stop(self) -> None:
        """Stop it by SIGSTOP: the kernel accepts what comes, and nobody answers."""
        self._process.send_signal(signal.SIGSTOP)


async def _serve(arguments: argparse.Namespace) -> None:
    async with Relay(arguments.to, host=arguments.host, port=arguments.port) as relay:
        print(relay.url.rpartition(":")[2], flush=True)
        await asyncio.Event().wait()


def main() -> None:
    parser = argparse.ArgumentParser(prog="tests.apiserver.relay", description=__doc__)
    parser.add_argument("to", type=int, help="the port of the server")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=0)
    with suppress(KeyboardInterrupt):
        asyncio.run(_serve(parser.parse_args()))


if __name__ == "__main__":
    main()
