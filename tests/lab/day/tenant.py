"""A hostile tenant: who may write Services and run pods, and does both to hurt others.

Each input takes the stage and dice, and removes what it has made. What it has achieved and must not is added to the
stage's `wrongs`.
"""

import asyncio
import contextlib
import random
import socket
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path

from tests.lab import objects
from tests.lab.calls import PATIENCE
from tests.lab.cluster import Node
from tests.lab.day.stage import WITNESS, Stage
from tests.lab.deployment import SLOWNESS, eventually
from tests.lab.hosts import Host
from tests.lab.objects import Object, port
from tests.lab.stray_packets import segment

NAME = "attacker"
HEALTH, METRICS = 10256, 10249
BALANCED = "203.0.113.66"
FORGED = 40
"""Odd packets, each beside two good calls: within ten seconds, 27 of them have been enough for an ejection."""
_SYN, _FIN, _ACK = 0x02, 0x01, 0x10
COUNTED_WITHIN = 5
"""Seconds. The kernel sums the counts of a virtual server up every two seconds."""
ODD_FLAGS = (_SYN | _FIN, _SYN | _ACK)


def _service(**what: object) -> Object:
    return objects.service(NAME, "10.254.6.6", **what)  # type: ignore[arg-type]


async def _held(stage: Stage, dice: random.Random, *items: Object) -> None:
    """Have the objects for some seconds, and change one of them meanwhile."""
    stage.put(*items)
    await asyncio.sleep(dice.uniform(1, 4))
    first = items[0]
    annotations = {**first["metadata"].get("annotations", {}), "changed": "yes"}
    stage.put({**first, "metadata": {**first["metadata"], "annotations": annotations}})
    await asyncio.sleep(dice.uniform(1, 4))
    stage.remove(*items)


async def many_ports_for_a_director(stage: Stage, dice: random.Random) -> None:
    ports = [port(f"p{number}", 1000 + number) for number in range(1000)]
    item = _service(ports=ports, externalIPs=["192.168.123.210"])
    await _held(stage, dice, item, *objects.endpoint_slices(NAME, stage.world.web[:1], ports))


async def weights_and_locality(stage: Stage, dice: random.Random) -> None:
    ports = [port(f"p{number}", 1000 + number) for number in range(500)]
    weights = ",".join(f"node/n{number}={dice.randint(1, 65535)}" for number in range(900))
    annotations = {"kroute.io/locality": "prefer-node, spill 97%", "kroute.io/weights": weights}
    annotations |= {"kroute.io/scheduler": "wrr"}
    pods = [*stage.world.web, *stage.spares]
    await _held(
        stage, dice, _service(ports=ports, annotations=annotations), *objects.endpoint_slices(NAME, pods, ports)
    )


async def ports_times_ranges(stage: Stage, dice: random.Random) -> None:
    ports = [port(f"p{number}", 1000 + number) for number in range(50)]
    ranges = [f"{20 + (n >> 13)}.{(n >> 5) & 255}.{(n & 31) * 8}.0/24" for n in range(1000)]
    item = _service(ports=ports, ingress=[BALANCED], loadBalancerSourceRanges=ranges)
    await _held(stage, dice, item, *objects.endpoint_slices(NAME, stage.world.web, ports))


async def odd_flags_past_source_ranges(stage: Stage, _dice: random.Random) -> None:
    """Nothing of a client outside the ranges may reach IPVS."""
    client, node = stage.cluster.client, stage.cluster.node(WITNESS)
    stage.put(_service(ingress=[BALANCED], loadBalancerSourceRanges=["192.0.2.0/24"]))
    stage.put(*objects.endpoint_slices(NAME, stage.world.web))
    key = f"{BALANCED}:8080"
    try:
        await eventually(lambda: _is_live(node, BALANCED), within=60)
        client.run("ip", "route", "replace", BALANCED, "via", node.ip)
        _send(client, client.ip, BALANCED, ODD_FLAGS, 5)
        await asyncio.sleep(COUNTED_WITHIN)
        if passed := sum(map(int, _statistics(node, key))):
            stage.wrongs.append(f"{passed} packets and connections with odd flags passed the source ranges")
    finally:
        client.run("ip", "route", "flush", BALANCED)
        stage.remove(*_own(stage))


async def forged_evidence_for_an_ejection(stage: Stage, dice: random.Random) -> None:
    """Nobody may eject the healthy endpoints of others, with packets that IPVS counts and no endpoint sees."""
    visitor, node = stage.world.visitor, stage.cluster.node("node1")
    vip = "10.254.0.12"
    for number in range(FORGED):
        first_port = 20_000 + 100 * dice.randint(0, 99) + number
        _send(visitor, visitor.ip, vip, (dice.choice((_SYN, *ODD_FLAGS)),), 1, first_port, ttl=1)
        for _ in range(2):
            with contextlib.suppress(OSError):
                await visitor.http(vip, 8080)
        await asyncio.sleep(0.3)
    row = node.ipvs().get(f"TCP {vip}:8080")
    if row and not all(server.weight for server in row.real_servers.values()):
        stage.wrongs.append(f"a client has ejected a healthy endpoint: {row}")


