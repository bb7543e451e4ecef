"""Calls that clients outside lose, counted, while nodes that two routers divide them over leave, end and come back.

Both routers are ordinary ones (tests/lab/routers.py). Calls and open connections of both address families go through
each. docs/routing.md has the figures.
"""

import base64
import json
import signal
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from tests import releases
from tests.lab.deployment import eventually
from tests.lab.load import Load
from tests.lab.objects import endpoint_slices
from tests.lab.routers import ROUTER_AS, BirdProcess
from tests.lab.topology import NODES
from tests.scenarios.router_stage import (
    CALLS_PER_SECOND,
    CORDONED,
    DIRECT,
    PLACES,
    PLAIN,
    PORT,
    TO_ROUTERS,
    TO_ROUTERS_OVER_IPV6,
    Stage,
    go_on,
    plain,
    reached,
    stage,
)

PREVIOUS = "0.1.0"
PASSWORD = "a-secret-of-2"

Record = Callable[[str, object], None]


async def test_no_call_is_lost_while_kroute_and_bird_are_restarted_killed_and_upgraded(
    tmp_path: Path, record_property: Record
) -> None:
    """Routers change nothing, so no open connection ends, either: another next hop would cost half of them.

    0.1.0 knows nothing of BIRD, and says nothing to it. Nodes and routers speak over IPv6.
    """
    of_previous = releases.environment(PREVIOUS, tmp_path / "releases")
    async with stage(tmp_path, *TO_ROUTERS_OVER_IPV6) as here, here.load(PLAIN) as load:
        await eventually(partial(here.has_settled, load), within=60)
        streams = await here.streams(PLAIN)
        agents, speaker = here.deployment.agents, here.speakers["node1"]
        assert await agents["node1"].terminate() == 0
        await go_on(load, *streams)
        await here.start("node1")
        assert await agents["node1"].kill() == -9
        await go_on(load, *streams)
        for environment in (of_previous, None):
            await here.start("node1", environment)
            await go_on(load, *streams)
            assert await agents["node1"].terminate() == 0
        await here.start("node1")
        for end in (speaker.kill, speaker.leave):
            end()
            await go_on(load, *streams)
            speaker.start()
            await eventually(lambda: here.is_established("node1", *here.routers), within=60)
            await eventually(partial(has_recovered, speaker), within=60)
            await go_on(load, *streams)
        await here.knows(*NODES)
        record_property("measured", f"restarts: {counted(load)}; {len(streams)} open connections went on")
        assert load.failures == []


async def test_a_drained_node_costs_no_call_and_no_connection_that_pods_answer_themselves(
    tmp_path: Path, record_property: Record
) -> None:
    """The other nodes have never seen these connections: the client's hash leads each to its pod, which goes on.

    A BIRD that withdraws all by SIGTERM moves connections, too.
    """
    async with stage(tmp_path, *TO_ROUTERS) as here, here.load(DIRECT) as load:
        masqueraded, direct = await here.streams(PLAIN), await here.streams(DIRECT)
        assert reached(here.cluster.node("node1"), *here.clients.values()), "no connection is there to be moved"
        await go_on(load, *masqueraded, *direct)
        async with here.load(PLAIN) as others:
            await others.goes_on(CALLS_PER_SECOND)
            here.change("node1", CORDONED)
            await here.knows("node2", "node3")
            taken_off = time.monotonic()
            await go_on(load, *direct)
            await go_on(others)
        assert all(began < taken_off for began in others.lost)
        here.change("node1")
        await here.knows(*NODES)
        await go_on(load, *direct)
        assert await here.deployment.agents["node1"].terminate() == 0
        await here.clean_up("node1")
        await here.knows("node2", "node3")
        await go_on(load, *direct)
        await here.start("node1")
        await here.knows(*NODES)
        await go_on(load, *direct)
        here.speakers["node3"].kill(signal.SIGTERM)
        await here.knows("node1", "node2")
        await go_on(load, *direct)
        here.speakers["node3"].start()
        await here.knows(*NODES)
        await go_on(load, *direct)
        ended = sum(stream.failure is not None for stream in masqueraded)
        measured = f"drain: {counted(others)}; of {len(masqueraded)} open connections {ended} ended"
        record_property("measured", f"{measured}; with direct return {counted(load)}, of {len(direct)} none ended")
        assert load.failures == []


