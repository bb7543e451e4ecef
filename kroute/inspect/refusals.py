"""The packets that network policies have refused lately, as the agent keeps them for `kroute policy watch`."""

from collections import deque
from collections.abc import Iterator
from typing import ClassVar

import msgspec

from kroute.model.document import Document, View
from kroute.model.policy_plan import Direction

NEWEST = 100
"""Packets that are kept: as many as are logged in ten seconds."""


class RefusedPacket(View):
    """A packet that was refused: its ends, with the names of pods (NAMESPACE/NAME), and the policies that refuse it.

    `time` is when the agent has read it, up to a second after the kernel has dropped it. `number` grows from packet to
    packet, and over restarts of the agent. `direction` says which of the two pods they select: of Ingress the
    destination, of Egress the source. `group` is the name of its chain; `policies` are the first of `policies_total`,
    of one namespace, which is empty for ClusterNetworkPolicies. Ports are null where the packet shows none, and a pod
    is empty for the address of no pod.
    """

    time: str
    direction: Direction
    protocol: str
    source: str
    source_port: int | None
    source_pod: str
    destination: str
    destination_port: int | None
    destination_pod: str
    namespace: str
    policies: list[str]
    policies_total: int
    group: str
    number: int = 0


class RefusedPacketList(Document):
    """Packets that were refused, the oldest first.

    `left_out` counts the refused packets that were not listed, as only so many a second are, since the agent began;
    `newest` is the number of the newest packet.
    """

    kind: ClassVar[str] = "RefusedPacketList"

    items: list[RefusedPacket]
    newest: int
    left_out: int

    def names(self) -> Iterator[str]:
        """The pods that the policies select, as `kroute explain` takes them."""
        for packet in self.items:
            is_ingress = packet.direction is Direction.INGRESS
            yield f"pod/{packet.destination_pod if is_ingress else packet.source_pod}"


class Refusals:
    """The newest refused packets, and how many others there were. The first packet has the number after `start`."""

    def __init__(self, start: int) -> None:
        self._packets = deque[RefusedPacket](maxlen=NEWEST)
        self._newest = start
        self._left_out = 0

    def add(self, packet: RefusedPacket) -> None:
        """Number a packet, and keep it."""
        self._newest += 1
        packet.number = self._newest
        self._packets.append(packet)

    def leave_out(self, packets: int) -> None:
        """Count packets that are not kept."""
        self._left_out += packets

    def after(self, number: int) -> RefusedPacketList:
        """The packets with higher numbers."""
        return RefusedPacketList([it for it in self._packets if it.number > number], self._newest, self._left_out)


def decode_refusals(answer: bytes) -> RefusedPacketList | None:
    """The agent's answer; None if it does not log what policies refuse."""
    return msgspec.json.decode(answer, type=RefusedPacketList | None)
