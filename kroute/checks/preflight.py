"""The prerequisites without which kroute cannot start, and the choice of the firewall backend, which adds some."""

from collections.abc import Mapping
from pathlib import Path

import msgspec

from kroute.checks.finding import Finding, failed
from kroute.firewall import backend
from kroute.firewall.backend import Choice
from kroute.firewall.protocol import Backend
from kroute.kernel import modules
from kroute.kernel.net.links import DUMMY, Links
from kroute.settings import DEFAULTS, Settings

CAPABILITIES, MODULES, TOOLS, INTERFACE = "capabilities", "modules", "tools", "interface"

LOAD_MODULE = "run `modprobe {}` on the node, or install the modules package of its kernel"

CAPABILITY_NUMBERS = {"NET_ADMIN": 12, "NET_RAW": 13, "SYS_PTRACE": 19, "SYS_ADMIN": 21}
"""include/uapi/linux/capability.h"""


class Required(msgspec.Struct, frozen=True):
    """Capabilities and kernel modules by name, each with its purpose."""

    capabilities: Mapping[str, str]
    modules: Mapping[str, str]


NODE = Required(
    {"NET_ADMIN": "IPVS, addresses, routes, rules, sets and sysctls"},
    {"ip_vs": "the kernel's load balancer", "dummy": "the interface that carries the VIPs"},
)
"""What every node needs. The kernel loads the modules of schedulers, sets and rules when they are used."""

DIRECTOR = Required(
    {"NET_ADMIN": "IPVS, addresses and sysctls", "NET_RAW": "packets that announce an address to its neighbours"},
    {"ip_vs": "the kernel's load balancer"},
)
"""What a director needs, which has no rules and no dummy interface."""


async def look_at_node(settings: Settings) -> tuple[Choice | None, list[Finding]]:
    """The firewall backend of this node, and the missing prerequisites.

    The backend is None while so much is missing that the kernel cannot be asked. Raises KernelError as `choose` does.
    """
    missing = await findings(NODE) + await interface_findings(settings)
    if missing:
        return None, missing
    choice = await backend.choose(settings)
    return choice, await firewall_findings(choice.name)


async def missing_for_undoing(settings: Settings) -> list[str]:
    """What is missing for undoing what kroute did on this node: also what each present firewall backend needs."""
    missing = await findings(NODE) + await interface_findings(settings)
    for name in () if missing else await backend.present(settings):
        missing += await firewall_findings(name)
    return list(map(str, missing))


async def firewall_findings(name: str) -> list[Finding]:
    """The missing prerequisites of a firewall backend, its tools included."""
    missing = []
    for sentence in backend.BACKENDS[name].missing_tools():
        message, _, next_step = sentence.rpartition("; ")
        missing.append(failed(TOOLS, f"{message} (--firewall {name})", next_step))
    return missing + await findings(backend.BACKENDS[name])


async def interface_findings(settings: Settings) -> list[Finding]:
    """Whether the interface for VIPs is one: of any other interface kroute would take the node's addresses for VIPs."""
    name = settings.dummy_interface
    async with Links() as links:
        state = await links.read(name)
    if state is None or state.kind == DUMMY:
        return []
    message = f"--dummy-interface {name}: that is an interface of this node ({state.kind or 'a device'}), not a dummy"
    return [failed(INTERFACE, message, f"name one that kroute can make, such as {DEFAULTS.dummy_interface}")]


async def findings(required: Required | Backend, proc: Path = Path("/proc")) -> list[Finding]:
    """The missing prerequisites; empty if kroute can start. Modules that can be loaded are loaded."""
    missing = []
    for name, purpose in required.capabilities.items():
        if not has_capability(name, proc):
            next_step = f"run kroute as root, or add {name} to its container's capabilities"
            missing.append(failed(CAPABILITIES, f"CAP_{name} is missing ({purpose})", next_step))
    for name in await modules.load(list(required.modules)):
        message = f"kernel module {name} ({required.modules[name]}) cannot be loaded"
        missing.append(failed(MODULES, message, LOAD_MODULE.format(name)))
    return missing


def has_capability(name: str, proc: Path = Path("/proc")) -> bool:
    """Whether this process has the capability now (`CapEff` of proc(5))."""
    status = (proc / "self/status").read_text()
    effective = next(line for line in status.splitlines() if line.startswith("CapEff:"))
    return bool(int(effective.split()[1], 16) >> CAPABILITY_NUMBERS[name] & 1)
