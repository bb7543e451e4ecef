"""kroute is killed at every point between a write of the ledger and the kernel write that it announces.

The run counts its own steps: before and after each write of lines, and of the head that counts the lines, and before
the next message to the kernel. The test kills a run at each step, or at a quarter of them, which a seed chooses, if it
is not a thorough one, and starts kroute again. The result must be that of a run without a kill, with foreign objects
untouched. After cleanup the kernel is as it was before. Each run is a forked child, so these tests use no event loop.
"""

import asyncio
import os
import re
import signal
import traceback
from collections.abc import Callable, Coroutine
from pathlib import Path

import pytest

from kroute.controllers.ipvs.sysctls import SYSCTLS
from kroute.controllers.node_controllers import NodeControllers
from kroute.controllers.service_proxy import readiness
from kroute.firewall.backend import node_clients
from kroute.kernel import modules
from kroute.kernel.ipvs.client import Ipvs
from kroute.kernel.netlink.netlink_socket import NetlinkSocket
from kroute.kernel.node_kernel import open_kernel
from kroute.migration.cleanup import undo_all
from kroute.model.plan import Plan, Protocol, VirtualServerKey
from kroute.reconcile.broadcaster import Broadcaster
from kroute.reconcile.ledger import Ledger
from kroute.runtime.state_dir import StateDirectory
from kroute.settings import Settings
from tests.kernel.conftest import MODULES
from tests.kernel.nodes import HANG, NODE_IP, NODE_IP6, run, uplink
from tests.kernel.test_warm_restart import snapshot
from tests.lab.firewall import backend
from tests.lab.thoroughness import drawn, is_thorough, seed
from tests.unit.fake_node import node_plan, plan, server

NEVER = 1 << 30
SHARES = 4
"""How many tests share the points in a thorough run: each is short enough for a busy machine."""
FOREIGN = ("192.168.9.200:80", "10.96.0.77:80")
"""Virtual servers of another program."""

FIRST: list[Plan] = [
    node_plan(0, "10.128.0.0/16", ipv4=NODE_IP, ipv6=NODE_IP6),
    plan(
        "stays",
        1,
        server("10.96.0.1", 80, "10.128.0.1"),
        server("fd96::1", 80, "fd28::1"),
        source=NODE_IP,
        source6=NODE_IP6,
    ),
    plan("goes", 1, server("10.96.0.2", 80, "10.128.0.2"), source=NODE_IP, source6=NODE_IP6),
]
SECOND: list[Plan] = [
    FIRST[0],
    plan(
        "stays",
        2,
        server("10.96.0.1", 80, "10.128.0.1", "10.128.0.9"),
        server("fd96::1", 80, "fd28::1"),
        source=NODE_IP,
        source6=NODE_IP6,
    ),
    plan("comes", 1, server("10.96.0.3", 80, "10.128.0.3"), source=NODE_IP, source6=NODE_IP6),
]
GONE = plan("goes", 2)
GONE_KEY = VirtualServerKey(Protocol.TCP, "10.96.0.2", 80)
SERVED = {"10.96.0.1", "fd96::1", "10.96.0.3"}


class Steps:
    """Counts a run's steps, and kills it at one of them."""

    def __init__(self, last: int) -> None:
        self.taken: list[str] = []
        self._last = last

    def take(self, what: str) -> None:
        if len(self.taken) == self._last:
            os.kill(os.getpid(), signal.SIGKILL)
        self.taken.append(what)

    def count(self, patch: pytest.MonkeyPatch) -> None:
        """Count the writes of the ledger, and the first send after each."""
        write, pwrite, send = os.write, os.pwrite, NetlinkSocket.send_messages

        def writing(descriptor: int, text: bytes) -> int:
            self.take("before lines")
            return write(descriptor, text)

        def counting(descriptor: int, text: bytes, offset: int) -> int:
            self.take("between lines and head")
            written = pwrite(descriptor, text, offset)
            self.take("after head")
            return written

        async def sending(netlink: NetlinkSocket, *arguments: object) -> int:
            if self.taken and self.taken[-1] == "after head":
                result = await send(netlink, *arguments)
                self.take("after the first send")
                return result
            return await send(netlink, *arguments)

        patch.setattr(os, "write", writing)
        patch.setattr(os, "pwrite", counting)
        patch.setattr(NetlinkSocket, "send_messages", sending)


async def serve(state_dir: Path, *rounds: list[Plan]) -> None:
    """Run the controllers through these plans, and stop as at SIGTERM."""
    broadcaster = Broadcaster()
    settings = Settings("node3", state_dir=state_dir, firewall=backend(), resync_period=3600.0, drain_timeout=0.0)
    async with (
        open_kernel(only=node_clients(settings)) as kernel,
        NodeControllers(settings, broadcaster, lambda *_: None, kernel) as controllers,
        asyncio.TaskGroup() as group,
    ):
        group.create_task(controllers.run())
        for plans in rounds:
            broadcaster.publish(plans)
            await controllers.live()
        async with asyncio.timeout(HANG), Ipvs() as ipvs:
            while not (await _is_served(ipvs) and await _rests(controllers)):
                pass
        controllers.stop()


