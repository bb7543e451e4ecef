"""The ledger: what kroute has made on this node, whatever happens while it is written."""

from pathlib import Path

import pytest
from structlog.testing import capture_logs

from kroute.model.plan import Protocol, VirtualServerKey
from kroute.reconcile.ledger import (
    Ledger,
    LedgerError,
    LinkMade,
    SysctlChanged,
    TakeOverBegun,
    TakeOverDone,
    TimeoutsChanged,
    VirtualServerDeleted,
    VirtualServerMade,
)

WEB = VirtualServerKey(Protocol.TCP, "10.96.0.1", 80)
DNS = VirtualServerKey(Protocol.UDP, "fd00::10", 53)


def test_a_new_ledger_makes_no_file_until_something_is_made(tmp_path: Path) -> None:
    ledger = Ledger.open(tmp_path)
    assert not ledger.exists
    ledger.record([])
    assert list(tmp_path.iterdir()) == []


def test_what_was_recorded_is_there_after_a_kill(tmp_path: Path) -> None:
    ledger = Ledger.open(tmp_path)
    ledger.record([VirtualServerMade(WEB), VirtualServerMade(DNS), LinkMade("kube-ipvs0")])
    ledger.record([VirtualServerDeleted(WEB)])
    again = Ledger.open(tmp_path)
    assert again.exists
    assert again.virtual_servers == {DNS}
    assert again.links == {"kube-ipvs0"}
    assert isinstance(next(iter(again.virtual_servers)), VirtualServerKey)


def test_virtual_servers_are_kept_in_the_order_in_which_they_were_made(tmp_path: Path) -> None:
    keys = [VirtualServerKey(Protocol.TCP, f"10.96.0.{number}", 80) for number in (7, 30, 2, 19)]
    ledger = Ledger.open(tmp_path)
    ledger.record(VirtualServerMade(key) for key in [WEB, *keys])
    ledger.record([VirtualServerDeleted(WEB)])
    assert list(Ledger.open(tmp_path).virtual_servers) == keys
    ledger.adopt([*ledger.virtual_servers, DNS], ())
    assert list(Ledger.open(tmp_path).virtual_servers) == [*keys, DNS]


def test_of_a_sysctl_the_first_value_and_of_the_timeouts_the_first_are_kept(tmp_path: Path) -> None:
    ledger = Ledger.open(tmp_path)
    ledger.record([SysctlChanged("net.ipv4.ip_forward", "0", "1"), TimeoutsChanged((900, 120, 300), (60, 120, 300))])
    ledger.record([SysctlChanged("net.ipv4.ip_forward", "2", "1"), TimeoutsChanged((60, 120, 300), (70, 120, 300))])
    again = Ledger.open(tmp_path)
    assert again.sysctls == {"net.ipv4.ip_forward": SysctlChanged("net.ipv4.ip_forward", "0", "1")}
    assert again.timeouts == TimeoutsChanged((900, 120, 300), (70, 120, 300))


def test_a_take_over_is_unfinished_until_it_is_done(tmp_path: Path) -> None:
    ledger = Ledger.open(tmp_path)
    ledger.record([TakeOverBegun("kube-proxy"), TakeOverBegun("kube-router")])
    ledger.record([TakeOverDone("kube-router")])
    assert Ledger.open(tmp_path).take_overs == {"kube-proxy"}
    ledger.adopt([DNS], ())
    assert Ledger.open(tmp_path).take_overs == {"kube-proxy"}, "a rewritten file has it, too"


def test_a_batch_is_one_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import os

    ledger = Ledger.open(tmp_path)
    ledger.record([LinkMade("x")])
    writes: list[bytes] = []
    real = os.write
    monkeypatch.setattr("os.write", lambda descriptor, text: writes.append(text) or real(descriptor, text))
    ledger.record([VirtualServerMade(WEB), VirtualServerMade(DNS)])
    assert len(writes) == 1
    assert writes[0].count(b"\n") == 2


def test_a_torn_last_line_is_no_line(tmp_path: Path) -> None:
    ledger = Ledger.open(tmp_path)
    ledger.record([VirtualServerMade(WEB), VirtualServerMade(DNS)])
    whole = ledger.path.read_bytes()
    head, first, _second = whole.splitlines(keepends=True)
    for length in range(len(head) + len(first), len(whole)):
        ledger.path.write_bytes(whole[:length])
        torn = Ledger.open(tmp_path)
        assert torn.virtual_servers == {WEB}, whole[:length]


