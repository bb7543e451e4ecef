"""Reads and deletes the rules of other programs, in both variants of iptables, with the iptables package's tools.

kroute writes its own rules to the legacy tables with python-iptables, which supports no other variant. Another proxy's
leftovers may be in nf_tables instead, and only the tools support both. They delete a rule by its text, so a rule that
was changed since it was read is not deleted. They take the xtables lock where the variant has one.
"""

import asyncio
import socket
from typing import NamedTuple

from kroute.kernel.errors import KernelError

LOCK_SECONDS = 5
"""For how many seconds the tools wait for the xtables lock."""


class Variant(NamedTuple):
    """One of the four rule sets that a node may have: one address family in one variant, legacy or nft."""

    family: int
    name: str

    def __str__(self) -> str:
        return f"{'IPv6' if self.family == socket.AF_INET6 else 'IPv4'} {self.name}"

    def tool(self, action: str) -> str:
        """The program's name, such as `iptables-legacy-save` or `ip6tables-nft-restore`."""
        return f"{'ip6tables' if self.family == socket.AF_INET6 else 'iptables'}-{self.name}-{action}"


VARIANTS = tuple(Variant(family, name) for name in ("legacy", "nft") for family in (socket.AF_INET, socket.AF_INET6))


class XtablesTools:
    """The iptables tools, in the network namespace of the calling thread."""

    async def save(self, variant: Variant) -> str | None:
        """All tables that are in use, as iptables-save prints them; None if the tool is not installed."""
        return await _run([variant.tool("save")], "")

    async def delete(self, variant: Variant, table: str, rules: list[str], chains: list[str]) -> None:
        """Delete rules (`CHAIN …`, as the tool prints them after `-A`), then chains with their rules: all or nothing.

        Raises KernelError if a rule no longer exists, or another rule still jumps to a chain.
        """
        lines = [f"*{table}", *(f"-D {rule}" for rule in rules)]
        lines += [*(f"-F {chain}" for chain in chains), *(f"-X {chain}" for chain in chains), "COMMIT", ""]
        tool = variant.tool("restore")
        lock = ["-w", str(LOCK_SECONDS)] if variant.name == "legacy" else []
        if await _run([tool, "--noflush", *lock], "\n".join(lines)) is None:
            raise KernelError(f"{tool} is not installed; install the package iptables")


async def _run(argv: list[str], stdin: str) -> str | None:
    try:
        process = await asyncio.create_subprocess_exec(
            *argv, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
        )
    except FileNotFoundError:
        return None
    output, errors = await process.communicate(stdin.encode())
    if process.returncode:
        raise KernelError(f"{argv[0]} failed: {' '.join(errors.decode(errors='replace').split())}; trying later")
    return output.decode()
