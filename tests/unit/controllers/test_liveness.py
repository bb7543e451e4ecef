"""What makes kroute report itself unhealthy, and what does not."""

from pathlib import Path

import msgspec
import pytest

from kroute.controllers.node_controllers import complaints
from kroute.kernel.errors import KernelError
from kroute.reconcile.broadcaster import QueueStatistics
from kroute.reconcile.pass_status import ControllerStatistics
from tests.unit.fake_node import FakeNode, node_plan, plan, server

LIMIT = 60.0


def queue(depth: int, lag: float) -> QueueStatistics:
    return QueueStatistics("service_proxy", depth, lag)


@pytest.mark.parametrize(
    ("queues", "controllers", "said"),
    [
        pytest.param([], {}, [], id="nothing to say"),
        pytest.param([queue(3, 59)], {}, [], id="plans wait, and are not late"),
        pytest.param([queue(3, 61)], {}, ["3 plans wait for service_proxy, the oldest for 61 s"], id="late"),
        pytest.param([], {"masquerade": ControllerStatistics(failing_for=5, last_error="no")}, [], id="fails lately"),
        pytest.param(
            [],
            {"masquerade": ControllerStatistics(failing_for=75, last_error="the lock is held")},
            ["masquerade has failed for 75 s: the lock is held"],
            id="keeps failing",
        ),
        pytest.param(
            [],
            {"route_fix": ControllerStatistics(busy_for=90)},
            ["route_fix has been at one pass for 90 s"],
            id="stuck",
        ),
        pytest.param([], {"service_proxy": ControllerStatistics(failures=1000, waiting=17)}, [], id="single refusals"),
    ],
)
def test_what_is_complained_of(
    queues: list[QueueStatistics], controllers: dict[str, ControllerStatistics], said: list[str]
) -> None:
    assert complaints(queues, controllers, LIMIT) == said


async def test_a_controller_fails_from_its_first_failed_pass_until_one_succeeds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = FakeNode(tmp_path)
    await node.start(plan("web", 1, server("10.96.0.1", 80, "10.1.0.1")))
    controller = node.service_proxy
    assert controller.statistics().failing_for == 0

    async def refuse() -> None:
        raise KernelError("the kernel says no", errno=1)

    with monkeypatch.context() as broken:
        broken.setattr(controller, "write", refuse)
        for _ in range(3):
            node.clock.now += 40
            await controller.step()
    failing = controller.statistics()
    assert (failing.failing_for, failing.last_error, failing.denied) == (80, "the kernel says no", 3)
    assert complaints([], {"service_proxy": failing}, LIMIT)
    node.clock.now += 40
    await controller.step()
    recovered = controller.statistics()
    assert (recovered.failing_for, recovered.last_error) == (0, "")
    assert recovered.last_success > 0


async def test_a_pass_that_does_not_end_is_seen_from_outside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    node = FakeNode(tmp_path)
    await node.start(node_plan())
    controller = node.route_fix
    seen: list[ControllerStatistics] = []

    async def take_long() -> None:
        node.clock.now += 100
        seen.append(msgspec.structs.replace(controller.statistics()))

    monkeypatch.setattr(controller, "write", take_long)
    await controller.step()
    assert seen[0].busy_for == 100
    assert controller.statistics().busy_for == 0
