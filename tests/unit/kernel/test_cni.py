"""kroute's file of CNI is replaced in one step, and deleted."""

import errno
import os
from pathlib import Path

import pytest

from kroute.kernel.cni import CniFile, PodsBridge, kube_routers, others_before
from kroute.kernel.errors import KernelError


def test_a_file_is_written_read_and_deleted_with_nothing_beside_it(tmp_path: Path) -> None:
    file = CniFile(tmp_path / "net.d/10-kroute.conflist")
    assert file.read() is None
    for text in ("first", "second"):
        file.write(text)
        assert file.read() == text
    assert [path.name for path in (tmp_path / "net.d").iterdir()] == ["10-kroute.conflist"]
    assert file.path.stat().st_mode & 0o777 == 0o644
    assert file.remove()
    assert not file.remove()


def test_what_is_not_there_is_not_deleted_from_a_read_only_file_system(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The uninstaller's root is one, and it refuses to delete what it does not have (EROFS)."""

    def refuse(path: Path) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))

    monkeypatch.setattr(Path, "unlink", refuse)
    file = CniFile(tmp_path / "10-kroute.conflist")
    assert not file.remove()
    file.path.touch()
    with pytest.raises(KernelError, match="Read-only"):
        file.remove()


def test_files_that_runtimes_read_first_are_named_in_order(tmp_path: Path) -> None:
    for name in ("05-b.conf", "05-a.conflist", "10-kroute.conflist", "99-last.conf", "01-not.txt"):
        (tmp_path / name).touch()
    assert others_before(tmp_path / "10-kroute.conflist") == ["05-a.conflist", "05-b.conf"]


KUBE_ROUTERS = '{"name":"mynet","plugins":[{"name":"kubernetes","type":"bridge","bridge":"kube-bridge"}]}'


def test_pods_stay_on_kube_routers_bridge_and_in_its_network(tmp_path: Path) -> None:
    """Else host-local would give addresses twice that running pods have, and a node had two bridges of one network."""
    file = CniFile(tmp_path / "10-kroute.conflist")
    (tmp_path / "87-podman.conflist").write_text('{"name":"podman","plugins":[{"bridge":"cni-podman0"}]}')
    assert file.bridge_in_use() is None
    theirs = tmp_path / "10-kuberouter.conflist"
    theirs.write_text(KUBE_ROUTERS)
    found = PodsBridge("kube-bridge", "mynet")
    assert file.bridge_in_use() == found
    assert list(kube_routers(file.path)) == [(theirs, found)]
    file.write('{"name":"mynet","plugins":[{"bridge":"kube-bridge"},{"type":"portmap"}]}')
    theirs.unlink()
    assert file.bridge_in_use() == found, "kroute's own file says it from then on"
    theirs.with_suffix(".conf").write_text('{"name":"kubernetes","type":"bridge","bridge":"kube-bridge"}')
    file.write('{"name":"kroute","plugins":[{"bridge":"kroute-pods"}]}')
    assert file.bridge_in_use() == PodsBridge("kroute-pods", "kroute"), "pods are on this one"


def test_a_file_that_kube_router_is_writing_is_waited_for(tmp_path: Path) -> None:
    (tmp_path / "10-kuberouter.conflist").write_text(KUBE_ROUTERS[:20])
    with pytest.raises(KernelError, match="trying again"):
        CniFile(tmp_path / "10-kroute.conflist").bridge_in_use()