def test_lines_after_a_torn_one_are_whole_lines(tmp_path: Path) -> None:
    ledger = Ledger.open(tmp_path)
    ledger.record([VirtualServerMade(WEB)])
    ledger.path.write_bytes(ledger.path.read_bytes()[:-5])
    torn = Ledger.open(tmp_path)
    torn.record([VirtualServerMade(DNS)])
    assert Ledger.open(tmp_path).virtual_servers == {DNS}


def test_a_line_without_meaning_is_skipped_with_a_warning(tmp_path: Path) -> None:
    ledger = Ledger.open(tmp_path)
    ledger.record([VirtualServerMade(WEB)])
    with ledger.path.open("ab") as file:
        file.write(b'\x00\x00{"event":"from-the-future"}\n')
    ledger.record([VirtualServerMade(DNS)])
    with capture_logs() as logs:
        assert Ledger.open(tmp_path).virtual_servers == {WEB, DNS}
    assert [(line["event"], line["line"]) for line in logs] == [("ledger.line_skipped", 3)]


def test_it_does_not_grow_with_what_came_and_went(tmp_path: Path) -> None:
    ledger = Ledger.open(tmp_path)
    ledger.record([VirtualServerMade(DNS)])
    for _ in range(5000):
        ledger.record([VirtualServerMade(WEB)])
        ledger.record([VirtualServerDeleted(WEB)])
    assert ledger.path.read_bytes().count(b"\n") < 1100
    assert Ledger.open(tmp_path).virtual_servers == {DNS}


def test_adopting_replaces_what_the_file_says_and_keeps_the_old_values(tmp_path: Path) -> None:
    ledger = Ledger.open(tmp_path)
    ledger.record([VirtualServerMade(WEB), LinkMade("kube-ipvs0"), SysctlChanged("net.ipv4.ip_forward", "0", "1")])
    ledger.adopt([DNS], [])
    again = Ledger.open(tmp_path)
    assert (again.virtual_servers, again.links) == ({DNS}, set())
    assert again.sysctls["net.ipv4.ip_forward"].old == "0"
    assert [path.name for path in tmp_path.iterdir()] == ["ledger"]


def test_a_ledger_that_somebody_removed_is_written_anew(tmp_path: Path) -> None:
    ledger = Ledger.open(tmp_path)
    ledger.record([VirtualServerMade(WEB)])
    assert not ledger.restore()
    ledger.path.unlink()
    assert ledger.restore()
    assert Ledger.open(tmp_path).virtual_servers == {WEB}


def test_without_room_nothing_may_be_made_and_the_next_attempt_starts_whole(tmp_path: Path) -> None:
    ledger = Ledger.open(tmp_path)
    ledger.record([VirtualServerMade(WEB)])
    ledger.close()
    ledger.path.with_suffix(".new").mkdir()
    with pytest.raises(LedgerError, match="check the state directory"):
        ledger.record([VirtualServerMade(DNS)])
    assert ledger.virtual_servers == {WEB}
    ledger.path.with_suffix(".new").rmdir()
    ledger.record([VirtualServerMade(DNS)])
    assert Ledger.open(tmp_path).virtual_servers == {WEB, DNS}


def test_a_short_write_is_a_failure_and_leaves_no_torn_line_in_the_middle(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import os

    ledger = Ledger.open(tmp_path)
    ledger.record([VirtualServerMade(WEB)])
    real = os.write
    with monkeypatch.context() as patch:
        patch.setattr("os.write", lambda descriptor, text: real(descriptor, text[:10]))
        with pytest.raises(LedgerError, match="make room"):
            ledger.record([VirtualServerMade(DNS)])
    ledger.record([LinkMade("x")])
    with capture_logs() as logs:
        again = Ledger.open(tmp_path)
    assert (again.virtual_servers, again.links, logs) == ({WEB}, {"x"}, [])


def test_a_removed_ledger_is_gone_and_removing_it_again_does_nothing(tmp_path: Path) -> None:
    ledger = Ledger.open(tmp_path)
    ledger.record([VirtualServerMade(WEB)])
    assert ledger.remove()
    assert not ledger.path.exists()
    assert not ledger.remove()


def test_a_ledger_that_cannot_be_read_says_so(tmp_path: Path) -> None:
    (tmp_path / "ledger").mkdir()
    with pytest.raises(LedgerError, match="cannot read"):
        Ledger.open(tmp_path)
