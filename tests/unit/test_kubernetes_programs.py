"""The programs of Kubernetes are found in each of the layouts in which somebody may have them."""

import io
import lzma
import tarfile
from pathlib import Path

import pytest

from tests.lab import kubernetes
from tests.lab.kubernetes import missing, program, unpack


@pytest.fixture(autouse=True)
def packed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty directory for the programs, and an empty cache."""
    directory = tmp_path / "packed"
    directory.mkdir()
    monkeypatch.setattr(kubernetes, "PACKED", directory)
    monkeypatch.setenv("KROUTE_CACHE", str(tmp_path / "cache"))
    return directory


def archived(file: Path, *names: str) -> None:
    with tarfile.open(file, "w:gz") as archive:
        for name in names:
            member = tarfile.TarInfo(name)
            member.size = len(name)
            archive.addfile(member, io.BytesIO(name.encode()))


def content(name: str) -> str:
    found = unpack(name)
    assert found is not None
    assert found == program(name) == unpack(name)
    assert found.stat().st_mode & 0o111
    return found.read_text()


def test_release_archives(packed: Path) -> None:
    archived(packed / "kubernetes-server-linux-amd64.tar.gz", "kubernetes/LICENSES", "kubernetes/server/bin/kubelet")
    archived(packed / "etcd-v3.6.5-linux-amd64.tar.gz", "etcd-v3.6.5-linux-amd64/etcd")
    assert content("kubelet") == "kubernetes/server/bin/kubelet"
    assert content("etcd") == "etcd-v3.6.5-linux-amd64/etcd"


@pytest.mark.parametrize("place", ["kubernetes/server/bin/kubelet", "server/bin/kubelet", "kubelet"])
def test_what_is_in_a_release_archive(packed: Path, place: str) -> None:
    (packed / place).parent.mkdir(parents=True, exist_ok=True)
    (packed / place).write_text("kubelet")
    (packed / place).chmod(0o755)
    assert content("kubelet") == "kubelet"
    assert program("kubelet") == packed / place


def test_one_program_for_all_parts_knows_which_to_be_by_its_name(packed: Path) -> None:
    (packed / "k8s.xz").write_bytes(lzma.compress(b"all parts"))
    for name in kubernetes.PARTS:
        assert content(name) == "all parts"
    kubelet, kubectl = program("kubelet"), program("kubectl")
    assert kubelet is not None
    assert kubectl is not None
    assert (kubelet.name, kubectl.name) == ("kubelet", "kubectl")
    assert kubelet.samefile(kubectl)


def test_what_is_not_there_is_named_with_what_to_fetch(packed: Path) -> None:
    assert (program("etcd"), unpack("etcd")) == (None, None)
    said = missing("etcd", "kubelet", "kubectl")
    assert said is not None
    assert "no etcd, kubelet, kubectl in" in said
    assert "kubernetes-server-linux-amd64.tar.gz and etcd-VERSION-linux-amd64.tar.gz" in said
    (packed / "etcd.xz").write_bytes(b"")
    assert missing("etcd") is None
