"""Download Debian packages of any suite, without changing the state of this machine's apt.

apt checks the signatures against the archive's keys (package debian-archive-keyring).
"""

import os
import platform
import subprocess
from pathlib import Path

_KEYS = Path("/usr/share/keyrings/debian-archive-keyring.gpg")


class PackageError(Exception):
    """The package could not be downloaded. The message says why."""


def download(suite: str, package: str, directory: Path) -> Path:
    """Download `package` of `suite`, without its dependencies, into the empty `directory`, and return the file.

    Raises:
        PackageError: the mirror of this machine has no such suite or package, or the signature is not Debian's.
    """
    apt = _private_apt(directory / "apt", suite)
    fetched = directory / "fetched"
    fetched.mkdir()
    subprocess.run(["chown", "--quiet", "_apt", fetched], check=False)  # so that apt can download with fewer rights
    _run(apt, "apt-get", "update")
    _run(apt, "apt-get", "download", package, cwd=fetched)
    [file] = fetched.glob("*.deb")
    return file


def _private_apt(directory: Path, suite: str) -> dict[str, str]:
    """Return an environment in which apt uses only this suite, and keeps its state in `directory`."""
    for name in ("state/lists/partial", "cache/archives/partial"):
        (directory / name).mkdir(parents=True)
    sources = directory / "sources.list"
    sources.write_text(f"deb [signed-by={_KEYS}] {_mirror()} {suite} main\n")
    configuration = directory / "apt.conf"
    settings = {
        "Dir::State": directory / "state",
        "Dir::State::status": "/dev/null",
        "Dir::Cache": directory / "cache",
        "Dir::Etc::sourcelist": sources,
        "Dir::Etc::sourceparts": "-",
        "Acquire::Languages": "none",
    }
    configuration.write_text("".join(f'{name} "{value}";\n' for name, value in settings.items()))
    return {**os.environ, "APT_CONFIG": str(configuration), "LC_ALL": "C.UTF-8"}


def _mirror() -> str:
    """Return the mirror from which this machine gets its own release of Debian."""
    release = platform.freedesktop_os_release().get("VERSION_CODENAME", "")
    described = ("apt-get", "indextargets", "--format", "$(RELEASE) $(COMPONENT) $(SITE)", "Created-By: Packages")
    for line in _run({**os.environ}, *described).splitlines():
        match line.split():
            case [name, "main", site] if name == release:
                return site
    raise PackageError(f"apt has no source for main of {release or 'this release, which has no code name'}")


def _run(environment: dict[str, str], *argv: str, cwd: Path | None = None) -> str:
    done = subprocess.run(argv, env=environment, cwd=cwd, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        said = [line for line in done.stderr.splitlines() if line.startswith(("E:", "W:"))]
        raise PackageError(f"{' '.join(argv)}: {' '.join(said) or done.stderr.strip()}")
    return done.stdout
