"""A rolling update under load, with its numbers: how many calls, how many failed, which version answered.

The slices change as with the EndpointSlice controller: a new pod is ready when it serves, and only then an old one
begins to terminate. It still answers for its grace period; then it leaves its slice and stops. Real pods have 30 s.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress

from tests.demo.screen import command, say
from tests.demo.terminal import Terminal
from tests.lab import objects
from tests.lab.api_server import ApiServer
from tests.lab.cluster import Cluster, Node, Pod
from tests.lab.load import Load, Way, constant_load

REPLICAS = 6
GRACE, LONGEST_GRACE = 1.5, 30.0
"""Seconds for which a terminating pod still answers: the shorter, unless this machine is so busy that an agent has not
heard of it by then. 30 s is what Kubernetes gives a pod by default."""
PACE = 0.05
INTERVAL = 2.0
"""Seconds between two reports, and between two of `kroute show -w`."""
LONGEST = 300.0
"""Seconds after which the update has failed: each of its three steps takes `LONGEST_GRACE` at most."""
READY = {"ready": True, "serving": True, "terminating": False}
TERMINATING = {"ready": False, "serving": True, "terminating": True}


class Deployment:
    """The pods of the Service and their slices. A pod is called after its version: `web-v1-2`."""

    def __init__(self, cluster: Cluster, target_ports: dict[str, int]) -> None:
        self._nodes = list(cluster.nodes.values())
        self._target_ports = target_ports
        self.pods: dict[Pod, dict[str, bool]] = {}

    async def add(self, version: str, number: int) -> Pod:
        """Start a pod, and return it when it serves."""
        node = self._nodes[number % len(self._nodes)]
        pod = await node.pod(f"web-{version}-{number + 1}", http=self._target_ports["TCP"])
        self.pods[pod] = READY
        return pod

    def slices(self) -> list[objects.Object]:
        """The slices of the pods as they are now."""
        endpoints = [objects.Endpoint(pod, conditions) for pod, conditions in self.pods.items()]
        return objects.endpoint_slices("web", endpoints, self._target_ports)

    async def replace(self, old: Pod, api: ApiServer, number: int) -> None:
        """Add a pod of the new version, then terminate an old one."""
        await self.add("v2", number)
        self.pods[old] = TERMINATING
        self._publish(api)
        await self._grace_of(old)
        del self.pods[old]
        self._publish(api)
        await old.stop_serving()
        old.node.remove_pod(old)

    async def _grace_of(self, old: Pod) -> None:
        """Wait for the pod's grace period."""
        end = time.monotonic() + LONGEST_GRACE
        await asyncio.sleep(GRACE)
        # The kernel announces no changes of weights.
        while time.monotonic() < end and any(_gives_weight(node, old) for node in self._nodes):  # noqa: ASYNC110
            await asyncio.sleep(PACE)

    def _publish(self, api: ApiServer) -> None:
        for made in self.slices():
            api.apply(made)


def _gives_weight(node: Node, pod: Pod) -> bool:
    """Whether the node's kernel may send new connections to the pod."""
    addresses = (f"{pod.ip}:", f"[{pod.ip6}]:")
    return any(
        real.weight > 0 and name.startswith(addresses)
        for server in node.ipvs().values()
        for name, real in server.real_servers.items()
    )


class Report:
    """The numbers of a load, said every `INTERVAL` seconds, with what `kroute show -w` says meanwhile."""

    def __init__(self, load: Load, watch: Terminal) -> None:
        self._load = load
        self._watch = watch
        self._began = time.monotonic()

    async def keep_reporting(self) -> None:
        """Report until cancelled."""
        while True:
            await asyncio.sleep(INTERVAL)
            self.say()

    def say(self) -> None:
        """Print what `kroute show -w` has printed since the last time, and a line of numbers."""
        say(self._watch.read())
        seconds = time.monotonic() - self._began
        versions = ", ".join(f"{name}: {count}" for name, count in sorted(by_version(self._load).items()))
        calls = self._load.calls.total()
        say(f"--> {seconds:4.1f} s: {calls} calls, {len(self._load.failures)} failed; answered by {versions}")


def by_version(load: Load) -> Counter[str]:
    """How many calls each version has answered."""
    found: Counter[str] = Counter()
    for host, count in load.answered.items():
        found[host.split("-")[1]] += count
    return found


def verdict(load: Load, seconds: float) -> bool:
    """Say how many calls there were and how many failed; return whether none did."""
    calls = load.calls.total()
    say(f"{calls} calls in {seconds:.1f} s ({calls / seconds:.0f} a second), {len(load.failures)} failed.")
    for failure in load.failures[:3]:
        say(f"failed: {failure}")
    return calls > 0 and not load.failures


async def _hear_from_everybody(everybody_answered: Callable[[Load], bool], load: Load) -> None:
    while not everybody_answered(load):  # noqa: ASYNC110  nothing signals that a pod was asked
        await asyncio.sleep(0.1)


async def rolling_update(
    ways: Sequence[Way],
    node: Node,
    replace_all: Callable[[], Awaitable[object]],
    everybody_answered: Callable[[Load], bool],
) -> bool:
    """Call on all `ways` while every pod is replaced, and report; return whether no call failed.

    It begins and ends when each pod of that moment has answered, so it shows as much in a machine that is slow.
    """
    command("kroute show -w", "   (on node2, meanwhile)")
    began = time.monotonic()
    with Terminal.opened() as terminal:
        watch = await terminal.kroute(node, "show", "-w", "--interval", f"{INTERVAL:.0f}s")
        async with constant_load(ways, pace=PACE) as load:
            reporting = asyncio.create_task(Report(load, terminal).keep_reporting())
            async with asyncio.timeout(LONGEST):
                await _hear_from_everybody(everybody_answered, load)
                await replace_all()
                await _hear_from_everybody(everybody_answered, load)
            reporting.cancel()
            with suppress(asyncio.CancelledError):
                await reporting
        await watch.terminate()
    return verdict(load, time.monotonic() - began)
