"""Network namespaces are found by what /proc shows of processes, whatever these do meanwhile."""

from pathlib import Path

import pytest

from kroute.kernel.errors import KernelError
from kroute.kernel.pods import namespaces
from kroute.kernel.pods.namespaces import find_namespaces

TRIE = """Main:
  +-- 0.0.0.0/0 3 0 5
     |-- 10.1.0.0
        /24 link UNICAST
     |-- {address}
        /32 host LOCAL
     |-- 10.1.0.255
        /32 link BROADCAST
"""


@pytest.fixture
def proc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(namespaces, "_depth", lambda _proc, _pid, _inode: 0)
    process(tmp_path, "self", 1, "192.0.2.1")
    process(tmp_path, "1", 1, "192.0.2.1")
    return tmp_path


def process(proc: Path, pid: str, inode: int, address: str, address6: str = "", links: str = "") -> None:
    (proc / pid / "ns").mkdir(parents=True)
    (proc / pid / "net").mkdir()
    (proc / pid / "ns/net").symlink_to(f"net:[{inode}]")
    (proc / pid / "net/fib_trie").write_text(TRIE.format(address=address))
    (proc / pid / "net/if_inet6").write_text(address6)
    (proc / pid / "net/dev").write_text(f"Inter-|\n face |\n    lo: 0\n{links}")


def test_a_pod_is_found_by_its_address_of_either_family_once(proc: Path) -> None:
    process(proc, "20", 7, "10.1.0.2", "fd000001000000000000000000000002 02 40 00 80     eth0\n")
    process(proc, "21", 7, "10.1.0.2")
    process(proc, "22", 8, "10.1.0.3")
    found = find_namespaces(["10.1.0.2", "fd00:1::2"], [], proc)
    assert [(it.inode, it.addresses) for it in found] == [(7, frozenset({"10.1.0.2", "fd00:1::2"}))]


def test_a_link_that_an_earlier_run_left_is_found_in_a_pod_that_nobody_wants(proc: Path) -> None:
    process(proc, "20", 7, "10.1.0.2", links="kroute-dsr4: 0\n")
    [found] = find_namespaces([], ["kroute-dsr4"], proc)
    assert (found.addresses, found.links) == (frozenset(), frozenset({"kroute-dsr4"}))


def test_the_nodes_own_namespace_is_no_pod(proc: Path) -> None:
    assert find_namespaces(["192.0.2.1"], [], proc) == []


def test_broadcasts_and_networks_are_no_addresses(proc: Path) -> None:
    process(proc, "20", 7, "10.1.0.2")
    assert find_namespaces(["10.1.0.255", "10.1.0.0"], [], proc) == []


def test_a_process_that_has_ended_is_left_out(proc: Path) -> None:
    (proc / "20").mkdir()
    process(proc, "21", 7, "10.1.0.2", "not an address\n")
    (proc / "21/net/fib_trie").unlink()
    process(proc, "22", 8, "10.1.0.3")
    assert [it.pid for it in find_namespaces(["10.1.0.2", "10.1.0.3"], [], proc)] == [22]


def test_thousands_of_namespaces_are_not_all_looked_into(proc: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(namespaces, "MOST_NAMESPACES", 3)
    for number in range(20, 30):
        process(proc, str(number), number, "10.1.0.2")
    assert len(find_namespaces(["10.1.0.2"], [], proc)) <= 3


def test_without_the_capability_it_is_said_which_one_is_missing(proc: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    process(proc, "20", 7, "10.1.0.2")
    real = namespaces._inode

    def refuse(place: Path, name: str) -> int:
        if name == "20":
            raise PermissionError(13, "Permission denied")
        return real(place, name)

    monkeypatch.setattr(namespaces, "_inode", refuse)
    with pytest.raises(KernelError, match="CAP_SYS_PTRACE"):
        find_namespaces(["10.1.0.2"], [], proc)


@pytest.mark.parametrize("depth", [1, 2])
def test_namespaces_of_deeper_user_namespaces_hide_no_pod(
    proc: Path, monkeypatch: pytest.MonkeyPatch, depth: int
) -> None:
    """Whoever may make user namespaces has as many as they like, and processes with smaller numbers than a new pod."""
    monkeypatch.setattr(namespaces, "MOST_NAMESPACES", 3)
    monkeypatch.setattr(namespaces, "_depth", lambda _proc, pid, _inode: 0 if pid == 90 else depth)
    for number in range(20, 30):
        process(proc, str(number), number, "10.1.0.2", links="kroute-dsr4: 0\n")
    process(proc, "90", 90, "10.1.0.3")
    found = find_namespaces(["10.1.0.3"], ["kroute-dsr4"], proc)
    assert found[0].addresses == {"10.1.0.3"}
    assert len(found) == (4 if depth == 1 else 1)


def test_what_full_namespaces_show_is_read_up_to_a_limit_for_each_depth(
    proc: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(namespaces, "BYTES_IN_ALL", 10_000)
    monkeypatch.setattr(namespaces, "_depth", lambda _proc, pid, _inode: int(pid != 90))
    for number in range(20, 30):
        process(proc, str(number), number, "10.1.0.2", links="veth: 0\n" * 500)
    process(proc, "90", 90, "10.1.0.2")
    assert [found.pid for found in find_namespaces(["10.1.0.2"], [], proc)] == [90, 20, 21]


def test_a_process_that_is_in_another_namespace_afterwards_is_left_out(
    proc: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The addresses may be those of the other one."""
    process(proc, "20", 7, "10.1.0.2")

    def move(_proc: Path, _pid: int, _inode: int) -> int:
        (proc / "20/ns/net").unlink()
        (proc / "20/ns/net").symlink_to("net:[8]")
        return 0

    monkeypatch.setattr(namespaces, "_depth", move)
    assert find_namespaces(["10.1.0.2"], [], proc) == []
