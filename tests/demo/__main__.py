"""A cluster of three nodes that balances its load through IPVS, while you watch: `make demo`."""

import asyncio
import sys
import time
from collections.abc import Callable

from rich.console import Console
from rich.table import Table

from tests.lab import objects
from tests.lab.api_server import PORT, ApiServer
from tests.lab.cluster import Cluster, Node, Pod
from tests.lab.hosts import Host
from tests.lab.kernel_state import Snapshot, VirtualServer
from tests.lab.kroute_process import ForkServer, KrouteProcess

WHOAMI = ("10.254.0.10", "fd00:10:254::10")
KUBERNETES = "10.254.0.1"
SERVER = f"TCP {WHOAMI[0]}:80"
PORTS = {"TCP": 80}
TARGET_PORTS = {"TCP": 8080}
PATIENCE = 60.0

console = Console(width=150, highlight=False, soft_wrap=True)


def step(text: str) -> None:
    """Say what comes next."""
    console.print(f"\n[bold]== {text}[/bold]")


def whoami(scheduler: str = "") -> objects.Object:
    """The Service of the demo, with its scheduler by annotation."""
    annotations = {"kroute.io/service.scheduler": scheduler} if scheduler else {}
    return objects.service("whoami", *WHOAMI, ports=PORTS, annotations=annotations)


def initial_objects(cluster: Cluster, pods: list[Pod]) -> list[objects.Object]:
    """Everything that the API server holds at the start."""
    master = cluster.node("node1")
    return [
        *(objects.node(node) for node in cluster.nodes.values()),
        whoami(),
        *objects.endpoint_slices("whoami", pods, TARGET_PORTS),
        objects.service("kubernetes", KUBERNETES, ports={"TCP": 443}),
        *objects.endpoint_slices("kubernetes", [master], {"TCP": PORT}),
    ]


async def start_agents(cluster: Cluster, api: ApiServer) -> dict[str, KrouteProcess]:
    """Start kroute on each node from the API, and wait until each has programmed its kernel."""
    before = time.monotonic()
    agents = {
        name: await node.kroute("run", "--kubeconfig", str(api.kubeconfig), "--node-name", name)
        for name, node in cluster.nodes.items()
    }
    for name, agent in agents.items():
        await agent.ready()
        console.print(f"{name}: ready {time.monotonic() - before:.1f} s after the start")
    return agents


async def be_imported(node: Node, began: float) -> None:
    """Wait until kroute is imported: once for all nodes, since they share one processor here."""
    await (await node.kroute("show")).wait()
    console.print(f"kroute is imported, once for all nodes: {time.monotonic() - began:.1f} s after the beginning")


async def print_show(node: Node) -> None:
    """Print what `kroute show` says on a node."""
    shown = await node.kroute("show")
    await shown.wait()
    console.print(shown.log.read_text(), markup=False)


async def call(table: Table, who: str, caller: Host, address: str) -> None:
    """Call the Service three times and note who answered and whom each pod saw."""
    answers = [await caller.http(address, 80) for _ in range(3)]
    for answer in sorted(answers, key=lambda answer: answer.host):
        table.add_row(who, address, answer.host, answer.peer)


async def calls(cluster: Cluster, visitor: Pod) -> None:
    """Call from a pod and from every host, over both families, and the API server through its Service."""
    table = Table("caller", "called", "who answered", "source that it saw", box=None)
    for address in WHOAMI:
        await call(table, "a pod on node1", visitor, address)
        for name, node in cluster.nodes.items():
            note = " (the API server's own node)" if name == "node1" else ""
            await call(table, f"the host {name}{note}", node, address)
    console.print(table)
    for name, node in cluster.nodes.items():
        connection = await node.connect(KUBERNETES, 443)
        await connection.close()
        console.print(f"{name} reaches the API server at {KUBERNETES}:443")


def until(node: Node, condition: Callable[[VirtualServer], bool], since: float) -> float:
    """Milliseconds from `since` until the node's kernel has it so. Raises TimeoutError."""
    while not condition(node.ipvs()[SERVER]):
        if time.monotonic() - since > PATIENCE:
            raise TimeoutError(f"{node.name} has not followed within {PATIENCE} s")
    return (time.monotonic() - since) * 1000


def takes_connections(server: VirtualServer, endpoint: str) -> bool:
    """Whether a real server is there and not draining."""
    return endpoint in server.real_servers and server.real_servers[endpoint].weight > 0


def live_changes(cluster: Cluster, api: ApiServer, pods: list[Pod]) -> None:
    """Change the scheduler and the endpoints, and say how long each took to reach node2's kernel."""
    node = cluster.node("node2")
    for scheduler in ("lc", "sh", "rr"):
        since = api.apply(whoami(scheduler))
        took = until(node, lambda server, wanted=scheduler: server.scheduler == wanted, since)
        console.print(f"annotation service.scheduler={scheduler}: in node2's kernel after {took:.0f} ms")
    endpoint = f"{pods[2].ip}:8080"
    for members, verb in ((pods[:2], "removed"), (pods, "added")):
        ipv4_slice, _ = objects.endpoint_slices("whoami", members, TARGET_PORTS)
        since = api.apply(ipv4_slice)
        present = members is pods
        took = until(node, lambda server, wanted=present: takes_connections(server, endpoint) == wanted, since)
        console.print(f"endpoint {endpoint} {verb}: in node2's kernel after {took:.0f} ms")


async def clean_up(cluster: Cluster, agents: dict[str, KrouteProcess], before: dict[str, Snapshot]) -> bool:
    """Stop kroute, clean every node, and compare it with what it was; whether all is as before."""
    as_before = True
    for name, node in cluster.nodes.items():
        await agents[name].terminate()
        cleanup = await node.kroute("cleanup")
        code = await cleanup.wait()
        lines = cleanup.log.read_text().splitlines()
        if name == "node1":
            console.print("\n".join(lines), markup=False)
        changed = before[name].diff(node.snapshot())
        as_before = as_before and not changed and code == 0
        console.print(f"{name}: {changed or 'as it was before kroute came'}", markup=False)
    return as_before


async def demo() -> int:
    """Tell the story; returns the exit code."""
    began = time.monotonic()
    ForkServer.shared()  # imports kroute while the cluster is built; agents are forked from it
    step("A cluster of three nodes, each a network namespace with a kernel table of its own; a pod on each")
    async with Cluster.start() as cluster:
        pods = [await node.pod(f"whoami-{name}", http=8080) for name, node in cluster.nodes.items()]
        visitor = await cluster.node("node1").pod("visitor")
        before = {name: node.snapshot() for name, node in cluster.nodes.items()}
        api = ApiServer(cluster.node("node1"), cluster.directory, initial_objects(cluster, pods))
        try:
            api.start()
            await be_imported(cluster.node("node1"), began)
            step("kroute run, on every node, from the API server on node1")
            agents = await start_agents(cluster, api)
            step("kroute show, on node2")
            await print_show(cluster.node("node2"))
            step("Calls to the Service whoami")
            await calls(cluster, visitor)
            step("Changes on the live Service")
            live_changes(cluster, api, pods)
            step("kroute cleanup, on every node")
            as_before = await clean_up(cluster, agents, before)
        finally:
            api.stop()
    console.print(f"\n[bold]{'Done' if as_before else 'Not clean'}[/bold] after {time.monotonic() - began:.0f} s")
    return 0 if as_before else 1


if __name__ == "__main__":
    sys.exit(asyncio.run(demo()))
