"""The cluster of the day: three nodes with agents, two directors, an API server, and objects.

Nobody kills the agent of the last node, the witness: its memory is measured at noon and in the evening.
"""

import random
import signal
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from kroute.settings import Settings
from tests.lab import objects
from tests.lab.api_server import ApiServer
from tests.lab.cluster import Node, Pod
from tests.lab.deployment import Deployment
from tests.lab.directors import DirectorMachine
from tests.lab.feed import ApiFeed, control_plane
from tests.lab.hosts import Host
from tests.lab.kroute_process import KrouteProcess
from tests.lab.objects import Object, identity
from tests.lab.topology import POD_RANGE, POD_RANGE6
from tests.lab.world import World

RANGES = ("192.168.123.0/24", "203.0.113.0/24", "fd00:192:168:123::/64", "2001:db8::/32")
"""In which external IPs are served."""
WITNESS = "node3"
DISK = "16m"
"""The size of each state directory."""
DIRECTOR = ("--external-ip-range", ",".join(RANGES), "--lease-retry-period", "0.5s", "--resync-period", "5s",
            "--check-interval", "1s", "--check-timeout", "5s", "--sync-interface", "eth0")  # fmt: skip


class Stage:
    """What the day's troubles act on. `wrongs` are sentences: what happened that must not.

    `attacks_nothing` are the tenant's inputs that mean nothing to the proxy here, `has_counts` is whether it uses IPVS.
    """

    attacks_nothing: frozenset[str] = frozenset()
    has_counts = True

    def __init__(self, world: World, backend: str) -> None:
        self.world = world
        self.cluster = world.cluster
        self.api: ApiServer = control_plane(world.cluster)
        self.deployment = Deployment(world.cluster, ApiFeed(self.api))
        self.directors = tuple(
            DirectorMachine(world.cluster, f"dir-{last}", last, self.api.kubeconfig) for last in (101, 102)
        )
        self.spares: list[Pod] = []
        self.items: dict[tuple[str, str, str], Object] = {}
        self.wrongs: list[str] = []
        self._flags = (
            *("--firewall", backend, "--cluster-cidr", f"{POD_RANGE},{POD_RANGE6}"),
            *("--external-ip-range", ",".join(RANGES), "--ipvs-tcpfin-timeout", "5s"),
        )
        self.put(*(self.node_object(node) for node in world.nodes))

    def settings(self, node: Node) -> Settings:
        """What the flags of an agent say, for a plan of a node."""
        return Settings(node_name=node.name, cluster_cidrs=(POD_RANGE, POD_RANGE6), external_ip_ranges=RANGES)

    @property
    def witness(self) -> KrouteProcess:
        """The agent that nobody kills."""
        return self.deployment.agents[WITNESS]

    @property
    def names(self) -> tuple[str, ...]:
        """All nodes and machines that have kroute."""
        return (*self.cluster.nodes, *(machine.name for machine in self.directors))

    @property
    def mortals(self) -> tuple[str, ...]:
        """The nodes and machines whose kroute is killed."""
        return tuple(name for name in self.names if name != WITNESS)

    # ---- objects -------------------------------------------------------------------------------------------------

    def put(self, *items: Object) -> None:
        """Create or replace objects."""
        self.items |= {identity(item): item for item in self.deployment.apply(*items)}

    def remove(self, *items: Object) -> None:
        """Delete those of the objects that exist."""
        present = [item for item in items if self.items.pop(identity(item), None) is not None]
        self.deployment.delete(*present)

    def node_object(self, node: Node, *, ready: bool = True) -> Object:
        """The Node object of a node, each in a zone of its own."""
        item = objects.node(node, zone=f"zone-{node.name}")
        item["status"]["conditions"] = [{"type": "Ready", "status": str(ready)}]
        return item

    # ---- processes -----------------------------------------------------------------------------------------------

    async def start(self, *names: str, wait: bool = True) -> None:
        """Start kroute on these nodes and machines; on all, if none is named."""
        machines = [machine for machine in self.directors if not names or machine.name in names]
        nodes = tuple(name for name in self.cluster.nodes if not names or name in names)
        if nodes:
            await self.deployment.start(*self._flags, nodes=nodes, wait=wait)
        for machine in machines:
            await machine.start(*DIRECTOR, wait=wait)

    def process(self, name: str) -> KrouteProcess:
        """The newest process on a node or machine."""
        for machine in self.directors:
            if machine.name == name:
                assert machine.process is not None
                return machine.process
        return self.deployment.agents[name]

    async def rests(self, name: str) -> None:
        """Wait in the evening until what was killed there is ready again."""
        await self.process(name).ready()

    async def kill(self, name: str) -> None:
        """Kill kroute there, and start it again without waiting for it."""
        process = self.process(name)
        code = await process.kill()
        if code != -signal.SIGKILL:
            self.wrongs.append(f"kroute on {name} ended by itself with {code}:\n{process.tail(8)}")
        self.read_log(name, process)
        process.log.write_bytes(b"")  # a day has thousands of them
        if name in self.cluster.nodes:
            self.cluster.node(name).processes.remove(process)
        await self.start(name, wait=False)

    def read_log(self, name: str, process: KrouteProcess) -> None:
        """Find fault with a log that has a traceback."""
        _, found, text = process.log.read_text(errors="replace").partition("Traceback")
        if found:
            self.wrongs.append(f"kroute on {name} logged a traceback{text[:1500]}")

    async def cleanup(self) -> None:
        """Stop everything, and undo it everywhere."""
        for machine in self.directors:
            if machine.process is not None:
                await machine.process.terminate()
                await machine.cleanup()
        await self.deployment.cleanup()

    # ---- places --------------------------------------------------------------------------------------------------

    @property
    def state_dirs(self) -> list[Path]:
        """The state directories of all agents and directors."""
        return [*(node.state_dir for node in self.world.nodes), *(machine.state_dir for machine in self.directors)]

    @property
    def control_plane(self) -> Host:
        """The machine of the API server."""
        return self.api.node

    def node(self, dice: random.Random) -> Node:
        """A node by chance."""
        return dice.choice(self.world.nodes)


@contextmanager
def disks(directories: list[Path]) -> Iterator[None]:
    """Give each directory a file system of its own, of a few MiB, for the length of a `with`."""
    with ExitStack() as stack:
        for directory in directories:
            subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={DISK}", "day", str(directory)], check=True)
            stack.callback(subprocess.run, ["umount", "-l", str(directory)], check=False)
        yield


def fill(directory: Path) -> Path:
    """Fill a file system to its last byte. Returns the file that does so."""
    filler = directory / "filler"
    with suppress(OSError), filler.open("wb", buffering=0) as file:
        while file.write(bytes(1 << 16)):
            pass
    with suppress(OSError), filler.open("ab", buffering=0) as file:
        while file.write(b"."):
            pass
    return filler
