"""A change during a resync is written before the resync ends, and is not undone by what the resync read before it."""

import errno
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

from kroute.kernel.errors import KernelError
from kroute.kernel.ipset import AddEntry
from tests.unit.fake_node import DUMMY, NODE_IPV4, FakeNode, plan, server

NAMES = ("a", "b", "c")
VIPS = {name: f"10.96.0.{number}" for number, name in enumerate((*NAMES, "d"), 1)}


def of(name: str, generation: int, *real_servers: str) -> Any:
    return plan(name, generation, server(VIPS[name], 80, *real_servers))


def key_of(name: str) -> tuple[int, str, int]:
    return (6, VIPS[name], 80)


async def serving(tmp_path: Path, **settings: object) -> FakeNode:
    node = FakeNode(tmp_path, **settings)
    await node.start(*(of(name, 1, "10.1.0.1", "10.1.0.2") for name in NAMES))
    node.kernel.writes.clear()
    return node


def while_ipvs_is_read(node: FakeNode, happens: Callable[[], None], see: Callable[[], None]) -> None:
    """Call `happens` once the table is read and before any part is compared, and `see` before its last part."""
    scan = node.ipvs.scan
    node.ipvs.scan = scanned = lambda expected=(): parts(expected)  # type: ignore[assignment]

    async def parts(expected: Any) -> AsyncIterator[Any]:
        if node.ipvs.scan is not scanned:
            return
        node.ipvs.scan = scan  # type: ignore[method-assign]
        read = [part async for part in scan(expected)]
        happens()
        for part in read[:-1]:
            yield part
        see()
        yield read[-1]


async def test_a_changed_service_is_written_before_the_reading_ends(tmp_path: Path) -> None:
    node = await serving(tmp_path)
    weights: list[int] = []
    while_ipvs_is_read(
        node,
        lambda: node.broadcaster.publish([of(name, 2, "10.1.0.1") for name in NAMES]),
        lambda: weights.append(node.kernel.virtual_servers[key_of("c")].real_servers["10.1.0.2", 8080].weight),
    )
    await node.resync()
    assert weights == [0]
    assert node.service_proxy.statistics().repairs == 0
    assert sum("10.1.0.2" in str(write) for write in node.kernel.writes) == 4  # three weights and one set entry
    await node.wait(3)  # before another resync could see the draining real servers
    for name in NAMES:
        assert set(node.kernel.virtual_servers[key_of(name)].real_servers) == {("10.1.0.1", 8080)}


async def test_what_is_deleted_meanwhile_is_not_taken_for_somebody_elses(tmp_path: Path) -> None:
    node = await serving(tmp_path)
    gone: list[bool] = []
    while_ipvs_is_read(
        node,
        lambda: node.broadcaster.publish([plan(name, 2) for name in NAMES]),
        lambda: gone.append(key_of("c") not in node.kernel.virtual_servers),
    )
    await node.resync()
    assert gone == [True]
    await node.apply(*(of(name, 3, "10.1.0.4") for name in NAMES))
    assert node.problems == []
    assert {vip for _, vip, _ in node.kernel.virtual_servers} == {VIPS[name] for name in NAMES}


async def test_what_has_drained_meanwhile_does_not_drain_again(tmp_path: Path) -> None:
    node = await serving(tmp_path, resync_period=1)
    await node.apply(*(of(name, 2, "10.1.0.1") for name in NAMES))
    while_ipvs_is_read(node, lambda: node.broadcaster.publish([of("d", 1, "10.1.0.5")]), lambda: None)
    await node.wait(5)  # by now both are due, the resync and a poll of the drains
    for name in NAMES:
        assert set(node.kernel.virtual_servers[key_of(name)].real_servers) == {("10.1.0.1", 8080)}
    assert node.service_proxy.next_due() is None


