"""What planning needs to know about the director's own machine: the addresses that no Service may take from it."""

import msgspec

from kroute.model.node_facts import NO_API, ApiFacts, NodeFacts, NodeInterfaces, node_facts
from kroute.reconcile.ledger import Ledger
from kroute.settings import Settings


def machine_facts(settings: Settings, interfaces: NodeInterfaces, api: ApiFacts = NO_API) -> NodeFacts:
    """The facts of a machine that is no node: nothing is local to it, and it directs both families."""
    facts = node_facts(settings, None, interfaces, api)
    return msgspec.structs.replace(facts, name="", ipv4=None, ipv6=None, node_port_addresses=())


class OwnAddresses:
    """Tells the machine's own addresses from the VIPs that a director has bound, which are on the same interface."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._vips: frozenset[str] = frozenset()

    def without_vips(self, interfaces: NodeInterfaces) -> NodeInterfaces:
        """The interfaces without the director's VIPs.

        The ledger names a VIP before it is bound and until it is gone. Whoever reads the addresses may hear of that
        later, so a VIP stays one until the interfaces have been seen without it.
        """
        bound = {address for _, address in self._ledger.addresses}
        self._vips = (self._vips & interfaces.own) | bound
        return interfaces._replace(own=interfaces.own - self._vips)
