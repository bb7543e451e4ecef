"""Archives and trees whose bytes depend on their content only."""

import gzip
import io
import os
import tarfile
from collections.abc import Callable
from pathlib import Path


def tar(directory: Path, epoch: int, *, prefix: str = "") -> bytes:
    """The files of `directory`, links to files followed, as a tar archive of root's files with the time `epoch`."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT, dereference=True) as archive:
        for path in sorted(it for it in directory.rglob("*") if it.is_file()):
            archive.add(path, f"{prefix}{path.relative_to(directory)}", filter=_root_at(epoch))
    return buffer.getvalue()


def gzipped(content: bytes) -> bytes:
    return gzip.compress(content, 9, mtime=0)


def settle(tree: Path, epoch: int) -> None:
    """Give every file of the tree the time `epoch`, and permissions that do not depend on the umask."""
    for path in [*tree.rglob("*"), tree]:
        if not path.is_symlink():
            executable = path.is_dir() or path.stat().st_mode & 0o100
            path.chmod(0o755 if executable else 0o644)
        os.utime(path, (epoch, epoch), follow_symlinks=False)


def _root_at(epoch: int) -> Callable[[tarfile.TarInfo], tarfile.TarInfo]:
    def changed(info: tarfile.TarInfo) -> tarfile.TarInfo:
        info.uid = info.gid = 0
        info.uname = info.gname = "root"
        info.mtime = epoch
        info.mode = 0o755 if info.mode & 0o100 else 0o644
        return info

    return changed
