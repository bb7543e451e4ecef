"""A director that has run out of something gives up neither its identity, nor its role, nor the nodes."""

import asyncio
import errno
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from kroute.base.backoff import exhaustion
from kroute.director.addresses import DirectorAddresses
from kroute.director.lease import DirectorIdentity, LeaseRole
from kroute.director.probes import NodeProbes
from kroute.kernel.net.announcements import Announcer
from kroute.model.plan import Vip
from kroute.model.probes import Probe, ProbeKind, ProbeSettings
from kroute.reconcile.ledger import Ledger
from kroute.reconcile.pass_status import PassStatus
from kroute.runtime.state_dir import StateDirectoryError
from tests.fakes.addresses import FakeAddresses
from tests.openings import Openings
from tests.unit.director.test_election import Candidates, candidates  # noqa: F401  a fixture
from tests.unit.fake_node import Clock, new_kernel
from tests.unit.watching import eventually, running

LACKING = [
    OSError(errno.EMFILE, "Too many open files"),
    OSError(errno.ENOMEM, "Cannot allocate memory"),
    MemoryError(),
    RuntimeError("can't start new thread"),
]


@pytest.mark.parametrize("number", range(4))
def test_the_identity_is_that_of_the_run_before(tmp_path: Path, number: int) -> None:
    before = str(DirectorIdentity.open("d", tmp_path))
    with Openings(number).failing():
        with pytest.raises(StateDirectoryError) as refused:
            DirectorIdentity.open("d", tmp_path)
        assert exhaustion(refused.value)
        assert str(DirectorIdentity.open("d", tmp_path)) == before


@pytest.mark.parametrize("error", LACKING, ids=repr)
async def test_the_active_one_stays_active_and_renews_in_the_end(
    candidates: Candidates,  # noqa: F811
    error: Exception,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    one = candidates.candidate("one")
    await one.attempt()

    async def fail(*_: object) -> None:
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(one._lock, "update", fail)
        patch.setattr(one._lock, "read", fail)
        candidates.clock.now = 2.0
        await one.attempt()
    assert one.role is LeaseRole.ACTIVE
    await one.attempt()
    assert candidates.lease["renewTime"] == "2026-01-01T00:00:02.000000Z"


async def test_no_node_fails_because_this_machine_cannot_check_it() -> None:
    connected = asyncio.Event()

    async def connect(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connected.set()
        writer.close()

    server = await asyncio.start_server(connect, "127.0.0.1", 0)
    nodes = [Probe(ProbeKind.CONNECT, "127.0.0.1", server.sockets[0].getsockname()[1])]
    nodes += [Probe(ProbeKind.REACH, f"127.0.0.{last}", 9) for last in range(2, 7)]
    probes = NodeProbes(ProbeSettings(interval=0.001, timeout=5.0, failures=1), lambda: None)
    probes.want(dict.fromkeys(nodes, frozenset({"default"})))
    openings = Openings(0, times=5, only={"socket.__new__": ""})
    with capture_logs() as logs, openings.failing():
        async with running(probes.run()):
            await eventually(lambda: probes.settled)
            await connected.wait()
    assert probes.failing == frozenset()
    assert [line["event"] for line in logs] == ["resources.exhausted"]
    server.close()


@pytest.mark.parametrize("error", LACKING, ids=repr)
async def test_a_vip_is_announced_when_it_can_be(tmp_path: Path, error: Exception) -> None:
    clock, kernel = Clock(), new_kernel()
    sent: list[str] = []
    failures = [error] * 6

    class Lacking(Announcer):
        async def announce(self, interface: str, addresses: object) -> None:
            if failures:
                raise failures.pop()
            sent.extend(addresses)  # type: ignore[call-overload]

    client = FakeAddresses(kernel)
    await client.open()
    vips = DirectorAddresses(
        PassStatus("d", clock), client, Lacking(), Ledger.open(tmp_path), interface="eth0", lifetime=60
    )
    vips._announcements["203.0.113.9"] = [clock.now]
    vips.desired.note_applied("203.0.113.9", Vip("203.0.113.9", None))
    with capture_logs() as logs:
        while vips.next_due() is not None:
            clock.now = max(clock.now, vips.next_due() or 0.0)
            await vips.announce()
    assert sent == ["203.0.113.9"]
    assert [line["event"] for line in logs] == ["vip.unannounced"]
    assert logs[0]["next_step"]
