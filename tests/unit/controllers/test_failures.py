"""The table of failures in docs/design.md ("What stays closed, and what stays as it is"): what the kernel refuses.

A Service that is served, a new one and its neighbour meet each failure together, and so do a port with source ranges
that is served and a new one.
"""

import errno
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import msgspec
import pytest

from kroute.controllers.service_proxy.readiness import LONGEST_PATIENCE, PATIENCE
from kroute.kernel.errors import KernelError
from kroute.kernel.ipset import IPSET_ERR_HASH_FULL, AddEntry
from kroute.kernel.ipvs.objects import AddRealServer, AddVirtualServer
from kroute.kernel.net.addresses import BindAddress
from kroute.kernel.net.routes import SetLocalRoute
from kroute.model.plan import AddressSet, ServicePlan, SetEntry
from kroute.reconcile.ledger import LedgerError
from tests.unit.fake_node import DUMMY, FakeNode, plan, server

OLD, NEW, NEW_TOO, NEIGHBOUR, GUARDED, NEW_GUARDED = (f"203.0.113.{number}" for number in range(1, 7))
EXISTING = (OLD, GUARDED)
EVERY = (*EXISTING, NEW, NEW_TOO, NEIGHBOUR, NEW_GUARDED)


def guarded(name: str, generation: int, address: str) -> ServicePlan:
    """Return a Service with a port for clients in 192.0.2.0/24 only."""
    of_all, port = plan(name, generation, server(address, 80, "10.1.0.9")), (address, 6, 80)
    own = (SetEntry(AddressSet.RESTRICTED, port), SetEntry(AddressSet.SOURCE_RANGE, (*port, "192.0.2.0/24")))
    return msgspec.structs.replace(of_all, set_entries=(*of_all.set_entries, *own))


FIRST = (plan("old", 1, server(OLD, 80, "10.1.0.1", "10.1.0.2")), guarded("guarded", 2, GUARDED))
MORE = (
    plan("new", 3, server(NEW, 80, "10.1.0.3"), server(NEW_TOO, 80, "10.1.0.4")),
    plan("neighbour", 4, server(NEIGHBOUR, 80, "10.1.0.5")),
    guarded("new-guarded", 5, NEW_GUARDED),
)


def live(node: FakeNode) -> set[str]:
    """Return the addresses that are bound and have a real server for new connections."""
    return {
        address
        for (_, address, _), state in node.kernel.virtual_servers.items()
        if node.kernel.has_address(address) and any(real.weight for real in state.real_servers.values())
    }


class Failure(NamedTuple):
    """What the kernel refuses, which addresses are not live for as long as it does, and which of them wait 5 s."""

    refuses: Callable[[object], bool]
    never: tuple[str, ...] = ()
    late: tuple[str, ...] = ()
    number: int = errno.ENOMEM


FAILURES = {
    "an address": Failure(lambda it: isinstance(it, BindAddress) and it.address == NEW, never=(NEW,)),
    "a virtual server": Failure(
        lambda it: isinstance(it, AddVirtualServer) and it.key.address == NEW, never=(NEW,), late=(NEW_TOO,)
    ),
    "a real server": Failure(
        lambda it: isinstance(it, AddRealServer) and it.key.address == NEW, never=(NEW,), late=(NEW_TOO,)
    ),
    "a route": Failure(lambda it: isinstance(it, SetLocalRoute) and it.address == NEW, late=(NEW, NEW_TOO)),
    "a set entry": Failure(
        lambda it: isinstance(it, AddEntry) and it.set == "KROUTE-CLUSTER-IP" and it.element[0] == NEW,
        late=(NEW, NEW_TOO),
    ),
    "an entry of a full set": Failure(
        lambda it: isinstance(it, AddEntry) and it.set == "KROUTE-RESTRICTED",
        never=(NEW_GUARDED,),
        number=IPSET_ERR_HASH_FULL,
    ),
    "rules, whose lock is held": Failure(lambda it: "commit table" in str(it), number=errno.EAGAIN),
}


