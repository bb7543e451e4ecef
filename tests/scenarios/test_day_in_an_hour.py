"""A day in an hour: everything that goes wrong in a cluster, at once, and nobody may notice.

kroute is killed, objects change, the API server goes, links and addresses flap, another program writes what is its own,
disks fill up, clocks jump, and a tenant attacks. `tests/lab/day/timetable.py` says how often; the length of the day and
its seed come from KROUTE_LAB_DAY and KROUTE_LAB_SEED. KROUTE_LAB_ATTACKS names the tenant's inputs, else all come.
"""

import asyncio
import itertools
import os
import random
import re
import resource
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack, suppress
from functools import partial
from statistics import median

import pytest

from tests.lab import kubernetes
from tests.lab.cluster import Node
from tests.lab.day import tenant, troubles
from tests.lab.day.peers import PeerStage
from tests.lab.day.stage import WITNESS, Stage, disks
from tests.lab.day.stranger import Stranger
from tests.lab.day.timetable import Day, Event
from tests.lab.day.victims import Victims
from tests.lab.deployment import SLOWNESS, eventually
from tests.lab.directors import DirectorMachine
from tests.lab.firewall_state import entries, rules
from tests.lab.hosts import Host
from tests.lab.kernel_state import VirtualServer
from tests.lab.namespaces import CommandError
from tests.lab.world import FAMILIES, World
from tests.real_proxies.running import ask
from tests.scenarios.expected_state import assert_right

ATTACKS = "KROUTE_LAB_ATTACKS"
GROWTH, GROWS_BY = 1.3, 4 << 20
"""The witness's memory in the evening of an hour is at most so many times that at noon, and so many bytes more."""
HOUR = 3600
"""Seconds. In a shorter day the heap still reaches new peaks on a busy host, so that its memory is reported only."""
LONGEST_ROUND = 0.1 * SLOWNESS
"""Seconds of processor time that the witness's longest round of its event loop may take: 0.1 on a native kernel.

The lab's kernels count as a process's time what other machines of the host take away, so the hour alone asserts this: a
quiet machine runs it.
"""
SETTLES_WITHIN = 30
"""Native seconds in which all is as it should be after the last trouble."""
NEAR = 3
"""How many readings of the memory count for one; each is at the end of an attack."""
SAYS_SO_EVERY = 10.0
"""Seconds between two signs of life."""
SERVES = {"http": 8080, "udp": 5353}
Action = Callable[[Stage, int, random.Random], Awaitable[None]]


class Progress:
    """What the day is doing now, for a test that hangs, and a sign of life for the one who waits outside."""

    def __init__(self, config: pytest.Config) -> None:
        self.doing: dict[str, object] = {}
        self.memory: list[int] = []
        self.phases: list[tuple[str, float]] = []
        self._said = 0.0
        self._outside = config.pluginmanager.get_plugin("lab-events")

    def note(self, kind: str, what: object) -> None:
        self.doing[kind] = what
        now = asyncio.get_running_loop().time()
        if kind == "phase":
            self.phases.append((str(what), now))
        if self._outside is not None and now - self._said > SAYS_SO_EVERY:
            self._said = now
            self._outside.say_alive()


