"""Make the wheel of a release from its commit: `python -m tests.releases COMMIT`.

The wheel has the package and nothing that a wheel needs not have. The same commit always makes the same members, with
the same dates; how they are compressed is up to zlib.
"""

import base64
import hashlib
import io
import re
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Mapping
from pathlib import Path

DATE = (2026, 1, 1, 0, 0, 0)
"""The date of every member: the true one would tell when the wheel was made."""
_VERSION = re.compile(rb'__version__ = "(.+)"')
_ENTRY_POINTS = b"[console_scripts]\nkroute = kroute.cli.main:main\n"
_WHEEL = b"Wheel-Version: 1.0\nGenerator: kroute tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n"


def package(commit: str) -> dict[str, bytes]:
    """The files of the package `kroute` in a commit, by path. Raises CalledProcessError without that commit."""
    command = ["git", "archive", "--format=tar", commit, "kroute"]
    archive = subprocess.run(command, check=True, capture_output=True, cwd=Path(__file__).parent.parents[1]).stdout
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        return {it.name: read.read() for it in tar.getmembers() if it.isfile() and (read := tar.extractfile(it))}


def members(files: Mapping[str, bytes]) -> tuple[str, dict[str, bytes]]:
    """The version, and all members of the wheel by path: the package, and what PEP 427 asks for."""
    found = _VERSION.search(files["kroute/__init__.py"])
    assert found is not None
    version = found[1].decode()
    about = f"kroute-{version}.dist-info"
    metadata = f"Metadata-Version: 2.1\nName: kroute\nVersion: {version}\n".encode()
    made = {
        **dict(sorted(files.items())),
        f"{about}/METADATA": metadata,
        f"{about}/WHEEL": _WHEEL,
        f"{about}/entry_points.txt": _ENTRY_POINTS,
    }
    lines = [f"{path},sha256={digest(text)},{len(text)}\n" for path, text in made.items()]
    made[f"{about}/RECORD"] = "".join([*lines, f"{about}/RECORD,,\n"]).encode()
    return version, made


def digest(text: bytes) -> str:
    """A hash as RECORD has it."""
    return base64.urlsafe_b64encode(hashlib.sha256(text).digest()).rstrip(b"=").decode()


def write(directory: Path, files: Mapping[str, bytes]) -> Path:
    """Write the wheel of these files of the package, and return its path."""
    version, made = members(files)
    path = directory / f"kroute-{version}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as wheel:
        for name, text in made.items():
            wheel.writestr(zipfile.ZipInfo(name, DATE), text, zipfile.ZIP_DEFLATED, 9)
    return path


if __name__ == "__main__":
    print(write(Path(__file__).parent, package(sys.argv[1])))
