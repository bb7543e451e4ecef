"""Nothing waits for a reader of the log that stands still: lines are kept, then dropped and counted. Pipes are real."""

import fcntl
import json
import os
import pty
import queue
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from kroute.base.standard_error import KEPT_BYTES, NonBlockingStream

SERVING = """
import asyncio, sys, structlog
from kroute.base import logs
from kroute.base.standard_error import dropped_lines
logs.configure("json", "info")
logs.never_wait()
log = structlog.get_logger("x")

async def serve():
    for number in range(int(sys.argv[1])):
        log.info("some.thing", number=number, filling="x" * 200)
        await asyncio.sleep(0)
    asyncio.get_running_loop().call_exception_handler({"message": "asyncio's own line " + "x" * 5000})
    print("goes on", dropped_lines(), flush=True)
    await asyncio.to_thread(sys.stdin.readline)
    print("kept lines are out", flush=True)
    {end}

asyncio.run(serve())
"""


Serve = Callable[..., "Served"]
Made = Callable[..., NonBlockingStream]
Pipe = tuple[int, int]


@pytest.fixture
def serve() -> Iterator[Serve]:
    with ExitStack() as stack:

        def run(*arguments: object, **named: bool) -> Served:
            served = Served(*arguments, **named)  # type: ignore[arg-type]
            stack.callback(served.close)
            return served

        yield run


@pytest.fixture
def made() -> Iterator[Made]:
    with ExitStack() as stack:
        yield lambda *arguments: stack.enter_context(NonBlockingStream(*arguments))


@pytest.fixture
def pipe() -> Iterator[Pipe]:
    ends = os.pipe()
    yield ends
    for end in ends:
        with suppress(OSError):
            os.close(end)


