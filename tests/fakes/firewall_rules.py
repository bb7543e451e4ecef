"""The effect of the rules, written without any rule. Backends are compared with it."""

from collections.abc import Sequence
from ipaddress import ip_address, ip_network

from kroute.firewall.packet_trace import Ending, Packet, PacketAdmission, SourceChoice
from kroute.firewall.policy import are_local_pods_known, exemptions_of, local_pods_interface, translated_source
from kroute.firewall.sets import SERVED_EVERYWHERE, Sets, holds
from kroute.model.addresses import Family
from kroute.model.node_facts import NodeFacts
from kroute.model.plan import AddressSet, Element
from kroute.settings import Settings

PASSED = PacketAdmission(Ending.NONE, "")


class FakeRules:
    """Same shape as kroute.firewall.packet_trace.Rules, for one family."""

    def __init__(self, settings: Settings, family: Family, node: NodeFacts) -> None:
        self._settings = settings
        self._family = family
        self._node = node

    def admission(self, packet: Packet, sets: Sets, *, has_virtual_server: bool) -> PacketAdmission:
        port = _port(packet)
        if _has(sets, AddressSet.RESTRICTED, port) and not _has(sets, AddressSet.SOURCE_RANGE, (*port, packet.source)):
            return PacketAdmission(Ending.DROPPED, "not in the source ranges")
        is_taken = not packet.in_interface and has_virtual_server
        if is_taken or any(_has(sets, which, port) for which in SERVED_EVERYWHERE):
            return PASSED
        if _has(sets, AddressSet.NO_ENDPOINT, port):
            return PacketAdmission(Ending.REFUSED, "no endpoint")
        if _has(sets, AddressSet.NO_LOCAL, port) and not self._is_from_local_pod(packet, sets):
            return PacketAdmission(Ending.REFUSED, "no local endpoint")
        is_served = _has(sets, AddressSet.EXTERNAL_LOCAL, port)
        if _has(sets, AddressSet.VIP, (packet.destination,)) and not is_served:
            return PacketAdmission(Ending.REFUSED, "no port of the VIP")
        return PASSED

    def sources(self, packet: Packet, real_servers: Sequence[tuple[str, int]], sets: Sets) -> list[SourceChoice]:
        is_marked = self._is_marked(packet, sets)
        return [self._source(packet, server, sets, is_marked=is_marked) for server in real_servers]

    def _source(self, packet: Packet, server: tuple[str, int], sets: Sets, *, is_marked: bool) -> SourceChoice:
        address, port = server
        if _has(sets, AddressSet.HAIRPIN, (address, packet.protocol, port, packet.source)):
            return SourceChoice(is_kept=False, address="", why="hairpin")
        if not is_marked:
            return SourceChoice(is_kept=True, address="", why="")
        source = translated_source(self._settings, self._family, self._node)
        return SourceChoice(is_kept=False, address=source or "", why="marked")

    def _is_marked(self, packet: Packet, sets: Sets) -> bool:
        for exemption in exemptions_of(self._settings, self._family):
            if _is_in(packet.source, exemption.source) and _is_in(packet.destination, exemption.destination):
                return False
        if _has(sets, AddressSet.EXTERNAL, _port(packet)):
            return True
        if not _has(sets, AddressSet.CLUSTER_IP, _port(packet)):
            return False
        can_tell = are_local_pods_known(self._settings, self._family, self._node)
        return self._settings.masquerade_all or (can_tell and not self._is_from_local_pod(packet, sets))

    def _is_from_local_pod(self, packet: Packet, sets: Sets) -> bool:
        interface = local_pods_interface(self._settings)
        if interface is None:
            return _has(sets, AddressSet.POD_NETWORK, (packet.source,))
        if interface.endswith("+"):
            return packet.in_interface.startswith(interface[:-1])
        return packet.in_interface == interface


def _port(packet: Packet) -> Element:
    return (packet.destination, packet.protocol, packet.port)


def _has(sets: Sets, which: AddressSet, key: Element) -> bool:
    return holds(sets.get(which, ()), key)


def _is_in(address: str, network: str) -> bool:
    return ip_address(address) in ip_network(network)
