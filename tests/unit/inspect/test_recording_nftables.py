"""What a dry run records of nf_tables, and what it then reads."""

import socket

from kroute.inspect.recording import Recorded, Recorder, RecordingNftables
from kroute.kernel.nftables.expressions import VerdictCode, verdict
from kroute.kernel.nftables.objects import (
    AddChain,
    AddElements,
    AddRule,
    AddSet,
    AddTable,
    Chain,
    DeleteChain,
    DeleteElements,
    DeleteSet,
    DeleteTable,
    FlushChain,
    NftChange,
    NftRule,
    NftSet,
    Table,
    TableState,
)
from tests.fakes.kernel import FakeKernel
from tests.fakes.nftables import FakeNftables

TABLE = Table(socket.AF_INET, "kroute")
VIPS, OTHERS = NftSet("vip", ("ip",)), NftSet("others", ("ip",))
INPUT, PLAIN = Chain("input", "filter", "input", -5), Chain("plain")
OLD, NEW = (NftRule("input", (verdict(VerdictCode.RETURN),), name) for name in ("old", "new"))
ONE = (("10.0.0.1",),)


async def recording(*changes: NftChange) -> tuple[RecordingNftables, Recorder, FakeKernel]:
    """A recording client on a kernel on which these changes are made already."""
    kernel, recorder = FakeKernel(), Recorder()
    client = FakeNftables(kernel)
    await client.open()
    if changes:
        assert await client.transact(TABLE, changes) == []
    kernel.writes.clear()
    return RecordingNftables(client, recorder), recorder, kernel


async def elements(client: RecordingNftables, of: NftSet) -> list[tuple[str | int, ...]]:
    return [it async for part in client.elements(TABLE, of) for it in part]


async def test_a_table_that_is_only_recorded_is_read() -> None:
    client, recorder, kernel = await recording()
    assert await client.read(TABLE) is None
    changes = [AddTable(), AddSet(VIPS), AddChain(INPUT), AddRule(NEW), AddElements(VIPS, ONE)]
    assert await client.transact(TABLE, changes) == []
    assert await client.read(TABLE) == TableState({"vip": VIPS}, {"input": INPUT}, [(0, NEW)])
    assert await elements(client, VIPS) == []
    assert [it.what for it in recorder.changes] == [
        "add table ip kroute",
        "add set vip of table ip kroute",
        "add chain input of table ip kroute",
        'add a rule "new" to chain input of table ip kroute',
        "add 10.0.0.1 to set vip",
    ]
    assert kernel.writes == []


async def test_what_the_kernel_has_is_read_with_what_is_recorded() -> None:
    made = (AddTable(), AddSet(VIPS), AddSet(OTHERS), AddChain(INPUT), AddChain(PLAIN), AddRule(OLD))
    client, recorder, kernel = await recording(*made, AddElements(VIPS, ONE))
    rewriting = [AddTable(), FlushChain("input"), DeleteChain("plain"), AddRule(NEW), DeleteSet("others")]
    assert await client.transact(TABLE, rewriting) == []
    assert await client.read(TABLE) == TableState({"vip": VIPS}, {"input": INPUT}, [(0, NEW)])
    assert await elements(client, VIPS) == list(ONE)
    assert recorder.changes[0].what == "flush chain input of table ip kroute"
    assert await client.transact(TABLE, [DeleteTable()]) == []
    assert await client.read(TABLE) is None
    assert kernel.writes == []


async def test_each_element_is_a_change_of_its_own() -> None:
    client, recorder, _kernel = await recording(AddTable(), AddSet(VIPS), AddElements(VIPS, ONE))
    adding, deleting = AddElements(VIPS, (("10.0.0.2",), ("10.0.0.3",))), DeleteElements(VIPS, ONE)
    assert await client.write(TABLE, [adding, deleting]) == []
    assert recorder.changes == [
        Recorded("set entry", "add", "add 10.0.0.2 to set vip", ("ip kroute vip", ("10.0.0.2",))),
        Recorded("set entry", "add", "add 10.0.0.3 to set vip", ("ip kroute vip", ("10.0.0.3",))),
        Recorded("set entry", "delete", "delete 10.0.0.1 from set vip", ("ip kroute vip", ("10.0.0.1",))),
    ]
