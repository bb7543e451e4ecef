"""The programs of the real Kubernetes and of etcd, if this machine has them.

They are looked for in the directory that KUBERNETES names, or else in ../shared/kubernetes beside the clone: as the
release archives of Kubernetes and etcd (`kubernetes-server-linux-amd64.tar.gz`, `etcd-VERSION-linux-amd64.tar.gz`),
as what is in these, or each packed alone, `etcd.xz` for example. All parts of Kubernetes may be one program, `k8s.xz`,
whose name or first word says which to be. What is packed is unpacked into the cache before the lab's machines start,
since they see the host's files read-only.
"""

import fcntl
import lzma
import os
import shutil
import tarfile
from pathlib import Path
from typing import IO, cast

from tests.lab.places import PROJECT, cache

VERSION = "1.36.2"
PARTS = ("kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet", "kubectl", "kube-proxy")
"""Those of Kubernetes."""
PACKED = Path(os.environ.get("KUBERNETES") or PROJECT.parent / "shared" / "kubernetes")


def missing(*names: str) -> str | None:
    """What is to be said if one of the programs is not here, and what to fetch; None if all are."""
    lacking = [name for name in names if _source(name) is None]
    if not lacking:
        return None
    archives = ["kubernetes-server-linux-amd64.tar.gz"] * any(name in PARTS for name in lacking)
    others = {"etcd": "etcd-VERSION-linux-amd64.tar.gz"}
    archives += [others.get(name, f"{name}.xz") for name in lacking if name not in PARTS]
    wanted = " and ".join(dict.fromkeys(archives))
    where = f"put {wanted} (Kubernetes {VERSION}) there, or name a directory that has it in KUBERNETES"
    return f"no {', '.join(lacking)} in {PACKED}: {where}"


def program(name: str) -> Path | None:
    """Where the program of this name is once it is unpacked; None if it is not here."""
    source = _source(name)
    if source is None or source.name == name:
        return source
    state = source.stat()
    return cache() / f"kubernetes-{state.st_size:x}-{int(state.st_mtime):x}" / name


def unpack(name: str) -> Path | None:
    """Unpack the program, if it is there and it was not done before; returns where it is."""
    source, wanted = _source(name), program(name)
    if source is None or wanted is None or wanted.exists():
        return wanted
    wanted.parent.mkdir(parents=True, exist_ok=True)
    with (wanted.parent / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        content = wanted.with_name(source.stem) if source.suffix == ".xz" else wanted
        if not content.exists():
            unfinished = content.with_suffix(".unfinished")
            with _opened(source, name) as packed, unfinished.open("wb") as target:
                shutil.copyfileobj(packed, target)
            unfinished.chmod(0o755)
            unfinished.rename(content)
        if not wanted.exists():
            wanted.symlink_to(content.name)
    return wanted


def required(name: str) -> Path:
    """Where the program of this name is, unpacked. Raises FileNotFoundError: it is not here."""
    found = unpack(name)
    if found is None:
        raise FileNotFoundError(missing(name))
    return found


def _source(name: str) -> Path | None:
    """The program, or the file that it is packed in."""
    own = ("k8s.xz", name, f"kubernetes/server/bin/{name}", f"server/bin/{name}", "kubernetes-server-linux-*.tar.gz")
    patterns = own if name in PARTS else (f"{name}.xz", name, f"{name}-*/{name}", f"{name}-*.tar.gz")
    return next((found for pattern in patterns for found in sorted(PACKED.glob(pattern)) if found.is_file()), None)


def _opened(source: Path, name: str) -> IO[bytes]:
    if source.suffix == ".xz":
        return cast(IO[bytes], lzma.open(source))
    archive = tarfile.open(source)  # noqa: SIM115 (the file that is returned reads from it)
    content = archive.extractfile(next(member for member in archive if Path(member.name).name == name))
    assert content is not None
    return content
