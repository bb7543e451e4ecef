"""A cluster of three nodes that balances its load through IPVS, while you watch: `make demo`.

It ends with 0 only if no call failed, what was broken was repaired, and every node was cleaned.
"""

import asyncio
import json
import sys
import time
from collections.abc import Callable

from tests.demo.rolling_update import REPLICAS, Deployment, rolling_update
from tests.demo.screen import command, console, say, step, table
from tests.demo.terminal import Terminal
from tests.lab import objects
from tests.lab.api_server import PORT, ApiServer
from tests.lab.cluster import Cluster, Node, Pod
from tests.lab.hosts import Host
from tests.lab.kernel_state import Snapshot
from tests.lab.kroute_process import ForkServer, KrouteProcess
from tests.lab.load import Load, Way

WEB = ("10.254.0.10", "fd00:10:254::10")
KUBERNETES = "10.254.0.1"
NODE_PORT = 30080
PORTS = {"TCP": 80}
TARGET_PORTS = {"TCP": 8080}
FLAGS = ("--nodeport-addresses", "primary")
LINK = "kube-ipvs0"
AT_ONCE = 2
PATIENCE = 60.0
"""Seconds in which a node must have healed, in a machine that is slow and busy."""


def initial_objects(cluster: Cluster, web: Deployment) -> list[objects.Object]:
    """Everything that the API server holds at the start."""
    master = cluster.node("node1")
    return [
        *(objects.node(node) for node in cluster.nodes.values()),
        objects.service("web", *WEB, ports=PORTS, node_ports={"TCP": NODE_PORT}),
        *web.slices(),
        objects.service("kubernetes", KUBERNETES, ports={"TCP": 443}),
        *objects.endpoint_slices("kubernetes", [master], {"TCP": PORT}),
    ]


async def start_agents(cluster: Cluster, api: ApiServer) -> dict[str, KrouteProcess]:
    """Start kroute on each node from the API, and wait until each has programmed its kernel."""
    before = time.monotonic()
    agents = {
        name: await node.kroute("run", "--kubeconfig", str(api.kubeconfig), "--node-name", name, *FLAGS)
        for name, node in cluster.nodes.items()
    }
    for name, agent in agents.items():
        await agent.ready()
        say(f"{name}: ready {time.monotonic() - before:.1f} s after the start")
    return agents


async def ask(node: Node, *argv: str, code: int = 0) -> bool:
    """Print what `kroute ARGV...` says on a node; return whether it ended as it should."""
    command("kroute", *argv)
    with Terminal.opened() as terminal:
        ended = await (await terminal.kroute(node, *argv)).wait()
        say(terminal.read())
    return ended == code


async def calls(cluster: Cluster, visitor: Pod) -> None:
    """Call from a pod, from a host and from outside, over both families; print who answered and what it saw."""
    callers: list[tuple[str, Host, str, int]] = [
        *(("a pod on node1", visitor, address, 80) for address in WEB),
        *(("the host node2", cluster.node("node2"), address, 80) for address in WEB),
        ("a client outside", cluster.client, cluster.node("node3").ip, NODE_PORT),
    ]
    rows = []
    for who, caller, address, port in callers:
        answers = [await caller.http(address, port) for _ in range(3)]
        called = f"[{address}]:{port}" if ":" in address else f"{address}:{port}"
        answered = " ".join(it.host.removeprefix("web-") for it in answers)
        rows.append((who, called, answered, answers[0].peer))
    table(("caller", "called", "answered, web-", "source it saw"), rows)


async def update(cluster: Cluster, api: ApiServer, web: Deployment, visitor: Pod) -> bool:
    """Replace every pod under load; return whether no call failed."""
    node2 = cluster.node("node2")
    ways = [Way(client, address, 80) for client in (visitor, node2) for address in WEB]
    ways.append(Way(cluster.client, node2.ip, NODE_PORT))
    old = list(web.pods)

    async def replace_all() -> None:
        for start in range(0, REPLICAS, AT_ONCE):
            numbers = range(start, start + AT_ONCE)
            await asyncio.gather(*(web.replace(old[number], api, number) for number in numbers))

    def everybody_answered(load: Load) -> bool:
        return all(load.answered[pod.name] for pod in web.pods) and all(load.calls[way] for way in ways)

    return await rolling_update(ways, node2, replace_all, everybody_answered)