@pytest.fixture
def day_world() -> Iterator[World]:
    """A cluster of the day's own, and files for all its connections."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    made = World.build()
    try:
        yield made
    finally:
        made.cluster.close()


@pytest.mark.drawn(2)
@pytest.mark.parametrize(
    "backend",
    [pytest.param("nftables", marks=pytest.mark.nftables), pytest.param("iptables", marks=pytest.mark.legacy)],
)
async def test_after_a_day_of_trouble_nobody_has_noticed_anything(
    backend: str,
    day_world: World,
    monkeypatch: pytest.MonkeyPatch,
    record_property: Callable[[str, object], None],
    request: pytest.FixtureRequest,
) -> None:
    monkeypatch.setenv("KROUTE_FIREWALL", backend)
    day, progress = Day.wanted(), Progress(request.config)
    stage = Stage(day_world, backend)
    hosts: list[Host] = [*day_world.nodes, *(machine.host for machine in stage.directors)]
    try:
        async with asyncio.timeout(4 * day.seconds + 900):
            with ExitStack() as stack:
                stack.enter_context(troubles.right_time())
                strangers = {node.name: Stranger(node) for node in day_world.nodes}
                stage.spares += [await node.pod(f"spare-{node.name}", **SERVES) for node in day_world.nodes]
                before = {host.name: host.snapshot() for host in hosts}
                stack.enter_context(disks(stage.state_dirs))
                said = await _live(day, stage, strangers, progress)
                progress.note("phase", "cleanup")
                await stage.cleanup()
                left = {host.name: before[host.name].diff(host.snapshot()) for host in hosts}
                assert not any(left.values()), f"left behind: {left}"
    except TimeoutError as error:
        raise AssertionError(f"seed {day.seed}: the day hangs in {progress.doing}; so far {stage.wrongs}") from error
    except Exception as error:
        error.add_note(f"seed {day.seed}, in {progress.doing}; so far {stage.wrongs}")
        raise
    finally:
        for machine in stage.directors:
            machine.close()
    progress.note("phase", "")
    took = {name: round(end - start) for (name, start), (_, end) in itertools.pairwise(progress.phases)}
    record_property("measured", f"a day of {day.seconds} s, seed {day.seed}, {backend}: {said}; seconds: {took}")
    wrongs = [f"{times} times: {what}" for what, times in Counter(stage.wrongs).most_common(20)]
    assert not wrongs, "\n".join([f"seed {day.seed}: {len(stage.wrongs)} wrongs", *wrongs])


@pytest.mark.thorough
@pytest.mark.parametrize(
    "mode",
    [
        pytest.param("iptables", marks=pytest.mark.legacy),
        pytest.param("ipvs", marks=pytest.mark.legacy),
        pytest.param("nftables", marks=pytest.mark.nftables),
    ],
)
async def test_the_same_day_with_kube_proxy_is_measured(
    mode: str, day_world: World, record_property: Callable[[str, object], None], request: pytest.FixtureRequest
) -> None:
    """What others do is told, not judged: nothing is asserted but that there was a day, and a proxy in its evening."""
    program = kubernetes.program("kube-proxy")
    if program is None:
        pytest.skip(str(kubernetes.missing("kube-proxy")))
    day, progress = Day.wanted(), Progress(request.config)
    stage = PeerStage(day_world, mode, program)
    try:
        async with asyncio.timeout(4 * day.seconds + 900):
            with troubles.right_time():
                strangers = {node.name: Stranger(node) for node in day_world.nodes}
                stage.spares += [await node.pod(f"spare-{node.name}", **SERVES) for node in day_world.nodes]
                said, victims = await _until_evening(day, stage, strangers, progress)
                assert all(proxy.running for proxy in stage.proxies.values())
                stage.wrongs += [wrong for stranger in strangers.values() for wrong in stranger.check()]
    except BaseException as error:
        error.add_note(f"{mode}, seed {day.seed}, in {progress.doing}; so far {stage.wrongs[-20:]}")
        raise
    finally:
        await stage.cleanup()
    noon, evening = _memory(progress)
    changed = sum("a stranger had" in wrong for wrong in stage.wrongs)
    others = Counter(wrong[:200] for wrong in stage.wrongs if "a stranger had" not in wrong).most_common(5)
    failed = Counter(re.sub(r"kl-\S+-", "", failure) for failure in victims.load.failures).most_common(20)
    counted = f"{len(victims.uncounted())} virtual servers counted anew; " if stage.has_counts else ""
    record_property(
        "measured",
        f"the same day of {day.seconds} s, seed {day.seed}, kube-proxy {mode}: {said}; {counted}{changed} times "
        f"a stranger's things were changed; witness {noon / 2**20:.1f} and {evening / 2**20:.1f} MiB; "
        f"in addition: {others}; calls that failed: {failed}; broken: {Counter(victims.broken()).most_common(20)}",
    )
    assert victims.load.calls.total()


async def _live(day: Day, stage: Stage, strangers: dict[str, Stranger], progress: Progress) -> str:
    """Have the morning, the day and the evening. Returns the day's figures."""
    figures, victims = await _until_evening(day, stage, strangers, progress)
    figures += _own_figures(day, stage, progress)
    stage.wrongs += [*victims.load.failures, *victims.lost, *victims.broken(), *victims.uncounted()]
    await victims.leave()
    progress.note("phase", "comparison")
    for stranger in strangers.values():
        stage.wrongs += stranger.check()
        stranger.leave()
    for node in stage.world.nodes:
        progress.note("phase", f"comparison of {node.name}")
        wanted = partial(assert_right, node, list(stage.items.values()), stage.settings(node))
        await eventually(wanted, within=SETTLES_WITHIN)
        await eventually(partial(_drains_nothing, node), within=SETTLES_WITHIN)
    progress.note("phase", "fresh agents")
    await _compare_with_fresh_agents(stage)
    return figures


