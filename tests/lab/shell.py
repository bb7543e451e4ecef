"""A shell in the lab, with a running cluster and kroute on every node: `make lab`, `make lab NODE=node2`."""

import asyncio
import os
import shlex
import subprocess
import sys
from pathlib import Path

from tests.lab import objects
from tests.lab.cluster import Cluster, Node
from tests.lab.deployment import Deployment
from tests.lab.feed import ManifestFeed

_VIP = ("10.254.0.10", "fd00:10:254::10")
_NODE_PORT = 30080

_WELCOME = """
A cluster of three nodes. An agent of kroute runs on each, ready, and each has a pod that answers at port 8080 (HTTP).

{places}

The Service web: {vip}:80, [{vip6}]:80, and port {node_port} of every node.
The agents follow {manifests}: change web there, or add objects, and watch.

  enter NAME [COMMAND...]            a shell, or one command, in a node, a pod or the client
  enter node2 kroute show            `kroute` means the agent of the node in which it is called
  enter node2 ipvsadm -Ln
  enter client busybox wget -qO- http://{node}:{node_port}
  cat {logs}
  exit                               leave, and remove it all

{here}
"""

_RC = """
export PATH={bin}:$PATH
enter() {{
    local name=$1
    shift
    [ $# -gt 0 ] || set -- bash --norc
    KROUTE_STATE_DIR={directory}/$name/state KROUTE_NODE_NAME=$name \\
        ip netns exec "{prefix}-$name" env PS1="$name# " "$@"
}}
"""


async def _populate(cluster: Cluster, deployment: Deployment) -> None:
    """Start a Service, a pod on each node, and the agents."""
    pods = [await node.pod(f"web-{number}", http=8080) for number, node in enumerate(cluster.nodes.values(), 1)]
    ports = {"TCP": 80}
    deployment.apply(
        objects.service("web", *_VIP, ports=ports, node_ports={"TCP": _NODE_PORT}),
        *objects.endpoint_slices("web", pods, {"TCP": 8080}),
    )
    await deployment.start()


def _welcome(cluster: Cluster, manifests: Path, here: Node | None) -> str:
    nodes = list(cluster.nodes.values())
    hosts = [*nodes, *(pod for node in nodes for pod in node.pods), cluster.client]
    return _WELCOME.format(
        places="\n".join(f"  {host.name:<8} {host.ip:<16} {host.ip6}" for host in hosts),
        vip=_VIP[0],
        vip6=_VIP[1],
        node=nodes[0].ip,
        node_port=_NODE_PORT,
        manifests=manifests,
        logs=nodes[0].processes[0].log,
        here=f"You are inside {here.name}." if here else "You are beside the nodes, and in none of them.",
    )


def _start_shell(cluster: Cluster, here: Node | None) -> None:
    startup = cluster.directory / "bashrc"
    functions = _RC.format(prefix=cluster.prefix, directory=cluster.directory, bin=Path(sys.executable).parent)
    startup.write_text(functions + "PS1='lab# '\n")
    command = ["bash", "--rcfile", str(startup), "-i"]
    if here is not None:
        inside = cluster.directory / "bashrc-inside"
        inside.write_text(functions + f"PS1='{here.name}# '\n")
        enter = f". {shlex.quote(str(startup))}; enter {here.name} bash --rcfile {shlex.quote(str(inside))} -i"
        command = ["bash", "-c", enter]
    subprocess.run(command, check=False)


def main(names: list[str]) -> int:
    """Build the cluster, run the shell, remove the cluster."""
    if columns := os.environ.get("COLUMNS"):
        subprocess.run(["stty", "columns", columns, "rows", os.environ.get("LINES", "24")], check=False)
    print("building a cluster ...", flush=True)
    cluster = Cluster()
    try:
        if unknown := set(names) - set(cluster.nodes):
            print(f"no node {', '.join(unknown)}: NODE is one of {', '.join(cluster.nodes)}", file=sys.stderr)
            return 2
        here = cluster.node(names[0]) if names else None
        manifests = cluster.directory / "manifests"
        manifests.mkdir()
        deployment = Deployment(cluster, ManifestFeed(manifests))
        asyncio.run(_populate(cluster, deployment))
        print(_welcome(cluster, manifests, here), flush=True)
        _start_shell(cluster, here)
        asyncio.run(deployment.stop())
    finally:
        cluster.close()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
