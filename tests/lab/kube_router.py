"""kube-router as a process of a node of the lab, the real one: its firewall, which enforces NetworkPolicies."""

import asyncio
import re
import signal
import subprocess
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

    `serves`: it serves Services, too.
    """

    def __init__(self, node: Node, feed: ApiFeed, program: Path, how: str, *, serves: bool = False) -> None:
        self.node = node
        self.log = node.state_dir.parent / "kube-router.log"
        self._flags = feed.flags
        self._program = program
        self._how = how
        self._serves = serves
        self._process: subprocess.Popen[bytes] | None = None

    def launch(self) -> None:
        """Start its process."""
        argv = [
            *(str(self._program), *self._flags, "--hostname-override", self.node.name, "--enable-ipv6=true"),
            *("--run-firewall=true", "--run-router=false", f"--run-service-proxy={str(self._serves).lower()}", "--v=2"),
            *("--service-cluster-ip-range", f"{SERVICE_RANGE},{SERVICE_RANGE6}"),
            *(["--use-nftables-for-netpol=true"] if self._how == NFT_TABLES else []),
        ]
        variant = "legacy" if self._how == "legacy" else "nft"
        with self.log.open("ab") as log, self.node.namespace.inside():
            self._process = subprocess.Popen(argv, stdout=log, stderr=log, env=environment_with(self.node, variant))

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
