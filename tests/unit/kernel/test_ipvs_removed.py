"""Somebody removes the module ip_vs: it is loaded again, and asked by its new number."""

import errno
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import pytest

from kroute.kernel import modules
from kroute.kernel.errors import KernelError
from kroute.kernel.ipvs import client
from kroute.kernel.ipvs.client import Ipvs
from kroute.kernel.ipvs.objects import AddVirtualServer, VirtualServerOptions
from kroute.kernel.netlink.message import HEADER
from kroute.kernel.netlink.netlink_socket import NetlinkSocket

ADD = AddVirtualServer((6, "10.96.0.1", 80), VirtualServerOptions("rr"))


class Kernel(NetlinkSocket):
    """A kernel whose family IPVS has a number, or none; it refuses messages to another as the kernel does."""

    def __init__(self) -> None:
        super().__init__(16)
        self.family: int | None = 30
        self.schedulers = {"rr"}
        self.asked: list[int] = []

    async def request(self, message: bytes, parse: Callable[[bytes], object]) -> list[object]:  # type: ignore[override]
        self._check(message)
        return []

    async def transact(self, messages: Sequence[bytes]) -> dict[int, int]:
        refused = {}
        for index, message in enumerate(messages):
            try:
                self._check(message)
            except KernelError as error:
                refused[index] = error.errno or 0
        if not refused and not self.schedulers:
            refused = dict.fromkeys(range(len(messages)), errno.ENOENT)
        return refused

    def _check(self, message: bytes) -> None:
        family = HEADER.unpack_from(message)[1]
        self.asked.append(family)
        if family != self.family:
            raise KernelError("no such family", errno=errno.ENOENT)


@pytest.fixture
def kernel(monkeypatch: pytest.MonkeyPatch) -> Kernel:
    """Return a kernel that loads ip_vs, with the next number, whenever it is asked to."""
    made = Kernel()
    numbers = iter(range(31, 99))

    async def load(names: Iterable[str]) -> list[str]:
        assert list(names) == ["ip_vs"]
        if made.family is None:
            made.family = next(numbers)
        return []

    async def find(netlink: object, name: str) -> int:
        if made.family is None:
            raise KernelError(f"the kernel has no {name}", errno=errno.ENOENT)
        return made.family

    monkeypatch.setattr(modules, "load", load)
    monkeypatch.setattr(client, "find_family", find)
    return made


@pytest.fixture
def ipvs(kernel: Kernel) -> Ipvs:
    opened = Ipvs()
    opened.netlink, opened._family = kernel, 30
    return opened


async def test_a_write_goes_to_the_module_that_was_loaded_again(ipvs: Ipvs, kernel: Kernel) -> None:
    kernel.family = None
    assert await ipvs.write([ADD]) == []
    assert kernel.asked == [30, 31]


async def test_a_question_goes_to_the_module_that_was_loaded_again(ipvs: Ipvs, kernel: Kernel) -> None:
    kernel.family = None
    assert await ipvs.sync_daemons() == set()
    assert kernel.asked == [30, 31]


async def test_a_missing_scheduler_is_refused_once(ipvs: Ipvs, kernel: Kernel) -> None:
    kernel.schedulers.clear()
    assert [failure.errno for failure in await ipvs.write([ADD])] == [errno.ENOENT]
    assert kernel.asked == [30]


async def test_without_the_module_everything_is_an_error_of_the_kernel(
    ipvs: Ipvs, kernel: Kernel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def load_nothing(names: Iterable[str]) -> list[str]:
        return list(names)

    monkeypatch.setattr(modules, "load", load_nothing)
    monkeypatch.setattr(client, "TABLE", tmp_path / "ip_vs")
    kernel.family = None
    with pytest.raises(KernelError, match="the kernel has no IPVS"):
        await ipvs.read()
    with pytest.raises(KernelError, match="the kernel has no IPVS"):
        _ = [part async for part in ipvs.scan()]
    with pytest.raises(KernelError, match="the kernel has no IPVS"):
        await ipvs.write([ADD])


async def test_a_table_that_goes_while_it_is_read_is_an_error_of_the_kernel(
    ipvs: Ipvs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "TABLE", tmp_path / "ip_vs")
    with pytest.raises(KernelError, match="there is no IPVS table: load the module ip_vs"):
        _ = [part async for part in ipvs.scan()]
