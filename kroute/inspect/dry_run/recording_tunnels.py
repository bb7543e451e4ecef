"""Direct return in a dry run."""

from collections.abc import Collection, Sequence

from kroute.inspect.dry_run.recording import ADD, DELETE, Recorder
from kroute.kernel.clients import TunnelClient
from kroute.kernel.errors import Failure
from kroute.kernel.net.steering import Steer
from kroute.kernel.pods.namespaces import PodNamespace
from kroute.kernel.pods.pod_network import PodTunnel


class RecordingTunnels:
    """Reads the node's routes. No namespace of a pod is entered, so whether a pod is right is not known here."""

    def __init__(self, tunnels: TunnelClient, recorder: Recorder) -> None:
        self._tunnels = tunnels
        self._recorder = recorder

    async def steered(self) -> set[str]:
        return await self._tunnels.steered()

    async def ensure_rules(self, mark: int) -> list[str]:  # noqa: ARG002
        return []

    async def steer(self, changes: Sequence[Steer]) -> list[Failure[Steer]]:
        for it in changes:
            what = f"deliver packets to {it.address}"
            self._recorder.note("direct return", ADD if it.is_wanted else DELETE, what, it.address)
        return []

    async def remove(self) -> bool:
        return False

    async def find(self, addresses: Collection[str]) -> list[PodNamespace]:
        return [PodNamespace(0, 0, frozenset([it]), frozenset()) for it in addresses]

    async def prepare(self, namespace: PodNamespace, tunnel: PodTunnel) -> list[str]:  # noqa: ARG002
        return []

    async def undo(self, namespace: PodNamespace, family: int) -> bool:  # noqa: ARG002
        return False

    async def strict_interface(self, pod: str) -> str | None:  # noqa: ARG002
        return None
