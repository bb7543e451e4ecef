"""A ledger with any bytes can be opened, and no damage makes a foreign object ours."""

import os
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from kroute.model.plan import Protocol, VirtualServerKey
from kroute.reconcile import ledger_file
from kroute.reconcile.ledger import (
    AddressMade,
    Ledger,
    LedgerError,
    LinkMade,
    SysctlChanged,
    VirtualServerDeleted,
    VirtualServerMade,
)
from tests.examples import examples

KEYS = [VirtualServerKey(Protocol.TCP, f"10.96.0.{number}", 80) for number in range(1, 6)]
GONE = VirtualServerKey(Protocol.UDP, "fd00::10", 53)


def write(directory: Path) -> bytes:
    ledger = Ledger.open(directory)
    ledger.record([VirtualServerMade(key) for key in (*KEYS, GONE)])
    ledger.record([LinkMade("kube-ipvs0"), SysctlChanged("net.ipv4.ip_forward", "0", "1")])
    ledger.record([VirtualServerDeleted(GONE), AddressMade("eth0", "192.168.0.9")])
    ledger.close()
    return ledger.path.read_bytes()


def opened(directory: Path, text: bytes) -> Ledger:
    (directory / "ledger").write_bytes(text)
    return Ledger.open(directory)


def assert_nothing_is_invented(ledger: Ledger) -> None:
    assert ledger.virtual_servers <= {*KEYS, GONE}
    assert ledger.links <= {"kube-ipvs0"}
    assert ledger.addresses <= {("eth0", "192.168.0.9")}
    assert ledger.sysctls in ({}, {"net.ipv4.ip_forward": SysctlChanged("net.ipv4.ip_forward", "0", "1")})
    if ledger.is_whole:
        assert ledger.virtual_servers == set(KEYS)


def test_a_file_that_was_cut_short_anywhere_is_known_as_damaged(tmp_path: Path) -> None:
    whole = write(tmp_path)
    for length in range(len(whole)):
        ledger = opened(tmp_path, whole[:length])
        assert not ledger.is_whole, length
        assert_nothing_is_invented(ledger)


def test_an_emptied_file_is_no_ledger(tmp_path: Path) -> None:
    ledger = opened(tmp_path, b"")
    assert not ledger.exists
    assert not ledger.is_whole


def test_a_lost_line_is_missed(tmp_path: Path) -> None:
    lines = write(tmp_path).splitlines(keepends=True)
    for lost in range(len(lines)):
        ledger = opened(tmp_path, b"".join(lines[:lost] + lines[lost + 1 :]))
        assert not ledger.is_whole, lost
        assert_nothing_is_invented(ledger)


@examples(300)
@given(where=st.integers(0, 10_000), bit=st.integers(0, 7))
def test_a_flipped_bit_costs_its_line_only(where: int, bit: int) -> None:
    with TemporaryDirectory() as directory:
        path = Path(directory)
        text = bytearray(write(path))
        text[where % len(text)] ^= 1 << bit
        ledger = opened(path, bytes(text))
        assert_nothing_is_invented(ledger)
        assert len(ledger.virtual_servers & set(KEYS)) >= len(KEYS) - 2  # a flipped newline joins two lines


@examples(300)
@given(
    st.lists(st.one_of(st.binary(max_size=200), st.sampled_from([b"\n", b"{", b"[", b'"check":', b"\x00", b"\xff"])))
)
def test_any_bytes_can_be_opened(parts: list[bytes]) -> None:
    with TemporaryDirectory() as directory:
        opened(Path(directory), b"".join(parts) + b"\n")
        opened(Path(directory), write(Path(directory)) + b"".join(parts) + b"\n")


@pytest.mark.parametrize(
    "line",
    [
        b"[" * 100_000,
        b'{"event":' * 50_000,
        b'{"event":"link-made","name":"\xff\xfe"}',
        b'{"event":"link-made","name":"\\ud800"}',
        b'{"event":"virtual-server-made","key":[6,"10.96.0.1",' + b"9" * 10_000 + b"]}",
        b'{"event":"virtual-server-made","key":[1e999,"10.96.0.1",1]}',
    ],
    ids=lambda line: line[:50],
)
def test_a_senseless_line_costs_itself_even_if_its_checksum_is_right(tmp_path: Path, line: bytes) -> None:
    good = b'{"event":"virtual-server-made","key":[6,"10.96.0.1",80]}', b'{"event":"link-made","name":"kube-ipvs0"}'
    first, last = map(ledger_file.sealed, good)
    ledger = opened(tmp_path, first + ledger_file.sealed(line) + last)
    assert (ledger.virtual_servers, ledger.links) == ({KEYS[0]}, {"kube-ipvs0"})
    assert ledger.exists
    assert not ledger.is_whole, "it has no head"


def test_a_kill_between_the_lines_and_the_head_that_counts_them_is_no_damage(tmp_path: Path) -> None:
    before = write(tmp_path)
    more = ledger_file.sealed(b'{"event":"virtual-server-made","key":[6,"10.96.0.9",80]}')
    for length in range(len(more) + 1):
        assert opened(tmp_path, before + more[:length]).is_whole, length


def test_few_warnings_for_any_damage(tmp_path: Path) -> None:
    lines = write(tmp_path).splitlines(keepends=True)
    with capture_logs() as logs:
        opened(tmp_path, lines[0] + b"".join(b"garbage\n" for _ in range(10_000)))
    assert len(logs) < 10


def test_what_is_no_file_is_refused_and_nothing_waits_for_it(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "ledger")
    with pytest.raises(LedgerError, match="not a file"):
        Ledger.open(tmp_path)


def test_of_a_huge_file_a_bounded_part_is_read(tmp_path: Path) -> None:
    whole = write(tmp_path)
    with (tmp_path / "ledger").open("r+b") as file:
        file.truncate(10 << 30)
    assert len(ledger_file.read(tmp_path / "ledger")) == ledger_file.MOST_BYTES
    assert_nothing_is_invented(Ledger.open(tmp_path))
    assert len(whole) < 2000


def test_a_live_ledger_that_somebody_emptied_is_written_anew(tmp_path: Path) -> None:
    ledger = Ledger.open(tmp_path)
    ledger.record([VirtualServerMade(KEYS[0])])
    ledger.path.write_bytes(b"")
    assert ledger.restore()
    assert Ledger.open(tmp_path).virtual_servers == {KEYS[0]}