class Served:
    """A program whose standard error is a pipe, socket or terminal that nobody reads yet."""

    def __init__(self, lines: int, end: str = "pass", *, socket_pair: bool = False) -> None:
        pair = tuple(it.detach() for it in socket.socketpair()) if socket_pair else os.pipe()
        self.reader, writer = pair
        argv = [sys.executable, "-c", SERVING.replace("{end}", end), str(lines)]
        self.process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=writer, text=True)
        self.flags = fcntl.fcntl(writer, fcntl.F_GETFL)
        os.close(writer)

    def said(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline()

    def go_on(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def read(self) -> list[str]:
        with open(self.reader, encoding="utf-8", closefd=False) as reader:
            return reader.read().splitlines()

    def close(self) -> None:
        os.close(self.reader)
        with self.process:
            self.process.kill()


@pytest.mark.parametrize("socket_pair", [False, True], ids=["pipe", "socket"])
def test_a_full_pipe_stops_nothing_and_missing_lines_are_counted_where_they_are_missing(
    serve: Serve, socket_pair: bool
) -> None:
    program = serve(10_000, socket_pair=socket_pair)
    going_on = program.said().split()  # a line that waits for the reader would keep this from being said
    seen = b""
    while b"log.lines_dropped" not in seen or not seen.endswith(b"\n"):  # the thread writes on: nothing ends it yet
        seen += os.read(program.reader, 1 << 16)
    program.go_on()
    assert program.process.wait() == 0
    lines = seen.decode().splitlines()
    numbers = [json.loads(line).get("number") for line in lines[:-1]]
    assert numbers == list(range(len(numbers)))
    notice = json.loads(lines[-1])
    assert notice["event"] == "log.lines_dropped"
    assert len(numbers) + notice["lines"] == 10_000 + 1
    assert going_on == ["goes", "on", str(notice["lines"])]
    assert KEPT_BYTES * 0.9 < sum(map(len, lines)) < KEPT_BYTES * 1.5


def test_what_is_kept_is_written_once_somebody_reads(serve: Serve) -> None:
    program = serve(1000, "await asyncio.to_thread(sys.stdin.readline)")
    assert program.said() == "goes on 0\n"
    seen = b""
    while b"asyncio's own line" not in seen:  # without a new line, and before the end
        seen += os.read(program.reader, 1 << 16)
    assert [json.loads(line)["number"] for line in seen.splitlines() if b"some.thing" in line] == list(range(1000))
    program.go_on()
    program.go_on()
    program.read()
    assert program.process.wait() == 0


@pytest.mark.parametrize(("end", "code"), [("pass", 0), ("raise OSError('the end')", 1)])
def test_a_program_ends_though_nobody_reads(serve: Serve, end: str, code: int) -> None:
    program = serve(10_000, end)
    assert program.said().startswith("goes on")
    program.go_on()
    assert program.process.wait() == code
    assert len(program.read()) > 100


def test_a_traceback_is_written(serve: Serve) -> None:
    program = serve(0, "raise OSError('the end')")
    program.go_on()
    assert program.read()[-1] == "OSError: the end"
    assert program.process.wait() == 1


def test_the_flags_that_other_processes_share_stay(made: Made, pipe: Pipe) -> None:
    reader, writer = pipe
    made(writer).write("x\n")
    assert not fcntl.fcntl(writer, fcntl.F_GETFL) & os.O_NONBLOCK
    assert os.read(reader, 10) == b"x\n"


def test_a_pipe_that_another_process_has_made_non_blocking_loses_nothing(made: Made, pipe: Pipe) -> None:
    reader, writer = pipe
    os.set_blocking(writer, False)
    stream = made(writer)
    line = "x" * 999 + "\n"
    for _ in range(1000):
        stream.write(line)
    assert read_lines(reader, 1000) == line.encode() * 1000
    assert stream.dropped == 0


def read_lines(reader: int, count: int) -> bytes:
    seen = b""
    while seen.count(b"\n") < count:
        seen += os.read(reader, 1 << 16)
    return seen


def test_lines_are_whole_however_long_they_are(made: Made, pipe: Pipe) -> None:
    reader, writer = pipe
    told: queue.SimpleQueue[int] = queue.SimpleQueue()
    stream = made(writer, told.put)
    lines = [f"{number} {'x' * number * 997}\n" for number in range(200)]
    for line in lines:
        stream.write(line)
    seen = read_lines(reader, len(lines) - stream.dropped)
    kept = seen.decode().splitlines(keepends=True)
    assert kept == lines[: len(kept)]
    assert stream.dropped == len(lines) - len(kept) == told.get(timeout=60)
    assert 0 < stream.dropped < len(lines)


def test_a_reader_that_is_gone_costs_lines_and_nothing_else(made: Made, pipe: Pipe) -> None:
    reader, writer = pipe
    stream = made(writer)
    os.close(reader)
    stream.write("lost\n")
    stream.write("lost\nlost too\n")
    stream.finish(60)
    assert stream.dropped == 3


def test_what_comes_after_the_end_raises_nothing(made: Made, pipe: Pipe) -> None:
    _, writer = pipe
    stream = made(writer)
    stream.finish(60)
    stream.write("late\n")
    stream.flush()


def test_a_terminal_that_was_stopped_stops_nothing(made: Made) -> None:
    primary, secondary = pty.openpty()
    stream = made(secondary)
    for _ in range(3000):
        stream.write("x" * 100 + "\n")
    read_lines(primary, 3000)
    assert stream.dropped == 0
    os.close(primary)
    os.close(secondary)


@pytest.mark.parametrize(
    "command", ["run --manifests {}", "director --vip-interface lo --strict-external-ips --kubeconfig {}/config"]
)
def test_an_agent_and_a_director_never_wait(command: str, tmp_path: Path) -> None:
    (tmp_path / "config").touch()
    argv = [*command.format(tmp_path).split(), "--state-dir", str(tmp_path)]
    program = (
        "import sys; from importlib import import_module; from kroute.cli import main;"
        f"module = import_module('kroute.cli.{argv[0]}');"
        "module.run_to_the_end = lambda serving, *_: print(type(sys.stderr).__name__) or serving.close() or 0;"
        f"main.main({argv!r})"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.stdout == f"{NonBlockingStream.__name__}\n", done.stderr


def test_lines_are_written_again_after_those_that_are_missing(made: Made, pipe: Pipe) -> None:
    reader, writer = pipe
    stream = made(writer, lambda lines: stream.write(f"{lines} missing\n"))
    line = "x" * 9999 + "\n"
    while not stream.dropped:
        stream.write(line)
    seen = b""
    while b"missing" not in seen:
        seen += os.read(reader, 1 << 16)
    stream.write("again\n")
    seen += read_lines(reader, 1)
    assert seen.replace(line.encode(), b"") == b"1 missing\nagain\n"