async def test_an_added_service_is_in_the_sets_before_all_of_them_are_read(tmp_path: Path) -> None:
    node = await serving(tmp_path)
    entry = AddEntry("KROUTE-CLUSTER-IP", (VIPS["d"], 6, 80))
    seen: dict[str, bool] = {}
    read = node.ipset.read

    async def noticing(name: str) -> Any:
        if not seen:
            node.broadcaster.publish([of("d", 1, "10.1.0.5")])
        seen[name] = entry.element in node.kernel.sets[entry.set].elements
        return await read(name)

    node.ipset.read = noticing  # type: ignore[method-assign]
    node.clock.now += node.settings.resync_period + 1
    await node.masquerade.step()
    assert list(seen.values()).count(False) == 1 < len(seen)
    await node.settle()
    assert node.masquerade.statistics().repairs == 0
    assert VIPS["d"] in node.kernel.links[DUMMY].addresses


async def test_a_route_that_is_written_meanwhile_is_not_taken_for_lost(tmp_path: Path) -> None:
    node = await serving(tmp_path)
    read = node.route_fix._routes.read

    async def read_before_it_came(interface: str) -> Any:
        routes = await read(interface)
        node.route_fix._routes.read = read  # type: ignore[method-assign]
        node.broadcaster.publish([of("d", 1, "10.1.0.5")])
        await node.masquerade.step()
        await node.service_proxy.step()
        return routes

    node.route_fix._routes.read = read_before_it_came  # type: ignore[method-assign]
    node.clock.now += node.settings.resync_period + 1
    await node.route_fix.step()
    assert node.kernel.links[DUMMY].routes[VIPS["d"]][0].source == NODE_IPV4
    await node.settle()
    assert node.route_fix.statistics().repairs == 0
    writes = [str(write) for write in node.kernel.writes]
    assert len(writes) == len(set(writes))


async def test_told_to_stop_it_takes_in_nothing_more(tmp_path: Path) -> None:
    node = await serving(tmp_path)

    def happens() -> None:
        node.broadcaster.publish([of("a", 2, "10.1.0.9")])
        node.service_proxy.stop()

    held: list[bool] = []
    while_ipvs_is_read(node, happens, lambda: held.append(not node.kernel.writes))
    node.clock.now += node.settings.resync_period + 1
    await node.service_proxy.step()
    assert held == [True]
    assert node.service_proxy.wake.is_set()


async def test_the_controllers_resync_one_after_the_other(tmp_path: Path) -> None:
    node = await serving(tmp_path, resync_period=30.0, resync_budget=1.0)  # however slow this machine is
    resynced: dict[str, list[float]] = {controller.name: [] for controller in node.controllers}
    for controller in node.controllers:
        read = controller.read

        async def noted(name: str = controller.name, read: Any = read) -> Any:
            resynced[name].append(node.clock.now)
            return await read()

        controller.read = noted  # type: ignore[method-assign]
    started = node.clock.now
    for _ in range(65):
        await node.wait(1)
    moments = {name: [now - started for now in times] for name, times in resynced.items()}
    assert moments == {"masquerade": [10, 40], "route_fix": [20, 50], "service_proxy": [30, 60]}


async def test_addresses_that_change_faster_than_they_are_read_hold_up_no_write_and_delete_nothing(
    tmp_path: Path, monkeypatch: Any
) -> None:
    node = await serving(tmp_path)

    async def interrupted(_interface: str) -> set[str]:
        raise KernelError("the kernel's state changes faster than it can be read", errno=errno.EINTR)

    with monkeypatch.context() as churn:
        churn.setattr(node.clients.addresses, "read", interrupted)
        node.kernel.virtual_servers.pop(key_of("a"))
        await node.resync()
        await node.apply(of("d", 9, "10.1.0.1"))
        assert {VIPS["d"], *(VIPS[name] for name in NAMES)} <= node.kernel.links[DUMMY].addresses.keys()
        assert not [write for write in map(str, node.kernel.writes) if "unbind" in write or "delete" in write]
        assert node.service_proxy.statistics().failing_for == 0
    await node.resync()
    assert key_of("a") in node.kernel.virtual_servers
