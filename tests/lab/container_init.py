"""Run crun in a mount namespace of its own: `python -m tests.lab.container_init BUNDLE IMAGE CRUN-ARGUMENT...`.

`BUNDLE/root` becomes the container's file system: that of the image, on which changes stay in memory, as a snapshot of
a container runtime. The network is the caller's, as with hostNetwork. crun replaces this process: it passes SIGTERM on
to the container, and its exit code is the container's.
"""

import ctypes
import os
import sys
from pathlib import Path

_CLONE_NEWNS = 0x20000
_MS_REC, _MS_PRIVATE = 16384, 1 << 18

_libc = ctypes.CDLL(None, use_errno=True)


def mount(source: str, target: Path, kind: str = "none", flags: int = 0, data: str = "") -> None:
    words = (source.encode(), os.fsencode(target), kind.encode(), ctypes.c_ulong(flags), data.encode())
    if _libc.mount(*words) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"mount {source} on {target}: {os.strerror(number)}")


def make_root(bundle: Path, image: Path) -> None:
    mount("none", Path("/"), flags=_MS_REC | _MS_PRIVATE)
    scratch = bundle / "scratch"
    scratch.mkdir(exist_ok=True)
    mount("scratch", scratch, "tmpfs")
    upper, work = scratch / "upper", scratch / "work"
    for directory in (upper, work, bundle / "root"):
        directory.mkdir(exist_ok=True)
    mount("root", bundle / "root", "overlay", data=f"lowerdir={image},upperdir={upper},workdir={work}")


def main() -> None:
    bundle, image, *arguments = sys.argv[1:]
    if _libc.unshare(_CLONE_NEWNS) != 0:
        raise OSError(ctypes.get_errno(), "unshare")
    make_root(Path(bundle), Path(image))
    os.execvp("crun", ["crun", *arguments])


if __name__ == "__main__":
    main()
