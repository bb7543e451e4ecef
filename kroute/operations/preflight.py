"""What a node must offer before kroute can start."""

from collections.abc import Mapping
from pathlib import Path

from kroute.kernel import modules

CAP_NET_ADMIN = 12  # include/uapi/linux/capability.h

REQUIRED_MODULES: Mapping[str, str] = {
    "ip_vs": "the kernel's load balancer",
    "dummy": "the interface that carries the VIPs",
    "ip_set": "the sets that the masquerade rules look up",
}
"""Kernel modules by name, with what kroute does with them; schedulers and rules are loaded by the kernel when used."""


DIRECTOR_MODULES: Mapping[str, str] = {"ip_vs": "the kernel's load balancer"}
"""The same for a director, which has no rules and no interface of its own."""


async def lacks(required: Mapping[str, str] = REQUIRED_MODULES) -> list[str]:
    """What is missing, one sentence each with the way to get it; empty when kroute can start."""
    missing = (
        []
        if has_capability(CAP_NET_ADMIN)
        else ["kroute may not change the network: run it as root, or give its container the capability NET_ADMIN"]
    )
    missing += [
        f"kernel module {name} ({required[name]}) cannot be loaded: "
        f"run `modprobe {name}` on the node, or install the modules package of its kernel"
        for name in await modules.load(list(required))
    ]
    return missing


def has_capability(number: int, status: Path = Path("/proc/self/status")) -> bool:
    """Whether this process has the capability now (`CapEff` of proc(5))."""
    effective = next(line for line in status.read_text().splitlines() if line.startswith("CapEff:"))
    return bool(int(effective.split()[1], 16) >> number & 1)
