"""What the cluster is made of and nothing installs: trees in the cache that are made once."""

import fcntl
import hashlib
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

from tests.lab.places import cache

KEPT = 12
"""Trees of one name: as many clones may use the cache at once."""
_ONLY_DEPENDS = [f"--no-{kind}" for kind in ["recommends", "suggests", "conflicts", "breaks", "replaces", "enhances"]]


def run(*command: str | Path, cwd: Path | None = None) -> str:
    """Run a command. Returns what it prints. Raises RuntimeError with its errors if it fails."""
    done = subprocess.run(list(map(str, command)), cwd=cwd, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(map(str, command))}: {(done.stderr or done.stdout).strip()[-2000:]}")
    return done.stdout


def once(name: str, key: str, make: Callable[[Path], None]) -> Path:
    """Return the directory of the cache for this name and key, and let `make` fill it if it is not there.

    While it is filled, it has the suffix `.unfinished`. The oldest directories of that name are deleted.
    """
    top = cache() / "cluster"
    top.mkdir(parents=True, exist_ok=True)
    target = top / f"{name}-{hashlib.sha256(key.encode()).hexdigest()[:16]}"
    with (top / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not target.exists():
            unfinished = target.with_suffix(".unfinished")
            shutil.rmtree(unfinished, ignore_errors=True)
            unfinished.mkdir()
            make(unfinished)
            unfinished.rename(target)
        target.touch()
        for old in sorted(top.glob(f"{name}-*"), key=lambda it: it.stat().st_mtime)[:-KEPT]:
            shutil.rmtree(old)
    return target


def unpacked(name: str, *packages: str) -> Path:
    """The files of Debian packages and of all that they depend on, as this machine's apt knows them now."""
    listed = run("apt-cache", "depends", "--recurse", *_ONLY_DEPENDS, *packages)
    closure = sorted({line for line in listed.splitlines() if line[:1].isalnum() and "debconf" not in line})
    sources = run("apt-get", "download", "--print-uris", *closure)

    def make(directory: Path) -> None:
        debs = directory / "debs"
        debs.mkdir()
        run("apt-get", "download", "-o", "APT::Sandbox::User=root", *closure, cwd=debs)
        for deb in debs.iterdir():
            run("dpkg", "-x", deb, directory)
        shutil.rmtree(debs)

    return once(name, sources, make)
