"""The troubles of the day. Each gets the stage, its number, and dice that decide the rest; it ends what it began."""

import asyncio
import contextlib
import random
import time
from collections.abc import Iterator

from tests.lab import objects
from tests.lab.day.stage import Stage, fill
from tests.lab.deployment import SLOWNESS
from tests.lab.firewall import tool
from tests.lab.namespaces import CommandError
from tests.lab.objects import Endpoint, Object

CHURNING = 12
ROLLING = "rolling"
"""The Service whose endpoints change while its victims' connections go on."""
ANNOTATIONS: tuple[dict[str, str], ...] = (
    {},
    {"kroute.io/scheduler": "lc"},
    {"kroute.io/scheduler": "mh", "kroute.io/scheduler-flags": "mh-port"},
    {"kroute.io/scheduler": "fastest"},
    {"kroute.io/slow-start": "30s"},
    {"kroute.io/weights": "zone/zone-node1=3,node/node2=2"},
    {"kroute.io/locality": "prefer-node, spill 80%"},
    {"kroute.io/ejection": "on"},
    {"kroute.io/persistence-timeout": "60", "kroute.io/local": "on"},
    {"kroute.io/wieghts": "\x7f" * 300},
)
DEPRECATED = ("nodad", "preferred_lft", "0")
CONDITIONS: tuple[dict[str, bool], ...] = (
    {},
    {"ready": True},
    {"ready": False},
    {"ready": False, "serving": True, "terminating": True},
)


# ---- kroute ------------------------------------------------------------------------------------------------------


async def kill(stage: Stage, _number: int, dice: random.Random) -> None:
    """Kill an agent or a director, whatever it does at that moment."""
    await stage.kill(dice.choice(stage.mortals))


# ---- objects -----------------------------------------------------------------------------------------------------


async def edit(stage: Stage, _number: int, dice: random.Random) -> None:
    """Change one object."""
    what = dice.random()
    if what < 0.15:
        stage.put(*objects.endpoint_slices(ROLLING, _rolled(stage, dice), ready=True))
    elif what < 0.18:
        item = stage.node_object(stage.node(dice))
        item["spec"]["taints"] = [{"key": "day", "effect": "NoSchedule"}]
        stage.put(item)
    else:
        _churn(stage, dice)


def _rolled(stage: Stage, dice: random.Random) -> list[Endpoint]:
    """Some of the web pods are ready, the others are about to end or left out. All of them go on to serve."""
    ready = set(dice.sample(stage.world.web, dice.randint(1, 3)))
    others = [Endpoint(pod, CONDITIONS[3]) for pod in stage.world.web if pod not in ready and dice.random() < 0.5]
    return [*(Endpoint(pod, CONDITIONS[1]) for pod in stage.world.web if pod in ready), *others]


def _churn(stage: Stage, dice: random.Random) -> None:
    number = dice.randrange(CHURNING)
    name = f"churn-{number}"
    what = dice.random()
    present = [item for item in stage.items.values() if item["metadata"]["name"].startswith(f"{name}-")]
    present += [item for key, item in stage.items.items() if key[2] == name]
    if what < 0.2:
        stage.remove(*present)
    elif what < 0.6:
        stage.put(churning(number, dice))
    else:
        pods = dice.sample([*stage.world.web, *stage.spares], dice.randint(0, 5))
        members = [Endpoint(pod, dice.choice(CONDITIONS)) for pod in pods]
        stage.put(*objects.endpoint_slices(name, members, {"TCP": 8080, "UDP": 5353}))


def churning(number: int, dice: random.Random) -> Object:
    """The Service of a number in one of its many forms; its addresses, its families and its ports stay its own."""
    ips = [(f"10.254.1.{number}",), (f"fd00:10:254::1:{number}",), (f"10.254.1.{number}", f"fd00:10:254::1:{number}")]
    ports = dice.choice([{"TCP": 80}, {"TCP": 80, "UDP": 53}, {"TCP": 81}])
    outside: dict[str, object] = {}
    if dice.random() < 0.5:
        outside["node_ports"] = dict.fromkeys(ports, 31000 + number)
        outside["externalTrafficPolicy"] = dice.choice(["Cluster", "Local"])
    if outside and dice.random() < 0.5:
        outside["ingress"] = [f"203.0.113.{100 + number}", f"2001:db8::{100 + number}"][: dice.randint(1, 2)]
        outside["loadBalancerSourceRanges"] = dice.choice([[], ["192.0.2.0/24", "2001:db8:1::/48"]])
        outside["healthCheckNodePort"] = 32000 + number if outside["externalTrafficPolicy"] == "Local" else 0
    elif outside:
        outside["externalIPs"] = dice.choice([[], [f"203.0.113.{100 + number}"], ["192.168.123.250"]])
    return objects.service(
        f"churn-{number}",
        *ips[number % 3],
        ports=ports,
        annotations=dice.choice(ANNOTATIONS),
        sessionAffinity=dice.choice(["None", "ClientIP"]),
        internalTrafficPolicy=dice.choice(["Cluster", "Local"]),
        **outside,  # type: ignore[arg-type]
    )


