"""The order of the real servers of mh and sh: the plan's, whatever the order of arrival; no other scheduler has one."""

import asyncio
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from kroute.controllers.ipvs.server_order import ENDS_CONNECTIONS, place
from kroute.kernel.ipvs.objects import (
    AddRealServer,
    DeleteRealServer,
    RealServerState,
    SetRealServer,
    SetVirtualServer,
    VirtualServerOptions,
)
from kroute.model.plan import RealServer, ServicePlan, VirtualServer
from kroute.reconcile.comparison.virtual_servers import in_order_of_addition
from tests.examples import examples
from tests.fakes.kernel import Operation
from tests.unit.fake_node import FakeNode, new_kernel, plan, server

WEB = (6, "10.96.0.1", 80)
OFF, ON = (Operation("set sysctl", f"{ENDS_CONNECTIONS}={value}") for value in "01")


def pod(number: int) -> tuple[str, int]:
    return f"10.1.0.{number}", 8080


def web(generation: int, *pods: int, scheduler: str = "mh") -> ServicePlan:
    """The plan of default/web with these pods, sorted as the catalog sorts them."""
    addresses = sorted(pod(number)[0] for number in pods)
    return plan("web", generation, server("10.96.0.1", 80, *addresses, scheduler=scheduler, flags=0x08))


def moves(*pods: int) -> list[object]:
    return [change for it in pods for change in (DeleteRealServer(WEB, pod(it)), AddRealServer(WEB, pod(it), 1))]


def order(node: FakeNode) -> list[tuple[str, int]]:
    return in_order_of_addition(node.kernel.virtual_servers[WEB].real_servers)


async def serving(tmp_path: Path, *pods: int, scheduler: str = "mh") -> FakeNode:
    """A node that serves default/web; it records the writes from now on."""
    node = await FakeNode(tmp_path).start(web(1, *pods, scheduler=scheduler))
    node.kernel.writes.clear()
    return node


@pytest.mark.parametrize("scheduler", ["mh", "sh"])
async def test_a_newcomer_moves_those_behind_it_and_connections_are_kept_meanwhile(
    tmp_path: Path, scheduler: str
) -> None:
    node = await serving(tmp_path, 1, 3, 5, 7, scheduler=scheduler)
    node.ipvs.set_connections(WEB, pod(5), 4, 2)
    with capture_logs() as logs:
        await node.apply(web(2, 1, 3, 4, 5, 7, scheduler=scheduler))
    ipvs = [it for it in node.kernel.writes if getattr(it, "key", None) == WEB or isinstance(it, Operation)]
    assert ipvs == [OFF, AddRealServer(WEB, pod(4), 1), *moves(5, 7), ON]
    assert order(node) == [pod(it) for it in (1, 3, 4, 5, 7)]
    assert node.kernel.virtual_servers[WEB].real_servers[pod(5)] == RealServerState(1, 4, 2)
    assert node.kernel.sysctls[ENDS_CONNECTIONS] == "1"
    names = [it["event"] for it in logs if it["event"].startswith("real_server")]
    assert names == ["real_server.added", "real_servers.ordered"]
    told = next(it for it in logs if it["event"] == "real_servers.ordered")
    assert (told["service"], told["virtual_server"], told["moved"]) == ("default/web", "TCP 10.96.0.1:80", 2)


async def test_the_last_of_the_plan_comes_without_a_move(tmp_path: Path) -> None:
    node = await serving(tmp_path, 1, 3, 5)
    await node.apply(web(2, 1, 3, 5, 7))
    assert [it for it in node.kernel.writes if getattr(it, "key", None) == WEB] == [AddRealServer(WEB, pod(7), 1)]
    assert OFF not in node.kernel.writes


async def test_one_that_comes_back_while_it_drains_keeps_its_place(tmp_path: Path) -> None:
    node = await serving(tmp_path, 1, 3, 5)
    node.ipvs.set_connections(WEB, pod(1), 1, 0)
    await node.apply(web(2, 3, 5))
    await node.apply(web(3, 1, 3, 5))
    writes = [it for it in node.kernel.writes if getattr(it, "key", None) == WEB]
    assert writes == [SetRealServer(WEB, pod(1), 0), SetRealServer(WEB, pod(1), 1)]


async def test_departures_and_weights_move_none(tmp_path: Path) -> None:
    node = await serving(tmp_path, 1, 3, 5)
    only = server("10.96.0.1", 80, scheduler="mh", flags=0x08)
    reals = tuple(RealServer(*pod(it), weight) for it, weight in ((1, 7), (5, 1)))
    await node.apply(plan("web", 2, VirtualServer(only.key, "mh", 0x08, None, reals)))
    writes = [it for it in node.kernel.writes if getattr(it, "key", None) == WEB]
    assert sorted(map(str, writes)) == sorted(map(str, [SetRealServer(WEB, pod(1), 7), SetRealServer(WEB, pod(3), 0)]))


