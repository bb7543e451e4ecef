"""A shell in the lab, beside a running cluster: `make lab`."""

import asyncio
import os
import subprocess

from tests.lab.cluster import Cluster

_WELCOME = """
A cluster of three nodes, each with a pod that answers at port 8080 (HTTP), 5353 (UDP) and 9999 (SCTP).

{places}

  enter NAME [COMMAND...]          a shell, or one command, in a node, a pod or the client
  enter node1 busybox wget -qO- http://{pod}:8080
  enter node2 ipvsadm -Ln          the virtual servers of a node
  exit                             leave, and remove it all
"""

_ENTER = """
enter() {{
    local name=$1
    shift
    [ $# -gt 0 ] || set -- bash --norc
    ip netns exec "{prefix}-$name" env PS1="$name# " "$@"
}}
"""


async def _pods(cluster: Cluster) -> None:
    for number, node in enumerate(cluster.nodes.values(), 1):
        await node.pod(f"web-{number}", http=8080, udp=5353, sctp=9999)


def main() -> None:
    """Build the cluster, let the person work, remove the cluster."""
    if columns := os.environ.get("COLUMNS"):
        subprocess.run(["stty", "columns", columns, "rows", os.environ.get("LINES", "24")], check=False)
    print("building a cluster ...")
    cluster = Cluster()
    try:
        asyncio.run(_pods(cluster))
        hosts = [
            *cluster.nodes.values(),
            *(pod for node in cluster.nodes.values() for pod in node.pods),
            cluster.client,
        ]
        places = "\n".join(f"  {host.name:<8} {host.ip:<16} {host.ip6}" for host in hosts)
        print(_WELCOME.format(places=places, pod=hosts[3].ip))
        startup = cluster.directory / "bashrc"
        startup.write_text(_ENTER.format(prefix=cluster.prefix) + "PS1='lab# '\n")
        subprocess.run(["bash", "--rcfile", str(startup), "-i"], check=False)
    finally:
        cluster.close()


if __name__ == "__main__":
    main()
