"""A cluster: a machine of the lab for the control plane and for each node, and the wire between them.

The wire is a bridge in a network namespace of its own, with a tap device for each machine. Whoever is in this namespace
is a host beside the nodes: so are kubectl, helm and the callers of the tests. Everything ends with this process,
however that ends: the machines are killed with it, and the namespace has no name.
"""

import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Self

from tests.cluster import components, guest_commands, images
from tests.cluster.beside import Beside
from tests.cluster.components import DUAL_STACK, Place
from tests.cluster.credentials import Credentials
from tests.lab import kubernetes
from tests.lab.kubernetes import required
from tests.lab.namespaces import Namespace
from tests.lab.places import PROJECT, cache
from tests.lab.vm.kernels import BUILT
from tests.lab.vm.machine import Machine

PROGRAMS = ("etcd", *kubernetes.PARTS[:5], "agnhost")
NODE_MEMORY = 3072
CONTROL_MEMORY = 2048
"""MiB that a machine sees. The host provides what is used."""
LONGEST_START = 900.0
"""Seconds that only a cluster needs which never starts; usually it takes some two minutes."""
COMMANDS_END_WITHIN = 600.0
_POLL = 0.5


def missing() -> str | None:
    """What is to be fetched, or done, before there can be a cluster; None if all is here."""
    if said := kubernetes.missing(*PROGRAMS):
        return said
    return None if BUILT.is_there else f"no kernel in {BUILT.directory}: run scripts/setup cluster"


class ClusterError(Exception):
    """The cluster is not as it should be. The message holds the last lines of the logs that may say why."""


class Host:
    """A machine of the cluster, which runs the `commands` of its components and has the `files` at their paths.

    Without `memory` it is no machine, but processes of the host.
    """

    def __init__(
        self,
        place: Place,
        memory: int,
        wire: Namespace,
        variables: Mapping[str, str],
        software: tuple[dict[str, str], dict[str, str]],
        routes: Sequence[str],
    ) -> None:
        self.place = place
        self.name = place.name
        self._memory = memory
        self._wire = wire
        self._variables = variables
        self._commands, self._files = software
        self._routes = [*(f"default via {address}" for address in place.wire.addresses), *routes]
        self._machine: Machine | Beside | None = None

    @property
    def address(self) -> str:
        return self.place.addresses[0]

    @property
    def machine(self) -> Machine | Beside:
        assert self._machine is not None, "it is switched off"
        return self._machine

    def switch_on(self) -> None:
        """Boot. Whatever it had before it was switched off is gone."""
        machine = Machine(self.name, self.place.number, BUILT, self._memory) if self._memory else Beside(self.name)
        self._machine = machine
        rows = {**self._commands, "commands": components.commands_server()}
        self._write("components", "".join(f"{name}\t{command}\n" for name, command in rows.items()))
        for path, content in {**self._files, **components.files_of_machine(self.place)}.items():
            self._write(f"files{path}", content)
        own = {"NAME": self.name, "ADDRESSES": " ".join(self.place.with_prefixes), "ROUTES": "\n".join(self._routes)}
        with self._wire.inside():
            machine.start(
                [str(Path(__file__).with_name("guest-machine"))],
                environment={**own, **self._variables},
                words=(
                    f"vec0:transport=tap,ifname={self.name},depth=128,gro=1,mac=02:00:00:00:00:{self.place.number}",
                ),
            )

    def add_file(self, path: str, content: str) -> None:
        """Have another file from the next start on, or another content of one."""
        self._files[path] = content

    def switch_off(self) -> None:
        """Switch it off at once, as if its power failed."""
        if self._machine is not None:
            self._machine.close()
            self._machine = None

    def check(self) -> None:
        """Raise MachineError if it has ended by itself."""
        if self._machine is not None:
            self._machine.check()

    def last_words(self, count: int = 8) -> str:
        """The ends of the logs of its components, and of its console."""
        if self._machine is None:
            return f"--- {self.name} is switched off"
        logs = [self.log(name) for name in self._commands]
        said = (f"--- {self.name}: {log.name}\n{_end_of(log, count)}" for log in logs if log.exists())
        return "\n".join([*said, f"--- {self.name}: console", self._machine.last_lines(count)])

    def log(self, component: str) -> Path:
        return self.machine.shared / f"{component}.log"

    def _write(self, name: str, content: str) -> None:
        path = self.machine.shared / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
        path.chmod(0o600)


