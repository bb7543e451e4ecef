"""The order in which service_proxy writes."""

from pathlib import Path

from kroute.controllers.service_proxy.controller import ServiceProxy
from kroute.reconcile.stage_gate import EARLIER_RUN, WITHDRAWN
from tests.unit.fake_node import FakeNode, node_plan, plan, server


def test_every_step_comes_after_those_that_it_names() -> None:
    steps = [step.take for step in ServiceProxy.WRITE_ORDER]
    for number, step in enumerate(ServiceProxy.WRITE_ORDER):
        assert set(step.after) <= set(steps[:number]), step.why


def test_no_step_is_taken_twice() -> None:
    steps = [step.take for step in ServiceProxy.WRITE_ORDER]
    assert len(set(steps)) == len(steps)


async def test_what_an_earlier_run_left_is_withdrawn_in_the_pass_that_finds_all_services_live(tmp_path: Path) -> None:
    web = plan("web", 1, server("10.96.0.1", 80, "10.1.0.1"))
    node = await FakeNode(tmp_path).start(web, plan("old", 1, server("10.96.0.2", 80, "10.1.0.2")))
    node = node.restarted()
    await node.open()
    node.broadcaster.publish([node_plan(), web])
    while not node.service_proxy.live.is_set():
        for controller in node.controllers:
            await controller.step()
    assert node.stage_gate.has_passed(EARLIER_RUN, WITHDRAWN)