async def crowd_at_the_health_port(stage: Stage, _dice: random.Random) -> None:
    """The kubelet's probe is answered."""
    node = stage.cluster.node(WITNESS)
    checks = [(f"{NAME}-{number}", 32_500 + number) for number in range(20)]
    for number, (name, check) in enumerate(checks):
        stage.put(objects.service(name, f"10.254.7.{number}", ingress=[f"203.0.113.{150 + number}"],
                                  externalTrafficPolicy="Local", healthCheckNodePort=check))  # fmt: skip
    crowd = [asyncio.create_task(_knock(stage.cluster.client, node.ip, HEALTH))]
    crowd += [asyncio.create_task(_knock(stage.cluster.client, node.ip, check)) for _, check in checks]
    try:
        refused = [await _refuses(node) for _ in range(6)]
        if all(refused):
            stage.wrongs.append(f"the kubelet was refused six times at the health port: {refused[-1]}")
    finally:
        for one in crowd:
            one.cancel()
        await asyncio.gather(*crowd, return_exceptions=True)
        stage.remove(*_own(stage))


async def flood_of_scrapes(stage: Stage, _dice: random.Random) -> None:
    node = stage.cluster.node(WITNESS)
    asked = (node.http_status("127.0.0.1", METRICS, "/metrics", timeout=10) for _ in range(240))
    await asyncio.gather(*asked, return_exceptions=True)


async def edits_of_a_udp_service(stage: Stage, _dice: random.Random) -> None:
    item = _service(ports={"UDP": 53})
    for number in range(20):
        stage.put(item, *objects.endpoint_slices(NAME, stage.world.web[number % 2 :][:1], {"UDP": 5353}))
    stage.remove(*_own(stage))


async def deep_objects(stage: Stage, _dice: random.Random) -> None:
    item = _service()
    stage.put(item)
    for levels in (1200, 5000, 9990):
        stage.api.store_deep(item, levels)
        await asyncio.sleep(0.3)
    stage.remove(item)


async def text_for_the_bundle(stage: Stage, dice: random.Random) -> None:
    """A bundle is made, whatever an annotation says."""
    text = "client-" * 2300 + "eyJ-" * 4000 + "-----BEGIN A-----"
    stage.put(_service(annotations={"kroute.io/weights": text}))
    node = stage.cluster.node(WITNESS)
    process = await node.kroute("bundle", "--file", str(node.state_dir.parent / f"bundle-{dice.random()}.tar.gz"))
    if code := await process.wait():
        stage.wrongs.append(f"kroute bundle ended with {code}:\n{process.tail(5)}")
    node.processes.remove(process)
    stage.remove(*_own(stage))


async def many_climbs(stage: Stage, dice: random.Random) -> None:
    ports = [port(f"p{number}", 1000 + number) for number in range(400)]
    item = _service(ports=ports, annotations={"kroute.io/slow-start": "30s"})
    await _held(stage, dice, item, *objects.endpoint_slices(NAME, [*stage.world.web, *stage.spares], ports))


async def tidied_state_directory(stage: Stage, _dice: random.Random) -> None:
    """Somebody tidies /run: the agent makes its socket again."""
    socket_of_agent = stage.cluster.node(WITNESS).state_dir / "agent.sock"
    socket_of_agent.unlink(missing_ok=True)
    try:
        await eventually(partial(_exists, socket_of_agent), within=20)
    except AssertionError as error:
        stage.wrongs.append(f"the agent's socket is not made again: {error}")


def _exists(path: Path) -> None:
    assert path.exists(), path


INPUTS: dict[str, Callable[[Stage, random.Random], Awaitable[None]]] = {
    "ports-for-a-director": many_ports_for_a_director,
    "weights": weights_and_locality,
    "source-ranges": ports_times_ranges,
    "odd-flags": odd_flags_past_source_ranges,
    "forged-evidence": forged_evidence_for_an_ejection,
    "health-port": crowd_at_the_health_port,
    "scrapes": flood_of_scrapes,
    "udp-edits": edits_of_a_udp_service,
    "deep-objects": deep_objects,
    "bundle": text_for_the_bundle,
    "tidied-directory": tidied_state_directory,
    "climbs": many_climbs,
}


def _is_live(node: Node, address: str) -> None:
    assert f"TCP {address}:8080" in node.ipvs()
    assert f"{address}/32" in node.addresses("kube-ipvs0")


def _own(stage: Stage) -> list[Object]:
    return [item for key, item in stage.items.items() if key[2].startswith(NAME)]


def _send(
    host: Host, source: str, vip: str, flags: tuple[int, ...], count: int, first_port: int = 43_000, ttl: int = 64
) -> None:
    with host.namespace.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_TCP) as raw:
        raw.bind((source, 0))
        raw.setsockopt(socket.IPPROTO_IP, socket.IP_TTL, ttl)
        for number in range(count):
            for one in flags:
                raw.sendto(segment(((source, first_port + 100 * one + number), (vip, 8080)), one), (vip, 0))


def _statistics(node: Node, key: str) -> list[str]:
    """Connections, and packets in and out, of a virtual server."""
    lines = node.run("ipvsadm", "-Ln", "--stats", "--exact", "-t", key).splitlines()
    [line] = [line for line in lines if line.startswith("TCP")]
    return line.split()[2:5]


async def _knock(host: Host, address: str, number: int) -> None:
    """Connect again and again, each time from another port, and say nothing."""
    while True:
        with contextlib.suppress(OSError):
            await host.traffic.run(_connect(host, address, number))


async def _connect(host: Host, address: str, number: int) -> None:
    with contextlib.ExitStack() as stack:
        for _ in range(25):
            made = stack.enter_context(host.namespace.socket(socket.AF_INET, socket.SOCK_STREAM))
            with contextlib.suppress(BlockingIOError):
                made.connect((address, number))
        await asyncio.sleep(0.2)


async def _refuses(node: Node) -> str:
    """Why the probe of the kubelet failed; "" if it was answered."""
    try:
        status = await node.http_status("127.0.0.1", HEALTH, "/livez", timeout=PATIENCE * SLOWNESS)
    except OSError as error:
        return repr(error)
    return "" if status == 200 else str(status)
