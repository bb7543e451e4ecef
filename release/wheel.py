"""The wheel, for those who have a virtual environment of their own."""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from release import PROJECT, Source
from release.archives import settle

INPUTS = ("pyproject.toml", "README.md", "LICENSE", "kroute")


def build(source: Source, output: Path) -> Path:
    """Build it with the setuptools of requirements/build.txt, from a copy of the tree. Returns its path."""
    with tempfile.TemporaryDirectory() as scratch:
        for name in INPUTS:
            origin, copy = PROJECT / name, Path(scratch, name)
            if origin.is_dir():
                shutil.copytree(origin, copy, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copy(origin, copy)
        settle(Path(scratch), source.epoch)
        pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--disable-pip-version-check"]
        subprocess.run(
            [*pip, "--no-index", "--no-deps", "--no-build-isolation", "--no-cache-dir", "--wheel-dir", output, scratch],
            check=True,
            umask=0o022,
            env={**os.environ, "SOURCE_DATE_EPOCH": str(source.epoch), "PYTHONHASHSEED": "0"},
        )
    return output / f"kroute-{source.version}-py3-none-any.whl"
