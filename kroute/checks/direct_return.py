"""Whether this process may prepare the node's pods for direct return, and the kernel has the tunnels."""

from collections.abc import Mapping
from pathlib import Path

from kroute.checks.finding import Finding, ok, warning
from kroute.checks.preflight import has_capability
from kroute.kernel import modules
from kroute.settings import Settings

DIRECT_RETURN = "direct return"
CAPABILITIES: Mapping[str, tuple[int, str]] = {
    "SYS_PTRACE": (19, "to see the network namespaces of other processes"),
    "SYS_ADMIN": (21, "to enter them"),
}
"""What direct return needs besides, by the number of include/uapi/linux/capability.h and the purpose."""
INITIAL_PID_NAMESPACE = "pid:[4026531836]"
"""The same on every machine (PROC_PID_INIT_INO, include/linux/proc_ns.h)."""
_PAGE = "see docs/direct-return.md"


async def check_direct_return(settings: Settings, *, ipv6: bool, proc: Path = Path("/proc")) -> list[Finding]:
    """What prevents direct return here; nothing is looked at without `--direct-return`. `ipv6`: as in `check_node`.

    Only warnings: without direct return, Services are served by address translation.
    """
    if not settings.direct_return:
        return []
    found = [
        warning(
            DIRECT_RETURN,
            f"CAP_{name} is missing ({purpose}), so no pod here can be prepared",
            f"add {name} to the container's capabilities, {_PAGE}",
        )
        for name, (number, purpose) in CAPABILITIES.items()
        if not has_capability(number, proc / "self/status")
    ]
    if str((proc / "self/ns/pid").readlink()) != INITIAL_PID_NAMESPACE:
        message = "the processes of the node's pods cannot be seen from this PID namespace"
        found.append(warning(DIRECT_RETURN, message, f"set hostPID in the pod, {_PAGE}"))
    found += [
        warning(
            DIRECT_RETURN,
            f"kernel module {name} (the end of a tunnel in a pod) is not loaded and cannot be loaded from here",
            f"run `modprobe {name}` on the node, or install the modules package of its kernel",
        )
        for name in await modules.load(["ipip", "ip6_tunnel"] if ipv6 else ["ipip"])
    ]
    return found or [ok(DIRECT_RETURN, "pods here can be prepared")]
