"""The ledger between versions of kroute, as docs/upgrade.md promises it: read in both directions, nothing lost."""

from pathlib import Path

from structlog.testing import capture_logs

from kroute.model.plan import Protocol, VirtualServerKey
from kroute.reconcile import ledger_file
from kroute.reconcile.ledger import Ledger, LinkMade, VirtualServerDeleted, VirtualServerMade

WEB = VirtualServerKey(Protocol.TCP, "10.96.0.1", 80)
DNS = VirtualServerKey(Protocol.UDP, "fd00::10", 53)
FUTURE = ledger_file.sealed(b'{"event":"route-made","destination":"10.0.0.0/8","via":{"x":[1]}}')
CHANGED = ledger_file.sealed(b'{"event":"link-made","name":{"in":"netns","is":"kube-ipvs0"}}')
"""An entry that this version knows, in a form that it does not."""


def file_of(directory: Path, *lines: bytes, version: int = 1) -> Path:
    """Write a whole ledger of these lines, whose head says this version of the format."""
    head = b'{"event":"ledger","version":%d,"lines":"%010d"}' % (version, len(lines))
    path = directory / "ledger"
    path.write_bytes(b"".join([ledger_file.sealed(head), *lines]))
    return path


def web(**fields: object) -> bytes:
    more = "".join(f',"{name}":"{value}"' for name, value in fields.items())
    return ledger_file.sealed(f'{{"event":"virtual-server-made","key":[6,"10.96.0.1",80]{more}}}'.encode())


def test_a_newer_versions_entries_are_kept_and_are_no_damage(tmp_path: Path) -> None:
    path = file_of(tmp_path, web(), FUTURE, CHANGED)
    with capture_logs() as logs:
        ledger = Ledger.open(tmp_path)
    assert (ledger.virtual_servers, ledger.is_whole) == ({WEB}, True)
    assert [(line["event"], line["log_level"]) for line in logs] == [("ledger.lines_kept", "info")]
    ledger.adopt([WEB, DNS], ["kube-ipvs0"])
    assert path.read_bytes().splitlines(keepends=True)[1:3] == [FUTURE, CHANGED]
    again = Ledger.open(tmp_path)
    assert (again.virtual_servers, again.links, again.is_whole) == ({WEB, DNS}, {"kube-ipvs0"}, True)


def test_a_newer_versions_entries_are_kept_however_long_the_older_one_runs(tmp_path: Path) -> None:
    path = file_of(tmp_path, web(), FUTURE)
    ledger = Ledger.open(tmp_path)
    for _ in range(2500):
        ledger.record([VirtualServerMade(DNS)])
        ledger.record([VirtualServerDeleted(DNS)])
    path.unlink()
    assert ledger.restore()
    assert path.read_bytes().splitlines(keepends=True).count(FUTURE) == 1
    assert Ledger.open(tmp_path).virtual_servers == {WEB}


def test_a_newer_versions_fields_are_ignored(tmp_path: Path) -> None:
    file_of(tmp_path, web(owner="kroute", backup="10.96.0.2"))
    with capture_logs() as logs:
        ledger = Ledger.open(tmp_path)
    assert (ledger.virtual_servers, ledger.is_whole, logs) == ({WEB}, True, [])


def test_a_newer_format_is_believed_where_it_can_be_read_and_never_fatal(tmp_path: Path) -> None:
    """It may lack lines for this version: then the dummy interface decides too, as without a ledger."""
    path = file_of(tmp_path, web(), FUTURE, b"a line of another form\n", version=2)
    with capture_logs() as logs:
        ledger = Ledger.open(tmp_path)
    assert (ledger.virtual_servers, ledger.exists, ledger.is_whole) == ({WEB}, True, False)
    assert [line["event"] for line in logs] == ["ledger.lines_kept", "ledger.line_skipped", "ledger.newer"]
    ledger.adopt([WEB, DNS], [])
    assert FUTURE in path.read_bytes()
    assert Ledger.open(tmp_path).is_whole


def test_nothing_of_another_version_is_left_after_a_cleanup(tmp_path: Path) -> None:
    path = file_of(tmp_path, web(), FUTURE)
    ledger = Ledger.open(tmp_path)
    assert ledger.remove()
    ledger.record([LinkMade("kube-ipvs0")])
    assert FUTURE not in path.read_bytes()
