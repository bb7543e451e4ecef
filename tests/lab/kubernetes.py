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


def program() -> Path | None:
    """The unpacked program; None if there is none."""
    packed = Path(os.environ.get("KUBERNETES") or PROJECT.parent / "shared" / "kubernetes") / "k8s.xz"
    with contextlib.suppress(OSError):
        state = packed.stat()
        return cache() / f"kubernetes-{state.st_size:x}-{int(state.st_mtime):x}" / "k8s"
    return None


def unpack() -> None:
    """Unpack the program, if there is one and it was not done before."""
    wanted = program()
    if wanted is None or wanted.exists():
        return
    packed = Path(os.environ.get("KUBERNETES") or PROJECT.parent / "shared" / "kubernetes") / "k8s.xz"
    wanted.parent.mkdir(parents=True, exist_ok=True)
    with (wanted.parent / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not wanted.exists():
            unfinished = wanted.with_suffix(".unfinished")
            with lzma.open(packed) as source, unfinished.open("wb") as target:
                shutil.copyfileobj(source, target)
            unfinished.chmod(0o755)
            unfinished.rename(wanted)