async def _until_evening(
    day: Day, stage: Stage, strangers: dict[str, Stranger], progress: Progress
) -> tuple[str, Victims]:
    """Have the day with whatever proxy the stage has. Returns the victims' figures, and the victims."""
    progress.note("phase", "morning")
    Victims.deploy(stage)
    await stage.start()
    async with Victims.of(stage) as victims:
        progress.note("phase", "day")
        await _troubled(day, stage, strangers, progress)
        for name in stage.names:
            progress.note("phase", f"evening of {name}")
            await stage.rests(name)
        progress.note("phase", "last calls")
        await victims.load.goes_on(100)
    with suppress(AssertionError):  # the kernel sums its counts up every two seconds
        await eventually(partial(_is_nothing, victims.uncounted))
    return _figures(day, victims), victims


async def _troubled(day: Day, stage: Stage, strangers: dict[str, Stranger], progress: Progress) -> None:
    """Have all the troubles, each kind one after the other, and end what they have begun."""
    inputs = [name for name in tenant.INPUTS if name in (os.environ.get(ATTACKS) or ",".join(tenant.INPUTS)).split(",")]

    async def attack(stage: Stage, number: int, dice: random.Random) -> None:
        name = inputs[number % len(inputs)]
        progress.note("attack", name)
        if name not in stage.attacks_nothing:
            await tenant.INPUTS[name](stage, dice)
        progress.memory.append(stage.witness.rss())

    async def stranger(stage: Stage, _number: int, dice: random.Random) -> None:
        one = strangers[stage.node(dice).name]
        stage.wrongs += one.check()
        with suppress(CommandError):  # somebody has just changed it, as the next check finds
            one.write(dice)

    actions: dict[str, Action] = {
        "kill": troubles.kill,
        "edit": troubles.edit,
        "outage": troubles.outage,
        "link": troubles.link,
        "address": troubles.address,
        "disk": troubles.disk,
        "clock": troubles.clock,
        "attack": attack,
        "stranger": stranger,
    }
    began = asyncio.get_running_loop().time()
    async with asyncio.TaskGroup() as group:
        for kind, events in day.events().items():
            group.create_task(_track(stage, began, events, actions[kind], progress), name=kind)
    troubles.delete_addresses(stage)


async def _track(stage: Stage, began: float, events: list[Event], action: Action, progress: Progress) -> None:
    """Have the events of one kind, each at its time, or as soon as the one before is over."""
    loop = asyncio.get_running_loop()
    for event in events:
        await asyncio.sleep(began + event.at - loop.time())
        progress.note(event.kind, event)
        await action(stage, event.number, random.Random(event.seed))
        progress.doing.pop(event.kind, None)