async def test_a_node_without_power_or_with_a_hung_bird_costs_calls_until_bfd_finds_it(
    tmp_path: Path, record_property: Record
) -> None:
    """The hold time of 90 s has no part in it, nor has graceful restart, and sessions have passwords."""
    passwords = tmp_path / "passwords"
    passwords.mkdir()
    for place in PLACES.values():
        (passwords / place.ip).write_text(f"{PASSWORD}\n")
    flags = (*TO_ROUTERS, "--bfd", "--bfd-multiplier", "5", "--peer-passwords", str(passwords))
    async with stage(tmp_path, *flags, bfd=True, password=PASSWORD) as here, here.load(DIRECT) as load:
        for name in NODES:
            await eventually(partial(has_bfd, here, name), within=60)
        direct = await here.streams(DIRECT)
        await go_on(load, *direct)
        here.speakers["node2"].pause()
        await here.knows("node1", "node3")
        await go_on(load, *direct)
        here.speakers["node2"].resume()
        await here.knows(*NODES)
        await go_on(load, *direct)
        assert load.failures == [], "the node has served on"
        async with here.load(PLAIN) as masqueraded:
            await masqueraded.goes_on(CALLS_PER_SECOND)
            here.switch_off("node1")
            off = time.monotonic()
            await here.knows("node2", "node3")
            found = time.monotonic()
            await go_on(load, *direct)
            await go_on(masqueraded)
        lost = load.lost.copy()
        assert all(began < found for began in (*lost, *masqueraded.lost))
        await here.switch_on("node1")
        await here.knows(*NODES)
        await go_on(load, *direct)
        assert load.lost == lost
        measured = f"a node without power was found after {found - off:.1f} s: {counted(masqueraded)}"
        record_property("measured", f"{measured}; with direct return {counted(load)}")


async def test_a_route_reflector_passes_on_to_routers_what_other_nodes_announce(tmp_path: Path) -> None:
    """Routers speak with node1 alone, and send packets to the node that serves. A wrong password ends a session."""
    async with stage(tmp_path, password=PASSWORD, is_known=False) as here:
        [pod] = here.cluster.node("node2").pods
        here.deployment.apply(plain(externalTrafficPolicy="Local"), *endpoint_slices("plain", [pod]))
        for name in ("node2", "node3"):
            here.change(name, rr_client="1")
        here.change("node1", rr_server="1", peers=peers(BIRD=PASSWORD, FRR=PASSWORD))
        await here.knows("node2", addresses=PLAIN)
        for client in here.clients.values():
            assert {(await client.http(address, PORT)).host for address in PLAIN} == {pod.name}
        here.change("node1", rr_server="1", peers=peers(BIRD=PASSWORD, FRR="another"))
        await eventually(partial(here.is_established, "node1", "BIRD"), within=60)
        here.change("node1", rr_server="1", peers=peers(BIRD=PASSWORD, FRR=PASSWORD))
        await eventually(partial(here.is_established, "node1", "BIRD", "FRR"), within=60)


def peers(**passwords: str) -> str:
    """The annotation that makes these routers peers."""
    encoded = {name: base64.b64encode(password.encode()).decode() for name, password in passwords.items()}
    return json.dumps(
        [{"remoteip": PLACES[name].ip, "remoteasn": ROUTER_AS, "password": it} for name, it in encoded.items()]
    )


def counted(load: Load) -> str:
    return f"{load.calls.total()} calls answered, {len(load.lost)} lost"


def has_recovered(speaker: BirdProcess) -> None:
    assert speaker.has_recovered()


async def has_bfd(here: Stage, name: str) -> None:
    assert await here.sessions(name) == dict.fromkeys(PLACES, ("Established", "Up"))
