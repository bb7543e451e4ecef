"""kube-router as a process of a node of the lab, the real one: its firewall, which enforces NetworkPolicies, or its
router, which connects pods."""

import asyncio
import re
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path

from tests.lab.cluster import Node
from tests.lab.deployment import eventually
from tests.lab.feed import ApiFeed
from tests.lab.kube_proxy_process import environment_with
from tests.lab.topology import SERVICE_RANGE, SERVICE_RANGE6

HEALTH_PORT = 20244
NFT_TABLES = "nft"
"""In place of a variant of iptables: kube-router's own tables of nf_tables."""


class KubeRouter:
    """kube-router on a node. `how` is a variant of iptables, "legacy" or "nft-variant", or NFT_TABLES.

    `serves`: it serves Services, too. With `cni`, its configuration of CNI, it connects pods and has no firewall.
    `more` are further arguments.
    """

    def __init__(
        self,
        node: Node,
        feed: ApiFeed,
        program: Path,
        how: str,
        *,
        serves: bool = False,
        cni: Path | None = None,
        more: Sequence[str] = (),
    ) -> None:
        self.node = node
        self.log = node.state_dir.parent / "kube-router.log"
        self._flags = feed.flags
        self._program = program
        self._how = how
        self._serves = serves
        self._cni = cni
        self._more = more
        self._process: subprocess.Popen[bytes] | None = None

    def launch(self) -> None:
        """Start its process."""
        argv = [
            *(str(self._program), *self._flags, "--hostname-override", self.node.name, "--enable-ipv6=true"),
            *(f"--run-firewall={_switch(self._cni is None)}", f"--run-router={_switch(self._cni is not None)}"),
            *(f"--run-service-proxy={_switch(self._serves)}", "--v=2", *self._more),
            *("--service-cluster-ip-range", f"{SERVICE_RANGE},{SERVICE_RANGE6}"),
            *(["--use-nftables-for-netpol=true"] if self._how == NFT_TABLES else []),
        ]
        variant = "legacy" if self._how == "legacy" else "nft"
        environment = {**environment_with(self.node, variant), "KUBE_ROUTER_CNI_CONF_FILE": str(self._cni)}
        own_tables = 'mount -t tmpfs tables /etc/iproute2 && touch /etc/iproute2/rt_tables && exec "$@"'
        argv = ["unshare", "--mount", "sh", "-c", own_tables, "sh", *argv]  # it writes there; the lab's is read-only
        with self.log.open("ab") as log, self.node.namespace.inside():
            self._process = subprocess.Popen(argv, stdout=log, stderr=log, env=environment)

    async def start(self, *addresses: str) -> None:
        """Start it; return when it is at rest, and its rules name these addresses of pods.

        Its own tables of nf_tables are incomplete while it writes them, at its start twice or more.
        """
        self.launch()
        before = 0

        async def enforces() -> None:
            nonlocal before
            await asyncio.sleep(0.5)  # what looks all the time leaves it no time
            log = self.log.read_text()
            if self._process is None or self._process.poll() is not None:
                raise RuntimeError(log[-3000:])
            begun, over = log.count("Starting sync of"), len(re.findall("sync (?:ip|nf)tables took", log))
            was, before = before, over
            assert begun == over == was > 0, log[-3000:]
            text = "\n".join(self.rules().values())
            assert all(address in text for address in addresses), log[-3000:]

        await eventually(enforces, within=180)

    def rules(self) -> dict[str, str]:
        """What it may have on the node, by the command that prints it."""
        variant = "legacy" if self._how == "legacy" else "nft"
        commands = ["ipset save", f"iptables-{variant}-save", f"ip6tables-{variant}-save"]
        if self._how == NFT_TABLES:
            commands = ["nft list ruleset"]
        return {command: self.node.run(*command.split()) for command in commands}

    def end(self) -> None:
        """End it as the kubelet does. Its rules stay."""
        if self._process is not None:
            self._process.send_signal(signal.SIGTERM)
            self._process.wait(60)

    def close(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()


def _switch(value: object) -> str:
    return str(bool(value)).lower()
