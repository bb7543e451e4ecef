"""kube-proxy as a process of a node of the lab, the stand-in or the real one, and its objects in the API.

What the controllers and the kubelet do with its Pod, `KubeProxy` does: they are not in the lab.
"""

import asyncio
import copy
import os
import signal
import subprocess
import sys
from pathlib import Path

from tests.apiserver.recording import Recording
from tests.lab import firewall
from tests.lab.api_server import PORT, ApiServer
from tests.lab.cluster import Node
from tests.lab.deployment import eventually
from tests.lab.kroute_process import rss
from tests.lab.kube_proxy import HEALTH_PORT, METRICS_PORT
from tests.lab.objects import Object
from tests.lab.topology import CONTROL_PLANE, POD_RANGE, POD_RANGE6

MODES = ("iptables", "ipvs", "nftables")
_NO_GLOBAL_SYSCTLS = (
    *("--conntrack-max-per-core=0", "--conntrack-min=0"),
    *("--conntrack-tcp-timeout-established=0s", "--conntrack-tcp-timeout-close-wait=0s"),
)
"""A node of the lab is a network namespace, where these sysctls cannot be written."""


class KubeProxy:
    """kube-proxy of a node in a mode, fed by an API server. With `program` it is the real one."""

    def __init__(self, node: Node, mode: str, api: ApiServer, program: Path | None = None) -> None:
        self.node = node
        self.mode = mode
        self.log = node.state_dir.parent / "kube-proxy.log"
        self._api = api
        self._program = program
        self._process: subprocess.Popen[bytes] | None = None
        self.pod: Object | None = None

    # ---- the process -------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Launch it, and return when it has written its tables and says that it is healthy."""
        self.launch()
        await self.ready()

    def launch(self) -> None:
        """Start its process."""
        with self.log.open("ab") as log, self.node.namespace.inside():
            self._process = subprocess.Popen(
                self._command(),
                stdout=log,
                stderr=log,
                env=environment_with(self.node, firewall.variant()),
            )

    def _command(self) -> list[str]:
        if self._program is None:
            master = f"http://{CONTROL_PLANE.ip}:{PORT}"
            options = ["--master", master, "--node", self.node.name, "--variant", firewall.variant()]
            return [sys.executable, "-m", "tests.lab.kube_proxy", self.mode, *options]
        return [
            *(str(self._program), "--proxy-mode", self.mode, "--hostname-override", self.node.name),
            *("--kubeconfig", str(self._api.kubeconfig), "--kube-api-content-type", "application/json"),
            *("--cluster-cidr", f"{POD_RANGE},{POD_RANGE6}", "--v=2", *_NO_GLOBAL_SYSCTLS),
        ]

    @property
    def running(self) -> bool:
        """Whether its process runs."""
        return self._process is not None and self._process.poll() is None

    async def ready(self, within: float = 120) -> None:
        """Return when it has written its tables and says that it is healthy."""
        await eventually(self._serves, within=within)

    def rss(self) -> int:
        """Return the resident memory in bytes; 0 if it does not run."""
        return rss(self._process.pid) if self._process is not None and self.running else 0

    async def _serves(self) -> None:
        await asyncio.sleep(0.2)  # what looks all the time leaves it no time
        assert self.running, self.log.read_text()[-2000:]
        assert await self.node.http_status("127.0.0.1", METRICS_PORT, "/proxyMode") == 200
        assert await self.node.http_status("127.0.0.1", HEALTH_PORT, "/healthz") == 200
        assert self.has_tables

    @property
    def has_tables(self) -> bool:
        """Whether the node has the rules by which new connections are sent to pods."""
        if self.mode == "nftables":
            tables = self.node.run("nft", "list", "tables").splitlines()
            return {"table ip kube-proxy", "table ip6 kube-proxy"} <= set(tables)
        chain = "KUBE-SEP-" if self.mode == "iptables" else "KUBE-SERVICES"
        return all(
            f":{chain}" in self.node.run(f"{family}-{firewall.variant()}-save", "-t", "nat")
            for family in ("iptables", "ip6tables")
        )

    def end(self) -> None:
        """End its process as the kubelet does, with SIGTERM. Its tables stay."""
        if self._process is not None:
            self._process.send_signal(signal.SIGTERM)
            self._process.wait(60)

    def close(self) -> None:
        """Kill its process."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    # ---- the objects -------------------------------------------------------------------------------------------------

    def deploy(self) -> None:
        """Create its DaemonSet, unless there is one, and its Pod on the node."""
        daemon_set = the_daemon_set()
        if not self._api.list(_DAEMON_SETS):
            self._api.create(daemon_set)
        self.pod = a_pod(self.node.name)
        self._api.create(self.pod)

    async def delete(self) -> None:
        """What `kubectl -n kube-system delete daemonset kube-proxy` leads to: its Pod is marked, ended, and deleted."""
        self._api.delete(the_daemon_set())
        await self.delete_pod()

    async def delete_pod(self) -> None:
        """End its Pod: first the API says that it is to end, then its process ends, then the API forgets it."""
        assert self.pod is not None
        marked = {**self.pod["metadata"], "deletionTimestamp": "2026-11-23T20:43:55Z", "deletionGracePeriodSeconds": 30}
        self._api.apply({**self.pod, "metadata": marked})
        self.end()
        self._api.delete(self.pod)
        self.pod = None


def environment_with(node: Node, variant: str) -> dict[str, str]:
    """An environment in which `iptables` and its likes are the tools of this variant, "legacy" or "nft"."""
    tools = node.state_dir.parent / f"tools-{variant}"
    if not tools.is_dir():
        tools.mkdir()
        for family in ("iptables", "ip6tables"):
            for action in ("", "-save", "-restore"):
                (tools / f"{family}{action}").symlink_to(f"/usr/sbin/{family}-{variant}{action}")
    return {**os.environ, "PATH": f"{tools}:{os.environ['PATH']}", "HOME": "/root"}


_DAEMON_SETS = "/apis/apps/v1/namespaces/kube-system/daemonsets"


def the_daemon_set() -> Object:
    """kubeadm's DaemonSet, as recorded, which chooses every node with Linux."""
    [item] = [it for it in Recording.load("list-daemonsets").items if it["metadata"]["name"] == "kube-proxy"]
    return _to_create(item)


def a_pod(node: str) -> Object:
    """The Pod of that DaemonSet on a node, as recorded."""
    [item] = Recording.load("list-pods-of-node").items
    pod = _to_create(item)
    pod["metadata"]["name"] = f"kube-proxy-{node}"
    pod["spec"]["nodeName"] = node
    return pod


def _to_create(item: Object) -> Object:
    """A copy of a stored object without what the API server adds."""
    made = copy.deepcopy(item)
    for name in ("resourceVersion", "managedFields", "generateName"):
        made["metadata"].pop(name, None)
    return made