def _figures(day: Day, victims: Victims) -> str:
    """What there was of everything, and what the victims have noticed."""
    load, open_ones = victims.load, len(victims.streams)
    events = ", ".join(f"{len(events)} {kind}" for kind, events in day.events().items())
    return (
        f"{events}; {load.calls.total() + len(load.failures)} calls, {len(load.failures)} failed, "
        f"longest {load.longest:.2f} s; {open_ones} open connections, {len(victims.broken())} broken; "
        f"{victims.datagrams} questions by UDP, {len(victims.lost)} unanswered"
    )


def _memory(progress: Progress) -> tuple[float, float]:
    """The witness's memory at noon, when the tenant has tried everything, and in the evening, in bytes."""
    half = len(progress.memory) // 2
    return median(progress.memory[half - NEAR : half]), median(progress.memory[-NEAR:])


def _own_figures(day: Day, stage: Stage, progress: Progress) -> str:
    """The figures of the witness. Adds to the wrongs if it has grown, or if others had to wait for one thing."""
    noon, evening = _memory(progress)
    if day.seconds >= HOUR and evening > noon * GROWTH + GROWS_BY:
        stage.wrongs.append(f"the witness has grown from {noon / 2**20:.1f} to {evening / 2**20:.1f} MiB")
    status, _, text = ask(stage.cluster.node(WITNESS), "GET", 10249, "/metrics")
    assert status == 200
    longest, longest_cpu = (
        float(re.findall(rf"^kroute_loop_longest_round_{unit} (\S+)$", text, re.MULTILINE)[0])
        for unit in ("seconds", "cpu_seconds")
    )
    if day.seconds >= HOUR and longest_cpu > LONGEST_ROUND:
        stage.wrongs.append(f"a round of the witness's event loop took {longest_cpu:.2f} s of processor time")
    return (
        f"; witness {noon / 2**20:.1f} MiB at noon, {evening / 2**20:.1f} in the evening, "
        f"longest round of its loop {longest:.2f} s, of processor time {longest_cpu:.2f} s"
    )


async def _compare_with_fresh_agents(stage: Stage) -> None:
    """Undo everything, start agents that know nothing, and expect the kernel to be what it was."""
    old = {node.name: _held(node) for node in stage.world.nodes}
    directed = [machine.host.ipvs() for machine in stage.directors]
    for node in stage.world.nodes:
        stage.read_log(node.name, stage.process(node.name))
    await stage.cleanup()
    await stage.start()
    for node in stage.world.nodes:
        await eventually(partial(_same, node.name, old[node.name], partial(_held, node)), within=SETTLES_WITHIN)
    for machine, table in zip(stage.directors, directed, strict=True):
        fresh = partial(_same, machine.name, _forms(table), partial(_directed, machine))
        await eventually(fresh, within=SETTLES_WITHIN)


def _held(node: Node) -> dict[str, object]:
    """Everything that kroute holds in a node's kernel, without counts."""
    return {
        "virtual servers": _forms(node.ipvs()),
        "addresses": sorted(node.addresses("kube-ipvs0")),
        "routes": node.local_routes(),
        "entries": entries(node),
        "rules": {family.name: rules(node, family.name) for family in FAMILIES},
    }


def _directed(machine: DirectorMachine) -> dict[str, object]:
    return _forms(machine.host.ipvs())


def _forms(table: dict[str, VirtualServer]) -> dict[str, object]:
    """The virtual servers without counts."""
    return {
        key: (row.scheduler, row.flags, {at: (real.method, real.weight) for at, real in row.real_servers.items()})
        for key, row in table.items()
    }


def _same(name: str, old: dict[str, object], read: Callable[[], dict[str, object]]) -> None:
    fresh = read()
    differing = {kind: (old.get(kind), fresh.get(kind)) for kind in old | fresh if old.get(kind) != fresh.get(kind)}
    assert not differing, f"{name}: after the day, and written by a fresh agent: {differing}"


def _is_nothing(find: Callable[[], list[str]]) -> None:
    found = find()
    assert not found


def _drains_nothing(node: Node) -> None:
    table = node.ipvs()
    draining = {key: row for key, row in table.items() if any(not one.weight for one in row.real_servers.values())}
    assert not draining
