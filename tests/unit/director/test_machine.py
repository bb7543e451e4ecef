"""Which addresses are the machine's own, and which the director has added."""

from pathlib import Path

from kroute.director.wiring import OwnAddresses
from kroute.model.node_facts import NodeInterfaces
from kroute.reconcile.ledger import AddressDeleted, AddressMade, Ledger

OWN, VIP = "192.0.2.5", "203.0.113.1"


def own(addresses: OwnAddresses, *seen: str) -> set[str]:
    return set(addresses.without_vips(NodeInterfaces(frozenset(seen))).own)


def test_vips_are_not_the_machines_own(tmp_path: Path) -> None:
    ledger = Ledger.open(tmp_path)
    addresses = OwnAddresses(ledger)
    assert own(addresses, OWN, VIP) == {OWN, VIP}
    ledger.record([AddressMade("eth0", VIP)])
    assert own(addresses, OWN, VIP) == {OWN}


def test_what_an_earlier_run_has_bound_is_not_either(tmp_path: Path) -> None:
    Ledger.open(tmp_path).record([AddressMade("eth0", VIP)])
    assert own(OwnAddresses(Ledger.open(tmp_path)), OWN, VIP) == {OWN}


def test_a_vip_stays_one_until_it_is_seen_to_be_gone(tmp_path: Path) -> None:
    """The ledger drops it when the kernel has answered; the event may be read later, after others."""
    ledger = Ledger.open(tmp_path)
    addresses = OwnAddresses(ledger)
    ledger.record([AddressMade("eth0", VIP)])
    own(addresses, OWN, VIP)
    ledger.record([AddressDeleted("eth0", VIP)])
    assert own(addresses, OWN, VIP) == {OWN}
    assert own(addresses, OWN) == {OWN}
    assert own(addresses, OWN, VIP) == {OWN, VIP}