class Cluster:
    """A running cluster, for the length of a `with`: some nodes, each in a zone of its own.

    `families` (4, 6) are those of all addresses, the primary one first. `server` is the URL of its API server. With
    `beside` the control plane is processes of the host, which a busy host slows down less than a machine. Without
    `has_pod_network` nodes have neither a configuration of CNI nor routes to pods, and no node becomes ready by itself;
    the control plane, which is no node, has routes to all pods.
    """

    def __init__(
        self,
        nodes: int = 2,
        families: Sequence[int] = DUAL_STACK,
        *,
        beside: bool = False,
        has_pod_network: bool = True,
    ) -> None:
        self._has_pod_network = has_pod_network
        store = images.prepare()
        self.directory = Path(tempfile.mkdtemp(prefix="cluster-"))
        control = Place("control", 10, families)
        places = [Place(f"node{number}", 10 + number, families) for number in range(1, nodes + 1)]
        self.wire = _wire(control, places)
        names = [*control.addresses, "127.0.0.1", "10.96.0.1", "fd00:10:96::1", "localhost"]
        names += [f"kubernetes{more}" for more in ("", ".default", ".default.svc", ".default.svc.cluster.local")]
        accounts = {"admin": "system:masters", **{f"system:node:{it.name}": "system:nodes" for it in places}}
        address = control.addresses[0]
        self.server = f"https://[{address}]:6443" if ":" in address else f"https://{address}:6443"
        self.credentials = Credentials(self.directory / "credentials", self.server, names, accounts)
        self.kubeconfig = self.directory / "kubeconfig"
        self.kubeconfig.touch(0o600)
        self.kubeconfig.write_text(self.credentials.kubeconfig("admin"))
        programs = self.directory / "bin"
        programs.mkdir()
        for name in PROGRAMS[:-1]:
            (programs / name).symlink_to(required(name))
        containerd = images.containerd()
        variables = {"BIN": f"{programs}:{containerd}/usr/bin:{containerd}/usr/sbin"}

        def host(
            place: Place,
            memory: int,
            software: tuple[dict[str, str], dict[str, str]],
            store: str,
            routes: Sequence[str],
        ) -> Host:
            return Host(place, memory, self.wire, {**variables, "STORE": store}, software, routes)

        memory = 0 if beside else CONTROL_MEMORY
        by_nodes = [*components.routes(control, places), *components.routes_to_services(places[0])]
        self.control = host(control, memory, components.of_control_plane(control, self.credentials), "", by_nodes)
        self.nodes = {
            it.name: host(
                it,
                NODE_MEMORY,
                components.of_node(it, self.credentials, has_pod_network=has_pod_network),
                str(store / "node"),
                components.routes(it, places) if has_pod_network else (),
            )
            for it in places
        }

    def __enter__(self) -> Self:
        try:
            for host in self.hosts:
                host.switch_on()
            self._wait_until_ready()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Switch everything off."""
        for host in self.hosts:
            host.switch_off()
        shutil.rmtree(self.directory, ignore_errors=True)

    @property
    def environment(self) -> dict[str, str]:
        """The variables of a command beside the nodes."""
        own = {name: value for name, value in os.environ.items() if not name.lower().endswith("_proxy")}
        path = f"{self.directory}/bin:{Path(sys.executable).parent}:{os.environ['PATH']}"
        places = {"KUBECONFIG": self.kubeconfig, "HOME": self.directory, "KROUTE_CACHE": cache()}
        return {**own, "PATH": path, **{name: str(place) for name, place in places.items()}}

    def run(self, *argv: str, content: str = "", within: float = COMMANDS_END_WITHIN) -> str:
        """Run a command beside the nodes; returns its output. Raises ClusterError if it fails."""
        with self.wire.inside():
            done = subprocess.run(
                argv,
                input=content,
                capture_output=True,
                text=True,
                check=False,
                timeout=within,
                cwd=PROJECT,
                env=self.environment,
            )
        if done.returncode != 0:
            raise ClusterError(f"{' '.join(argv)}: exit {done.returncode}: {done.stderr}{done.stdout}")
        return done.stdout

    def kubectl(self, *arguments: str, content: str = "") -> str:
        """Run kubectl with this content as its standard input; returns its output."""
        return self.run("kubectl", *arguments, content=content)

    def apply(self, *objects: object) -> None:
        """Apply objects, by the server."""
        items = {"apiVersion": "v1", "kind": "List", "items": list(objects)}
        self.kubectl("apply", "--server-side", "--force-conflicts", "-f", "-", content=json.dumps(items))

    def addresses(self, service: str) -> list[str]:
        """The ClusterIPs of a Service."""
        return self.kubectl("get", "service", service, "-o", "jsonpath={.spec.clusterIPs[*]}").split()

    @contextlib.contextmanager
    def having(self, *objects: object) -> Iterator[None]:
        """Have objects for the length of a `with`."""
        self.apply(*objects)
        try:
            yield
        finally:
            items = {"apiVersion": "v1", "kind": "List", "items": list(objects)}
            self.kubectl("delete", "--now", "--ignore-not-found", "-f", "-", content=json.dumps(items))

    def on(self, host: Host, command: str, *, check: bool = True) -> str:
        """Run a shell command as root in a machine; returns its output. Raises ClusterError if it fails."""
        with self.wire.inside():
            code, output = guest_commands.ask(host.address, command)
        if check and code != 0:
            raise ClusterError(f"{host.name}: {command}: exit {code}: {output}")
        return output

    def wait_until(self, what: str, check: Callable[[], object], within: float = 300.0) -> None:
        """Return once it is so. Raises ClusterError, with the last words of all components, if it is not for long."""
        end = time.monotonic() + within
        reason: Exception | None = None
        while time.monotonic() < end:
            for host in self.hosts:
                host.check()
            try:
                if check():
                    return
            except (ClusterError, OSError, ValueError) as error:
                reason = error
            time.sleep(_POLL)
        words = "\n".join(host.last_words() for host in self.hosts)
        raise ClusterError(f"after {within:.0f} s not: {what}{f' ({reason})' if reason else ''}\n{words}")

    def put(self, host: Host, path: str, content: str) -> None:
        """Have a file in a machine, also when it is switched off and on again."""
        host.add_file(path, content)
        self.on(host, f"cat >{path} <<'END'\n{content}\nEND")

    @property
    def hosts(self) -> tuple[Host, ...]:
        return (self.control, *self.nodes.values())

    def _wait_until_ready(self) -> None:
        self.wait_until("the API server is ready", self._api_server_is_ready, LONGEST_START)
        self.apply(*(_node_object(node.place) for node in self.nodes.values()))
        if self._has_pod_network:
            self.wait_until("all nodes are ready", self.nodes_are_ready, LONGEST_START)
        else:
            self.wait_until("all kubelets have spoken", self._kubelets_have_spoken, LONGEST_START)

    def _api_server_is_ready(self) -> bool:
        return self.kubectl("get", "--raw", "/readyz") == "ok"

    def nodes_are_ready(self) -> bool:
        """Whether every kubelet says that its node is ready."""
        return {name for name, status in self._said_of_nodes() if status == "True"} == set(self.nodes)

    def _kubelets_have_spoken(self) -> bool:
        return {name for name, _ in self._said_of_nodes()} == set(self.nodes)

    def _said_of_nodes(self) -> list[tuple[str, str]]:
        """The nodes of which it is said whether they are ready, each with what is said."""
        nodes = json.loads(self.kubectl("get", "nodes", "-o", "json"))["items"]
        said = ((node["metadata"]["name"], it) for node in nodes for it in node["status"].get("conditions", ()))
        return [(name, it["status"]) for name, it in said if it["type"] == "Ready"]


def _node_object(place: Place) -> dict[str, object]:
    """What the cluster, and not its kubelet, says of a node."""
    labels = {"topology.kubernetes.io/zone": place.zone, "node-role.kubernetes.io/worker": ""}
    networks = list(place.pod_networks)
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": place.name, "labels": labels},
        "spec": {"podCIDR": networks[0], "podCIDRs": networks},
    }


def _wire(control: Place, nodes: Sequence[Place]) -> Namespace:
    wire, own = Namespace.nameless(), control.wire
    lines = ["link set lo up", "link add wire type bridge"]
    lines += [f"addr add {address} dev wire {'nodad' if ':' in address else ''}" for address in own.with_prefixes]
    lines.append("link set wire up")
    for place in (control, *nodes):
        lines += [
            f"tuntap add {place.name} mode tap",
            f"link set {place.name} master wire",
            f"link set {place.name} up",
        ]
    lines += [f"route add {route}" for route in components.routes(own, nodes)]
    wire.ip("\n".join(lines) + "\n")
    return wire


def _end_of(log: Path, count: int) -> str:
    return "\n".join(log.read_text(errors="replace").splitlines()[-count:])
