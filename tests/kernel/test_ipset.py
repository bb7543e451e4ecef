"""IP sets on a real kernel: many entries, and foreign sets."""

import pytest

from kroute.kernel.errors import KernelError
from kroute.kernel.ipset import AddEntry, DeleteEntry, Element, SetChange, SetDefinition
from tests.kernel.nodes import RealNode, run

pytestmark = pytest.mark.legacy


def elements(count: int) -> list[Element]:
    return [(f"10.{number >> 16}.{number >> 8 & 255}.{number & 255}", 6, 80) for number in range(count)]


async def test_thousands_of_entries(node: RealNode) -> None:
    await node.ipset.create(SetDefinition("S", "hash:ip,port", maxelem=250_000))
    many = elements(3000)
    assert await node.ipset.write([AddEntry("S", element) for element in many]) == []
    assert await node.ipset.read("S") == set(many)
    changes: list[SetChange] = [DeleteEntry("S", element) for element in many[1000:]]
    assert await node.ipset.write(changes) == []
    assert await node.ipset.read("S") == set(many[:1000])


async def test_the_ipset_command_shows_what_was_written(node: RealNode) -> None:
    await node.ipset.create(SetDefinition("S", "hash:ip,port,ip", 10, 1024, 250_000))
    await node.ipset.write([AddEntry("S", ("fd01::1", 132, 53, "fd01::1"))])
    create, add = run("ipset save S").splitlines()
    assert create.startswith("create S hash:ip,port,ip family inet6 hashsize 1024 maxelem 250000")
    assert add == "add S fd01::1,sctp:53,fd01::1"


async def test_foreign_sets_are_seen_and_told_apart(node: RealNode) -> None:
    run("ipset create PORTS bitmap:port range 1-1000")
    run("ipset create LIST list:set")
    assert await node.ipset.names() == {"PORTS", "LIST"}
    found = await node.ipset.definition("PORTS")
    assert found is not None
    assert (found.type, found.maxelem) == ("bitmap:port", 0)


async def test_a_bitmap_of_ports_is_read(node: RealNode) -> None:
    run("ipset create PORTS bitmap:port range 0-65535")
    run("ipset add PORTS 30080")
    assert await node.ipset.read("PORTS") == {(30080,)}


async def test_a_set_in_another_set_cannot_be_destroyed(node: RealNode) -> None:
    await node.ipset.create(SetDefinition("S", "hash:ip"))
    run("ipset create LIST list:set")
    run("ipset add LIST S")
    with pytest.raises(KernelError, match="another set refers to it"):
        await node.ipset.destroy("S")


async def test_an_unknown_type_is_refused_with_a_next_step(node: RealNode) -> None:
    with pytest.raises(KernelError, match="ip_set_hash_nosuch"):
        await node.ipset.create(SetDefinition("S", "hash:nosuch"))
