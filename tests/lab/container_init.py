"""Run a command as a container runtime does: `python -m tests.lab.container_init SPECIFICATION` (JSON).

The command gets its own mount and pid namespaces; the network is the caller's, as with hostNetwork. It gets the image's
files read-only, /proc with a read-only /proc/sys, the volumes, and the named ones of root's capabilities. SIGTERM is
passed on to it. Its exit code becomes this process's.
"""

import ctypes
import json
import os
import signal
import sys
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

_CLONE_NEWNS, _CLONE_NEWPID = 0x20000, 0x20000000
_MS_RDONLY, _MS_REMOUNT, _MS_BIND, _MS_REC, _MS_PRIVATE = 1, 32, 4096, 16384, 1 << 18

READ_ONLY_IN_PROC = ("sys", "bus", "fs", "irq", "sysrq-trigger")
"""Mounted read-only, as runc does for a container that is not privileged."""
DEVICES = ("null", "zero", "full", "random", "urandom")

_libc = ctypes.CDLL(None, use_errno=True)


def mount(source: str, target: Path, kind: str = "none", flags: int = 0, data: str = "") -> None:
    words = (source.encode(), os.fsencode(target), kind.encode(), ctypes.c_ulong(flags), data.encode())
    if _libc.mount(*words) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"mount {source} on {target}: {os.strerror(number)}")


def bind(source: Path, target: Path, *, read_only: bool = False) -> None:
    if source.is_dir():
        target.mkdir(parents=True, exist_ok=True)
    else:
        target.parent.mkdir(parents=True, exist_ok=True)
        target.touch()
    mount(str(source), target, flags=_MS_BIND)
    if read_only:
        mount("none", target, flags=_MS_REMOUNT | _MS_BIND | _MS_RDONLY)


def make_root(specification: dict[str, Any]) -> Path:
    """Create the container's file system. Changes of the image's files, before it is made read-only, stay in memory."""
    mount("none", Path("/"), flags=_MS_REC | _MS_PRIVATE)
    scratch = Path(specification["scratch"])
    mount("scratch", scratch, "tmpfs")
    root, upper, work = (scratch / name for name in ("root", "upper", "work"))
    for directory in (root, upper, work):
        directory.mkdir()
    mount("root", root, "overlay", data=f"lowerdir={specification['image']},upperdir={upper},workdir={work}")
    mount("proc", root / "proc", "proc")
    for name in READ_ONLY_IN_PROC:
        if (root / "proc" / name).exists():
            bind(root / "proc" / name, root / "proc" / name, read_only=True)
    mount("sysfs", root / "sys", "sysfs", _MS_RDONLY)
    mount("dev", root / "dev", "tmpfs")
    for name in DEVICES:
        bind(Path("/dev", name), root / "dev" / name)
    for target in specification["empty"]:
        (root / target.lstrip("/")).mkdir(parents=True, exist_ok=True)
        mount("empty", root / target.lstrip("/"), "tmpfs")
    for volume in specification["volumes"]:
        bind(Path(volume["source"]), root / volume["target"].lstrip("/"), read_only=volume["readOnly"])
    if specification["readOnlyRoot"]:
        mount("none", root, flags=_MS_REMOUNT | _MS_BIND | _MS_RDONLY)
    return root


def become(specification: dict[str, Any]) -> NoReturn:
    """Replace this process, the first of its pid namespace, by the command."""
    os.setsid()
    os.chroot(make_root(specification))
    os.chdir("/")
    bounding = ",".join(["-all", *(f"+{name.lower()}" for name in specification["capabilities"])])
    flags = [f"--bounding-set={bounding}", "--inh-caps=-all", "--clear-groups"]
    flags += [f"--reuid={specification['user']}", f"--regid={specification['group']}"]
    if specification["noNewPrivileges"]:
        flags.append("--no-new-privs")
    os.execve("/usr/bin/setpriv", ["setpriv", *flags, "--", *specification["command"]], specification["environment"])


def main() -> int:
    """Run the command to its end. Returns its exit code, or 128 plus the number of the signal that ended it."""
    specification = json.loads(sys.argv[1])
    if _libc.unshare(_CLONE_NEWNS | _CLONE_NEWPID) != 0:
        raise OSError(ctypes.get_errno(), "unshare")
    child = os.fork()
    if child == 0:
        become(specification)

    def pass_on(number: int, _frame: FrameType | None) -> None:
        os.kill(child, number)

    signal.signal(signal.SIGTERM, pass_on)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    sys.exit(main())