async def _is_served(ipvs: Ipvs) -> bool:
    """Whether the virtual servers are those of the second round."""
    return {key[1] for key in await ipvs.read()} - {it.rpartition(":")[0] for it in FOREIGN} == SERVED


async def _rests(controllers: NodeControllers) -> bool:
    """Whether nothing was written for 0.5 s; of these a stall of the machine costs a tenth."""
    before = {name: it.writes for name, it in controllers.statistics().items()}
    for _ in range(10):
        await asyncio.sleep(0.05)
    return before == {name: it.writes for name, it in controllers.statistics().items()}


async def clean_up(state_dir: Path) -> None:
    report = await undo_all(Settings("node3", state_dir=state_dir), StateDirectory(state_dir))
    assert report.failed == []


def in_child(
    work: Callable[[], Coroutine[None, None, None]], steps: Steps | None = None, out: Path | None = None
) -> int:
    """Run `work` in a child process; return how the child ended."""
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    code = 1
    try:
        patch = pytest.MonkeyPatch()
        if steps is not None:
            steps.count(patch)
        asyncio.run(work())
        if steps is not None and out is not None:
            out.write_text("\n".join(steps.taken))
        code = 0
    except BaseException:  # noqa: BLE001  whatever it is, the child ends here
        traceback.print_exc()
    finally:
        os._exit(code)


def state() -> dict[str, list[str]]:
    """Return everything that kroute may change, without the numbers that the kernel chooses for each set and link."""
    values = {row.name: Path("/proc/sys", row.name.replace(".", "/")) for row in SYSCTLS}
    found = {
        command: sorted(re.sub(r" initval \S+|^\d+: |link/ether \S+", "", line) for line in lines)
        for command, lines in snapshot().items()
    }
    return found | {name: [path.read_text()] for name, path in values.items() if path.exists()}


def differences(found: dict[str, list[str]], expected: dict[str, list[str]]) -> dict[str, set[str]]:
    """Return the lines that only one of the two has."""
    return {name: set(found[name]) ^ set(lines) for name, lines in expected.items() if found[name] != lines}


async def load() -> None:
    """Load the kernel's modules, and once for all children what opening the kernel imports."""
    assert await modules.load(MODULES) == []
    async with open_kernel():
        pass


def prepare_namespace() -> None:
    asyncio.run(load())
    uplink(f"{NODE_IP}/24", f"{NODE_IP6}/64 nodad", "192.168.9.200/24")
    for foreign in FOREIGN:
        run(f"ipvsadm -A -t {foreign} -s wlc")
        run(f"ipvsadm -a -t {foreign} -r 192.168.9.7:80 -m")


@pytest.mark.parametrize("share", range(SHARES if is_thorough() else 1))
def test_a_kill_at_each_point_around_a_write_of_the_ledger_is_a_restart(
    namespace: None,
    tmp_path: Path,
    share: int,
    monkeypatch: pytest.MonkeyPatch,
    record_property: Callable[[str, object], None],
) -> None:
    for name in ("PATIENCE", "LONGEST_PATIENCE"):  # else a run on a busy machine binds before it sets routes
        monkeypatch.setattr(readiness, name, 600.0)
    prepare_namespace()
    assert in_child(lambda: serve(tmp_path / "warm", FIRST, [*SECOND, GONE])) == 0  # creates tables, which remain
    assert in_child(lambda: clean_up(tmp_path / "warm")) == 0
    pristine = state()

    names = tmp_path / "steps"
    steps = Steps(NEVER)
    assert in_child(lambda: serve(tmp_path / "whole", FIRST, [*SECOND, GONE]), steps, names) == 0
    expected, ledger = state(), Ledger.open(tmp_path / "whole")
    assert in_child(lambda: clean_up(tmp_path / "whole")) == 0
    assert differences(state(), pristine) == {}
    points = names.read_text().splitlines()
    assert {"before lines", "between lines and head", "after head", "after the first send"} == set(points)

    by, steps_of_all = seed(), list(enumerate(points))
    chosen = steps_of_all[share::SHARES] if is_thorough() else drawn(steps_of_all, one_of=SHARES, by=by)
    record_property("measured", f"kroute is killed at {len(chosen)} of {len(points)} steps, seed {by}")
    for number, name in chosen:
        where, directory = f"seed {by}: killed at step {number}, {name}", tmp_path / str(number)
        ended = in_child(lambda: serve(directory, FIRST, [*SECOND, GONE]), Steps(number))  # noqa: B023
        assert ended in {-signal.SIGKILL, 0}, where  # the sends after a write differ from run to run
        assert in_child(lambda: serve(directory, SECOND)) == 0, where  # noqa: B023
        assert differences(state(), expected) == {}, where
        assert Ledger.open(directory).virtual_servers - ledger.virtual_servers <= {GONE_KEY}, where  # named at worst
        assert in_child(lambda: clean_up(directory)) == 0, where  # noqa: B023
        assert differences(state(), pristine) == {}, where
