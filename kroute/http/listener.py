"""Listen where the settings say, and wait while another process has the port."""

import asyncio
import os
from collections.abc import Callable
from contextlib import suppress
from errno import EADDRINUSE

import structlog

from kroute.base.backoff import Backoff, exhaustion
from kroute.http.fair_listener import Budget
from kroute.http.server import Answer, BriefHttpServer
from kroute.model.plan import Problem
from kroute.settings import ListenAddress

log = structlog.get_logger(__name__)

MOST_A_SECOND = 500
"""Connections a second of all clients to one of these ports. Each has a budget of its own: health check node ports,
which users make, take nothing of it."""
FIRST_RETRY, LAST_RETRY = 1.0, 30.0
"""Seconds until a port that cannot be bound is tried again. The pause doubles each time."""

Report = Callable[[Problem], None]
"""Called with a problem of the node."""


async def serve(
    what: str,
    where: ListenAddress,
    answer: Answer,
    report: Report,
    *,
    seconds: float | None = None,
    held: set[int] | None = None,
) -> None:
    """Answer HTTP until cancelled.

    `what` names the server to operators. A connection lives at most `seconds`, by default the server's limit. A port
    that cannot be bound, because another program has it for example, is reported and waited for. `held` contains the
    port while it is bound.
    """
    held = set() if held is None else held
    server = BriefHttpServer(answer, seconds, Budget(MOST_A_SECOND))
    listening = await _listen(server, what, where, report)
    log.info("port.listening", purpose=what, address=str(where))
    held.add(where.port)
    try:
        await asyncio.get_running_loop().create_future()
    finally:
        held.discard(where.port)
        with suppress(OSError):
            await server.close([listening])
        server.cut_connections()


async def _listen(server: BriefHttpServer, what: str, where: ListenAddress, report: Report) -> asyncio.Server:
    backoff = Backoff(FIRST_RETRY, LAST_RETRY)
    while True:
        try:
            return await server.listen(where.host, where.port)
        except OSError as error:
            report(Problem("PortUnavailable", f"{what} {where}", _sentence(what, where, error)))
        await asyncio.sleep(backoff.delay())


def _sentence(what: str, where: ListenAddress, error: OSError) -> str:
    if (next_step := exhaustion(error)) is None:
        holder = f"`ss -ltnp sport = :{where.port}` shows which process has it"
        next_step = f"{holder if error.errno == EADDRINUSE else 'give another'} (--{what}-bind-address)"
    return (
        f"{what} cannot be served on {where}: {os.strerror(error.errno or 0)}; {next_step}. "
        "kroute serves without it and tries again, later and later."
    )
