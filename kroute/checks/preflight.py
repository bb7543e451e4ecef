"""The prerequisites of a node, without which kroute cannot start."""

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from kroute.checks.finding import Finding, failed
from kroute.firewall import backend
from kroute.kernel import modules

CAPABILITIES, MODULES = "capabilities", "modules"


CAP_NET_ADMIN = 12  # include/uapi/linux/capability.h
_NUMBERS = {"NET_RAW": 13}


class Capability(NamedTuple):
    """A capability, and what kroute needs it for."""

    number: int
    name: str
    purpose: str


REQUIRED_CAPABILITIES = (
    Capability(CAP_NET_ADMIN, "NET_ADMIN", "IPVS, addresses, routes, rules, sets and sysctls"),
    *(Capability(_NUMBERS[name], name, purpose) for name, purpose in backend.CAPABILITIES.items()),
)

REQUIRED_MODULES: Mapping[str, str] = {
    "ip_vs": "the kernel's load balancer",
    "dummy": "the interface that carries the VIPs",
    **backend.MODULES,
}
"""Kernel modules by name, with their purpose. The kernel loads the modules of schedulers and rules when they are
used."""


DIRECTOR_MODULES: Mapping[str, str] = {"ip_vs": "the kernel's load balancer"}
"""The modules of a director, which has no rules and no dummy interface."""


async def missing_prerequisites(required: Mapping[str, str] = REQUIRED_MODULES) -> list[str]:
    """The missing prerequisites, one sentence each with the way to get it; empty if kroute can start."""
    return [str(finding) for finding in await findings(required)]


async def findings(required: Mapping[str, str] = REQUIRED_MODULES) -> list[Finding]:
    """The missing prerequisites. Modules that can be loaded are loaded."""
    missing = [
        failed(
            CAPABILITIES,
            f"CAP_{capability.name} is missing ({capability.purpose})",
            f"run kroute as root, or add {capability.name} to its container's capabilities",
        )
        for capability in REQUIRED_CAPABILITIES
        if not has_capability(capability.number)
    ]
    missing += [
        failed(
            MODULES,
            f"kernel module {name} ({required[name]}) cannot be loaded",
            f"run `modprobe {name}` on the node, or install the modules package of its kernel",
        )
        for name in await modules.load(list(required))
    ]
    return missing


def has_capability(number: int, status: Path = Path("/proc/self/status")) -> bool:
    """Whether this process has the capability now (`CapEff` of proc(5))."""
    effective = next(line for line in status.read_text().splitlines() if line.startswith("CapEff:"))
    return bool(int(effective.split()[1], 16) >> number & 1)
