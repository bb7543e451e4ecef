"""The parts of a bundle that the agent, or its command line, has: settings, plans, status, findings, metrics, log."""

import asyncio
import platform
import sys
import urllib.request
from functools import partial
from importlib import metadata
from pathlib import Path

import msgspec

from kroute import __version__
from kroute.cli.bundle.archive import Part
from kroute.cli.check import findings_of
from kroute.cli.plan import changes_of
from kroute.inspect import agent_socket, shared_state, snapshot, status, support
from kroute.settings import Settings
from kroute.telemetry import statistics, zpages

LOG_LINES = 2000
"""The newest lines of the journal, of the agent's unit and the director's."""
UNITS = ("kroute", "kroute-director")
TOOL_SECONDS = 10.0
LONGEST_ANSWER = 16 << 20


def agent_parts(settings: Settings) -> list[Part]:
    """These parts, the most telling first."""
    ask = partial(_ask, settings.state_dir)
    lines = partial(agent_socket.ask, settings.state_dir)
    return [
        Part("version.json", "kroute, Python, and the packages that they run with", _versions),
        Part("settings.json", "the settings in force, without secrets", partial(_settings, settings)),
        Part("status.json", "what is served, what is wrong, what to do", partial(ask, f"{status.QUESTION} shared")),
        Part(
            "checks.json", "what `kroute check` finds, with the traces of other proxies", partial(findings_of, settings)
        ),
        Part("show.json", "virtual servers as planned, with the kernel's counts", partial(ask, snapshot.QUESTION)),
        Part("recent.jsonl", "the newest events of the agent's log", partial(lines, support.RECENT)),
        Part("plans.jsonl", "the plan of each Service", partial(lines, support.PLANS)),
        Part("services.jsonl", "the Services as the agent has read them", partial(lines, support.OBJECTS)),
        Part("shared.json", "what every node should plan", partial(ask, shared_state.QUESTION)),
        Part("changes.json", "what `kroute plan` would change", partial(changes_of, settings)),
        Part("statistics.json", "the agent's counters", partial(ask, statistics.QUESTION)),
        Part("measurements.json", "the newest latencies", partial(ask, statistics.NEWEST_QUESTION)),
        Part("metrics.txt", "what Prometheus gets", partial(_metrics, settings)),
        Part("ledger.txt", "what kroute has made on this node", partial(_ledger, settings.state_dir)),
        Part("journal.txt", "the newest lines of the journal", _journal),
    ]


async def _ask(state_dir: Path, question: str) -> bytes:
    """The answer. Raises RuntimeError for none, which the agent gives if the kernel did not tell it what it needs."""
    if answer := await agent_socket.ask(state_dir, question):
        return answer
    raise RuntimeError("the agent could not answer: see `question.unanswered` in its log")


async def _versions() -> dict[str, object]:
    return {
        "kroute": __version__,
        "python": platform.python_version(),
        "machine": platform.machine(),
        "arguments": sys.argv[1:2],
        "packages": {it.metadata["Name"]: it.version for it in metadata.distributions()},
    }


async def _settings(settings: Settings) -> bytes:
    return msgspec.json.format(zpages.configz(settings))


async def _metrics(settings: Settings) -> bytes:
    where = settings.metrics_bind_address
    if where is None:
        raise ValueError("--metrics-bind-address is off: there are none")
    local = where._replace(host=where.host if where.host not in {"", "0.0.0.0", "::"} else "127.0.0.1")
    return await asyncio.to_thread(_get, f"http://{local}/metrics")


def _get(url: str) -> bytes:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(url, timeout=TOOL_SECONDS) as answer:
        return bytes(answer.read(LONGEST_ANSWER))


async def _ledger(state_dir: Path) -> bytes:
    return await asyncio.to_thread((state_dir / "ledger").read_bytes)


async def _journal() -> bytes:
    units = [f"--unit={unit}" for unit in UNITS]
    return await output_of("journalctl", *units, f"--lines={LOG_LINES}", "--no-pager", "--output=short-iso")


async def output_of(*command: str) -> bytes:
    """The standard output of a program. Raises OSError if it is not installed, RuntimeError if it fails or hangs."""
    process = await asyncio.create_subprocess_exec(
        *command, stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    try:
        async with asyncio.timeout(TOOL_SECONDS):
            out, complaint = await process.communicate()
    except TimeoutError:
        raise RuntimeError(f"{command[0]} has not ended within {TOOL_SECONDS:g} s") from None
    finally:
        if process.returncode is None:
            process.kill()
    if process.returncode:
        raise RuntimeError(f"{command[0]} failed: {complaint.decode(errors='replace').strip()}")
    return out