@pytest.mark.parametrize("scheduler", ["rr", "wlc", "dh"])
async def test_other_schedulers_have_no_order(tmp_path: Path, scheduler: str) -> None:
    node = await serving(tmp_path, 3, 5, scheduler=scheduler)
    await node.apply(web(2, 1, 3, 5, scheduler=scheduler))
    assert [it for it in node.kernel.writes if getattr(it, "key", None) == WEB] == [AddRealServer(WEB, pod(1), 1)]
    node.kernel.writes.clear()
    await node.resync()
    await (node := node.restarted()).start(web(1, 1, 3, 5, scheduler=scheduler))
    assert not node.kernel.writes


async def test_a_service_that_becomes_mh_is_put_in_order(tmp_path: Path) -> None:
    node = await serving(tmp_path, 3, 5, scheduler="rr")
    await node.apply(web(2, 1, 3, 5, scheduler="rr"))
    node.kernel.writes.clear()
    await node.apply(web(3, 1, 3, 5))
    assert node.kernel.writes == [SetVirtualServer(WEB, VirtualServerOptions("mh", 0x08)), OFF, *moves(3, 5), ON]
    assert order(node) == [pod(it) for it in (1, 3, 5)]
    node.kernel.writes.clear()
    await node.apply(web(4, 1, 3, 5, scheduler="rr"))
    await node.apply(web(5, 1, 3, 5))
    assert not any(isinstance(it, AddRealServer) for it in node.kernel.writes)


async def test_a_restart_writes_nothing_if_the_order_is_right(tmp_path: Path) -> None:
    node = await serving(tmp_path, 3, 5)
    await node.apply(web(2, 1, 3, 5, 7))
    await (node := node.restarted()).start(web(1, 1, 3, 5, 7))
    assert node.kernel.writes == []


async def test_drift_of_the_order_is_found_and_put_right(tmp_path: Path) -> None:
    node = await serving(tmp_path, 1, 3, 5)
    await node.ipvs.write(moves(1))
    node.kernel.writes.clear()
    await node.resync()
    assert node.kernel.writes == [OFF, *moves(3, 5), ON]
    assert node.service_proxy.statistics().repairs == 1
    node.kernel.writes.clear()
    await node.resync()
    assert node.kernel.writes == []


async def test_real_servers_that_nobody_may_spare_stay_where_they_are_and_the_service_says_so(tmp_path: Path) -> None:
    """The newcomer waits with them: without the sysctl, connections might end."""
    node = await serving(tmp_path, 1, 5)
    node.kernel.read_only_sysctls.add(ENDS_CONNECTIONS)
    await node.apply(web(2, 1, 3, 5))
    assert order(node) == [pod(1), pod(5)]
    node.kernel.read_only_sysctls.clear()
    await node.wait(60)
    assert order(node) == [pod(1), pod(3), pod(5)]


async def test_an_addition_that_is_refused_is_made_later(tmp_path: Path) -> None:
    node = await serving(tmp_path, 1, 3, 5)
    node.kernel.refuse(lambda change: change == AddRealServer(WEB, pod(5), 1), 12)
    await node.apply(web(2, 1, 2, 3, 5))
    assert pod(5) not in order(node)
    node.kernel.accept_all()
    await node.wait(60)
    assert order(node) == [pod(it) for it in (1, 2, 3, 5)]


async def histories_end_alike(histories: list[list[set[int]]], pods: set[int], directory: Path) -> None:
    orders = []
    for index, history in enumerate(histories):
        node = FakeNode(directory / str(index), new_kernel())
        await node.start()
        for generation, members in enumerate([*history, pods], 1):
            await node.apply(web(generation, *members))
            await node.wait(31)
        orders.append(order(node))
    assert all(it == [pod(number) for number in sorted(pods)] for it in orders)


MEMBERS = st.sets(st.integers(1, 9), min_size=1)


@examples(20)
@given(st.lists(st.lists(MEMBERS, max_size=4), min_size=2, max_size=2), MEMBERS)
def test_any_two_histories_end_in_the_same_order(histories: list[list[set[int]]], pods: set[int]) -> None:
    with tempfile.TemporaryDirectory() as directory:
        asyncio.run(histories_end_alike(histories, pods, Path(directory)))


@examples(200)
@given(st.permutations(list(range(1, 9))), st.sets(st.integers(1, 8)), st.sets(st.integers(1, 8), min_size=1))
def test_the_fewest_at_the_end_move_and_all_stand_in_order(there: list[int], kept: set[int], wanted: set[int]) -> None:
    """`there` lists the newest first. Those that are not moved are a beginning of the plan, in order."""
    listed = {pod(it): RealServerState(1) for it in there if it in kept}
    desired = web(1, *wanted).virtual_servers[0]
    for change in (changes := place(desired, listed)):
        if isinstance(change, AddRealServer):
            assert change.real_server not in listed
            listed = {change.real_server: RealServerState(change.weight), **listed}
        else:
            del listed[change.real_server]
    planned = [pod(it) for it in sorted(wanted)]
    assert [it for it in in_order_of_addition(listed) if it in planned] == planned
    added = [it.real_server for it in changes if isinstance(it, AddRealServer)]
    assert added == planned[len(planned) - len(added) :]
    assert place(desired, listed) == []