# ---- the API server ----------------------------------------------------------------------------------------------


async def outage(stage: Stage, number: int, dice: random.Random) -> None:
    """Have the API server vanish from the wire, refuse every connection, or be slow and faulty."""
    seconds = dice.uniform(2, 20)
    host = stage.control_plane
    if number % 3 == 0:
        stage.cluster.wire.ip(f"link set {host.name} nomaster\n")
        await asyncio.sleep(seconds)
        stage.cluster.wire.ip(f"link set {host.name} master wire\n")
    elif number % 3 == 1:
        rule = ("INPUT", "-i", "eth0", "-p", "tcp", "-j", "REJECT", "--reject-with", "tcp-reset")
        host.run(tool("IPv4"), "-w", "-A", *rule)
        await asyncio.sleep(seconds)
        host.run(tool("IPv4"), "-w", "-D", *rule)
    else:
        for kind in dice.sample(("drop", "truncate", "cut", "stall", "expire"), 3):
            stage.api.fault(kind=kind, where="watch", after=dice.randint(0, 3), times=2)
        stage.api.fault(kind="delay", where="list", seconds=dice.uniform(1, 5), times=6)
        stage.api.fault(kind="answer", where="list", status=dice.choice([429, 500, 503]), retry_after=1, times=3)
        await asyncio.sleep(seconds)


# ---- the network -------------------------------------------------------------------------------------------------


async def link(stage: Stage, number: int, dice: random.Random) -> None:
    """Cut a node or a director off for a moment, have a pod's link flap, or an interface appear and disappear."""
    node = stage.node(dice)
    if number % 3 == 0:
        name = dice.choice([node.name, *(machine.name for machine in stage.directors)])
        stage.cluster.wire.ip(f"link set {name} nomaster\n")
        await asyncio.sleep(dice.uniform(0.05, 0.5))
        stage.cluster.wire.ip(f"link set {name} master wire\n")
    elif number % 3 == 1:
        pod = dice.choice(stage.spares)
        for _ in range(dice.randint(1, 5)):
            pod.node.namespace.ip(f"link set {pod.interface} down\n")
            await asyncio.sleep(dice.uniform(0, 0.3))
            pod.node.namespace.ip(f"link set {pod.interface} up\n")
    else:
        node.namespace.ip("link add day0 type dummy\naddress add 192.0.2.77/32 dev day0\nlink set day0 up\n")
        for _ in range(dice.randint(0, 5)):
            node.namespace.ip("link set day0 down\n")
            await asyncio.sleep(dice.uniform(0, 0.3))
            node.namespace.ip("link set day0 up\n")
        node.namespace.ip("link delete day0\n")


async def address(stage: Stage, _number: int, dice: random.Random) -> None:
    """Add an address to a node, or delete it if it is there.

    As keepalived adds it: without a preferred lifetime, or an IPv6 kernel masquerades with the newest address, from
    which other nodes need not have a way back.
    """
    node = stage.node(dice)
    last = dice.randint(1, 4)
    text = dice.choice([f"192.168.77.{last}/32", f"fd00:192:168:77::{last}/128"])
    try:
        node.run("ip", "address", "add", text, "dev", "eth0", *(DEPRECATED if ":" in text else ()))
    except CommandError:
        node.run("ip", "address", "del", text, "dev", "eth0")


def delete_addresses(stage: Stage) -> None:
    """Delete the addresses that the day has added."""
    for node in stage.world.nodes:
        for text in (*(f"192.168.77.{n}/32" for n in range(1, 5)), *(f"fd00:192:168:77::{n}/128" for n in range(1, 5))):
            with contextlib.suppress(CommandError):
                node.run("ip", "address", "del", text, "dev", "eth0")


# ---- the machine -------------------------------------------------------------------------------------------------


async def disk(stage: Stage, _number: int, dice: random.Random) -> None:
    """Fill a state directory's disk for some seconds."""
    filler = fill(dice.choice(stage.state_dirs))
    await asyncio.sleep(dice.uniform(1, 8))
    filler.unlink()


async def clock(_stage: Stage, _number: int, dice: random.Random) -> None:
    """Have the clock of the machine jump. On a host's own kernel, whose clock others read too, it stays."""
    jump = dice.choice([-86_400, -3600, -30, -1, 1, 30, 3600, 86_400])
    if SLOWNESS > 1:
        time.clock_settime(time.CLOCK_REALTIME, time.time() + jump)


@contextlib.contextmanager
def right_time() -> Iterator[None]:
    """Set the clock right at the end of a `with`."""
    ahead = time.time() - time.monotonic()
    try:
        yield
    finally:
        if SLOWNESS > 1:
            time.clock_settime(time.CLOCK_REALTIME, time.monotonic() + ahead)
