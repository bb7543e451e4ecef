"""The order in which service_proxy writes."""

from kroute.controllers.service_proxy.controller import ServiceProxy


def test_every_step_comes_after_those_that_it_names() -> None:
    steps = [step.take for step in ServiceProxy.WRITE_ORDER]
    for number, step in enumerate(ServiceProxy.WRITE_ORDER):
        assert set(step.after) <= set(steps[:number]), step.why


def test_no_step_is_taken_twice() -> None:
    steps = [step.take for step in ServiceProxy.WRITE_ORDER]
    assert len(set(steps)) == len(steps)
