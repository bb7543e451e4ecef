"""Direct return in a dry run."""

from collections.abc import Collection, Sequence

from kroute.inspect.dry_run.recording import ADD, DELETE, Recorder
from kroute.kernel.clients import TunnelClient
from kroute.kernel.errors import Failure
from kroute.kernel.net.steering import Steer
from kroute.kernel.netlink.message import address_family
from kroute.kernel.pods.client import LINKS
from kroute.kernel.pods.namespaces import PodNamespace
from kroute.kernel.pods.pod_network import PodTunnel


class RecordingTunnels:
    """Reads the node's routes and rules, and finds pods. None is entered.

    So of a pod it is known whether it has the end of a tunnel, and not whether all of it is right, or is ours.
    """

    def __init__(self, tunnels: TunnelClient, recorder: Recorder) -> None:
        self._tunnels = tunnels
        self._recorder = recorder

    async def steered(self) -> set[str]:
        return await self._tunnels.steered()

    async def has_rules(self, mark: int) -> bool:
        return await self._tunnels.has_rules(mark)

    async def ensure_rules(self, mark: int) -> list[str]:
        if not await self._tunnels.has_rules(mark):
            self._recorder.note("direct return", ADD, f"rules for packets with mark {mark:#x}", "")
        return []

    async def steer(self, changes: Sequence[Steer]) -> list[Failure[Steer]]:
        for it in changes:
            what = f"deliver packets to {it.address}"
            self._recorder.note("direct return", ADD if it.is_wanted else DELETE, what, it.address)
        return []

    async def remove(self) -> bool:
        return False

    async def find(self, addresses: Collection[str]) -> list[PodNamespace]:
        return await self._tunnels.find(addresses)

    async def has_address(self, namespace: PodNamespace, address: str) -> bool:
        return address in namespace.addresses

    async def prepare(self, namespace: PodNamespace, tunnel: PodTunnel) -> list[str]:
        link = LINKS[address_family(tunnel.address)]
        if link not in namespace.links:
            self._recorder.note(
                "direct return", ADD, f"end of a tunnel {link} in pod {tunnel.address}", min(tunnel.vips)
            )
        return []

    async def undo(self, namespace: PodNamespace, family: int) -> bool:  # noqa: ARG002
        return False

    async def strict_interface(self, pod: str) -> str | None:
        return await self._tunnels.strict_interface(pod)
