"""A controller is added to the others; this one announces VIPs."""

import errno
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

from kroute.kernel.net.routes import SetLocalRoute
from kroute.model.plan import ServicePlan
from kroute.reconcile.controller import Shared
from kroute.reconcile.desired_state import Delta, DesiredState
from kroute.reconcile.stage_gate import GOING_LIVE, ROUTES_PREPARED, WITHDRAWN, Stage
from kroute.reconcile.staged_controller import StagedController
from tests.unit.fake_node import FakeNode, plan, server

ANNOUNCED = Stage("announced")
"""The stage of `advertiser`: routers know the plan's VIPs."""

Present = Literal[True]


class Advertiser(StagedController[str, Present]):
    """Announces a VIP when its route exists, until the VIP is withdrawn."""

    name = "advertiser"
    stage = ANNOUNCED
    waits_for = (ROUTES_PREPARED, WITHDRAWN)

    def __init__(self, shared: Shared) -> None:
        super().__init__(shared, DesiredState())
        self.announced: set[str] = set()
        self.refused: set[str] = set()
        self.looks = 0

    def wanted_by(self, plan: ServicePlan) -> Mapping[str, Present]:
        return {vip.address: True for vip in plan.vips}

    def may_write(self, delta: Delta[str, Present]) -> bool:
        self.looks += 1
        owners = self.desired.owners(delta.key)
        return super().may_write(delta) and (
            not owners or any(self.gate.has_passed(self.plans[owner], ROUTES_PREPARED) for owner in owners)
        )

    async def apply(self, deltas: Sequence[Delta[str, Present]]) -> Mapping[str, str]:
        for delta in deltas:
            if delta.desired and delta.key not in self.refused:
                self.announced.add(delta.key)
            else:
                self.announced.discard(delta.key)
        return {delta.key: "no session" for delta in deltas if delta.key in self.refused}

    def event_of(self, delta: Delta[str, Present]) -> str:
        return "vip.announced" if delta.desired else "vip.unannounced"

    def fields_of(self, delta: Delta[str, Present]) -> dict[str, object]:
        return {"vip": delta.key}

    async def read(self) -> Sequence[str]:
        return ()


def with_advertiser(tmp_path: Path) -> tuple[FakeNode, Advertiser]:
    node = FakeNode(tmp_path)
    advertiser = Advertiser(Shared(node.settings, node.broadcaster, lambda *_: None, node.clock, node.stage_gate))
    node.controllers.append(advertiser)
    return node, advertiser


WEB = plan("web", 1, server("10.96.0.1", 80, "10.1.0.1"))
GONE = plan("web", 2)


async def test_it_says_its_stage_and_follows_those_of_the_others(tmp_path: Path) -> None:
    node, advertiser = with_advertiser(tmp_path)
    await node.start(WEB)
    assert advertiser.announced == {"10.96.0.1"}
    assert node.stage_gate.has_passed(WEB, *GOING_LIVE, ANNOUNCED)
    node.broadcaster.publish([GONE])
    await node.settle()
    assert advertiser.announced == set()
    assert not node.stage_gate.has_passed(GONE, ANNOUNCED), "the gone Service is not forgotten"


async def test_while_it_fails_the_others_serve_and_tear_down_as_ever(tmp_path: Path) -> None:
    node, advertiser = with_advertiser(tmp_path)
    advertiser.refused.add("10.96.0.1")
    await node.start(WEB)
    assert node.kernel.has_address("10.96.0.1")
    assert node.stage_gate.has_passed(WEB, *GOING_LIVE)
    assert not node.stage_gate.has_passed(WEB, ANNOUNCED)
    node.broadcaster.publish([GONE])
    await node.settle()
    assert not node.kernel.has_address("10.96.0.1")


async def test_what_waits_is_looked_at_again_when_something_has_changed_for_it(tmp_path: Path) -> None:
    node, advertiser = with_advertiser(tmp_path)
    node.kernel.refuse(lambda change: isinstance(change, SetLocalRoute), errno.ENOBUFS)
    await node.start(WEB)
    looks = advertiser.looks
    assert looks > 0
    await advertiser.step()
    await advertiser.step()
    assert advertiser.looks == looks, "no stage was passed that it waits for, and nothing of its own has changed"
    node.kernel.accept_all()
    await node.wait(1.0)
    assert advertiser.announced == {"10.96.0.1"}
    assert advertiser.looks > looks


async def test_what_was_refused_is_looked_at_whenever_it_is_due(tmp_path: Path) -> None:
    node, advertiser = with_advertiser(tmp_path)
    advertiser.refused.add("10.96.0.1")
    await node.start(WEB)
    advertiser.refused.clear()
    await node.wait(1.0)
    assert advertiser.announced == {"10.96.0.1"}
