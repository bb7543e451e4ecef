"""The real Kubernetes, if this machine has it: `k8s.xz`, a packed program whose first word says which part of it to be.

It is looked for in the directory that KUBERNETES names, or else in ../shared/kubernetes beside the clone. It is
unpacked into the cache before the lab's machines start, since they see the host's files read-only.
"""

import contextlib
import fcntl
import lzma
import os
import shutil
from pathlib import Path

from tests.lab.places import PROJECT, cache

VERSION = "1.36.2"
MISSING = f"no Kubernetes {VERSION} here: KUBERNETES names no directory with k8s.xz, nor is there ../shared/kubernetes"


PACKED = Path(os.environ.get("KUBERNETES") or PROJECT.parent / "shared" / "kubernetes")


def program(name: str = "k8s") -> Path | None:
    """Where the program of this name is unpacked to; None if it is not there packed."""
    with contextlib.suppress(OSError):
        state = (PACKED / f"{name}.xz").stat()
        return cache() / f"kubernetes-{state.st_size:x}-{int(state.st_mtime):x}" / name
    return None


def unpack(name: str = "k8s") -> Path | None:
    """Unpack the program, if it is there and it was not done before; returns where it is."""
    wanted = program(name)
    if wanted is None or wanted.exists():
        return wanted
    wanted.parent.mkdir(parents=True, exist_ok=True)
    with (wanted.parent / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not wanted.exists():
            unfinished = wanted.with_suffix(".unfinished")
            with lzma.open(PACKED / f"{name}.xz") as source, unfinished.open("wb") as target:
                shutil.copyfileobj(source, target)
            unfinished.chmod(0o755)
            unfinished.rename(wanted)
    return wanted
