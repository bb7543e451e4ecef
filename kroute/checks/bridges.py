"""Look whether the kernel loses large IPv6 datagrams of pods on a bridge.

With br_netfilter the fragments are put together on the bridge, before the node's own IPv6. What that notes of their
size is cleared on the way (ip6_rcv_core), and IPVS takes the whole for one packet above the MTU: it answers "packet too
big" instead of sending it in fragments again. IPv4 has no such note and fragments again.
"""

import socket
from collections.abc import Iterable

from kroute.checks.finding import Finding, ok, warning
from kroute.kernel.clients import LinkClient, SysctlClient

BRIDGES = "bridges"
CALLED = "net.bridge.bridge-nf-call-ip6tables"
"""br_netfilter's switch for IPv6; it exists while the module is loaded."""


async def check_bridges(
    sysctls: SysctlClient, links: LinkClient, *, ipv6: bool, names: Iterable[str] | None = None
) -> list[Finding]:
    """A warning if br_netfilter is on for IPv6 and the node has a bridge. `names` are those of its links."""
    if not ipv6 or sysctls.read(CALLED) != "1":
        return [ok(BRIDGES, "large IPv6 datagrams of pods reach Services")]
    if names is None:
        names = [name for _, name in socket.if_nameindex()]
    bridges = [name for name in names if (link := await links.read(name)) is not None and link.kind == "bridge"]
    if not bridges:
        return [ok(BRIDGES, "there is none, so large IPv6 datagrams of pods reach Services")]
    return [
        warning(
            BRIDGES,
            f"IPv6 datagrams above the MTU from pods on {', '.join(sorted(bridges))} to Services are lost"
            f" ({CALLED} is 1)",
            f"keep datagrams small (DNS: EDNS 1232), or set {CALLED} to 0 where pods of one bridge need no Service of "
            "each other's, or with --masquerade-all (docs/troubleshooting.md)",
        )
    ]