async def heal(node: Node, agent: KrouteProcess, *damage: str) -> bool:
    """Take something from a node, and say when it was back; return whether it was, and a call was answered."""
    before = set(node.addresses(LINK))
    logged = len(agent.log.read_text())
    command(*damage)
    node.run(*damage)
    since = time.monotonic()
    if not await until(lambda: set(node.addresses(LINK)) == before):
        say(f"not back after {PATIENCE:.0f} s")
        return False
    took = (time.monotonic() - since) * 1000
    await until(lambda: '"repair"' in agent.log.read_text()[logged:])
    entries = [json.loads(line) for line in agent.log.read_text()[logged:].splitlines()]
    for entry in [it for it in entries if it["event"] == "repair"][:2]:
        say(f"the agent's log: repair: {entry.get('what', entry)}")
    answer = await node.http(WEB[0], PORTS["TCP"])
    say(f"{len(before)} addresses are back after {took:.0f} ms; {answer.host} answers the host {node.name}")
    return True


async def until(condition: Callable[[], bool]) -> bool:
    """Wait for a condition; return whether it came to hold."""
    deadline = time.monotonic() + PATIENCE
    while not condition():
        if time.monotonic() > deadline:
            return False
        await asyncio.sleep(0)
    return True


async def clean_up(cluster: Cluster, agents: dict[str, KrouteProcess], before: dict[str, Snapshot]) -> bool:
    """Stop kroute, clean every node, and compare it with what it was; whether all is as before."""
    as_before = True
    for name, node in cluster.nodes.items():
        await agents[name].terminate()
        cleanup = await node.kroute("cleanup")
        code = await cleanup.wait()
        changed = without_pods(before[name]).diff(without_pods(node.snapshot()))
        as_before = as_before and not changed and code == 0
        undone = len(cleanup.log.read_text().splitlines())
        say(f"{name}: {undone} things undone; {changed or 'as it was before kroute came'}")
    return as_before


def without_pods(snapshot: Snapshot) -> Snapshot:
    """A snapshot without the interfaces of pods, which come and go."""
    lines = {part: [line for line in text if "veth" not in line] for part, text in snapshot.parts.items()}
    return Snapshot(lines)


async def story(cluster: Cluster, api: ApiServer, web: Deployment, visitor: Pod) -> bool:
    """Tell the story; return whether all was as it should be."""
    node2 = cluster.node("node2")
    before = {name: node.snapshot() for name, node in cluster.nodes.items()}
    step("kroute run, on every node, from the API server on node1")
    agents = await start_agents(cluster, api)
    step("What does node2 serve?")
    good = [await ask(node2, "status")]
    step("Calls to the Service web")
    await calls(cluster, visitor)
    step("Why does a packet go where it goes?")
    good.append(await ask(node2, "explain", f"{WEB[0]}:80", "--from", visitor.ip))
    step(f"A rolling update under load: all {REPLICAS} pods are replaced, {AT_ONCE} at a time")
    good.append(await update(cluster, api, web, visitor))
    step("node2 loses a VIP, then the whole interface, and heals")
    good.append(await heal(node2, agents["node2"], "ip", "address", "delete", f"{WEB[0]}/32", "dev", LINK))
    good.append(await heal(node2, agents["node2"], "ip", "link", "delete", LINK))
    step("kroute cleanup, on every node")
    good.append(await clean_up(cluster, agents, before))
    return all(good)


async def demo() -> int:
    """Build the cluster, tell the story, and return the exit code."""
    began = time.monotonic()
    ForkServer.shared()  # imports kroute while the cluster is built; agents are forked from it
    step(f"A cluster of three nodes, each with a kernel table of its own; {REPLICAS} pods")
    async with Cluster.start() as cluster:
        web = Deployment(cluster, TARGET_PORTS)
        for number in range(REPLICAS):
            await web.add("v1", number)
        visitor = await cluster.node("node1").pod("visitor")
        api = ApiServer(cluster.node("node1"), cluster.directory, initial_objects(cluster, web))
        try:
            api.start()
            await (await cluster.node("node1").kroute("version")).wait()  # kroute is imported
            say(f"up, and kroute imported, after {time.monotonic() - began:.1f} s")
            good = await story(cluster, api, web, visitor)
        finally:
            api.stop()
    return ended(good, time.monotonic() - began)


def ended(good: bool, seconds: float) -> int:
    """Say whether all was as it should be; return the exit code."""
    verdict = "Done: no call failed, and nothing is left" if good else "Not as it should be: see above"
    console.print(f"\n[bold]{verdict}[/bold], after {seconds:.0f} s")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(asyncio.run(demo()))