@pytest.mark.parametrize("failure", FAILURES.values(), ids=FAILURES)
async def test_what_is_refused_costs_what_is_new_and_needs_it(tmp_path: Path, failure: Failure) -> None:
    node = await FakeNode(tmp_path).start(*FIRST)
    node.kernel.refuse(failure.refuses, failure.number)
    await node.apply(*MORE)
    at_first = live(node)
    await node.wait(PATIENCE)
    after_five_seconds = live(node)
    await node.wait(LONGEST_PATIENCE)
    assert at_first == set(EVERY) - {*failure.never, *failure.late}
    assert after_five_seconds == live(node) == set(EVERY) - {*failure.never}
    node.kernel.accept_all()
    await node.resync()
    assert live(node) == set(EVERY)


TABLES = {"nat": (), "mangle": (GUARDED, NEW_GUARDED), "filter": (GUARDED, NEW_GUARDED)}


@pytest.mark.parametrize(("table", "never"), TABLES.items(), ids=TABLES)
async def test_a_table_that_is_missing_at_the_first_start_closes_restricted_ports_if_it_guards_them(
    tmp_path: Path, table: str, never: tuple[str, ...]
) -> None:
    node = FakeNode(tmp_path)
    node.kernel.refuse(lambda it: str(it) == f"commit table {table}", errno.ENOENT)
    await node.start(*FIRST, *MORE)
    assert live(node) == set(EVERY) - {*never}, "and nothing waits for rules that guard nobody"
    await node.wait(LONGEST_PATIENCE)
    assert live(node) == set(EVERY) - {*never}
    node.kernel.accept_all()
    await node.resync()
    assert live(node) == set(EVERY)


async def test_what_the_ledger_cannot_name_waits_and_all_else_is_as_usual(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = await FakeNode(tmp_path).start(*FIRST)

    def full(_made: object) -> None:
        raise LedgerError("cannot write the ledger: no space left; make room")

    with monkeypatch.context() as patch:
        patch.setattr(node.ledger, "record", full)
        await node.apply(*MORE)
        await node.wait(LONGEST_PATIENCE)
        assert live(node) == set(EXISTING)
    await node.resync()
    assert live(node) == set(EVERY)


async def test_a_pass_without_memory_fails_as_a_whole_and_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = await FakeNode(tmp_path).start(*FIRST)

    async def out_of_memory(_changes: object) -> list[object]:
        raise KernelError("cannot send: no memory", errno=errno.ENOMEM)

    with monkeypatch.context() as patch:
        patch.setattr(node.ipset, "write", out_of_memory)
        await node.apply(*MORE)
        await node.wait(LONGEST_PATIENCE)
        assert live(node) == set(EVERY) - {NEW_GUARDED}, "new restricted ports are closed until it succeeds"
        assert node.masquerade.statistics().failing_for > 0
    await node.resync()
    assert live(node) == set(EVERY)


async def test_another_program_that_deletes_rules_and_entries_costs_nothing_if_they_can_be_written(
    tmp_path: Path,
) -> None:
    node = await FakeNode(tmp_path).start(*FIRST)
    node.kernel.tables.clear()
    for each in node.kernel.sets.values():
        each.elements.clear()
    await node.apply(*MORE)
    assert set(EXISTING) <= live(node)
    await node.resync()
    assert live(node) == set(EVERY)
    assert (GUARDED, 6, 80) in node.kernel.sets["KROUTE-RESTRICTED"].elements
    assert DUMMY in node.kernel.links


async def test_a_damaged_ledger_costs_nothing_that_is_served(tmp_path: Path) -> None:
    node = await FakeNode(tmp_path).start(*FIRST)
    node.ledger.close()
    text = node.ledger.path.read_bytes()
    node.ledger.path.write_bytes(text[: len(text) // 2])
    node = await node.restarted().start(*FIRST, *MORE)
    assert live(node) == set(EVERY)
    assert not [write for write in map(str, node.kernel.writes) if OLD in write or GUARDED in write]
