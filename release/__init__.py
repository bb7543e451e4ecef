"""Builds what a release consists of: `python -m release DIRECTORY`, or `make release`.

Everything is the same, byte by byte, whenever and wherever it is built from one commit and the same packages: times
are those of the commit (SOURCE_DATE_EPOCH), files are sorted, owners are root.
"""

import os
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[1]


@dataclass(frozen=True)
class Source:
    """What is released: its version, its commit, and the time that all files get.

    `epoch` is in seconds since 1970; `revision` is the commit, or `unknown` outside of a clone.
    """

    version: str
    revision: str
    epoch: int

    @classmethod
    def here(cls) -> "Source":
        """This tree. SOURCE_DATE_EPOCH, if set, is the time; else the commit's."""
        [version] = re.findall(r'^__version__ = "(.+)"$', (PROJECT / "kroute/__init__.py").read_text(), re.MULTILINE)
        commit, _, time = _git("log", "-1", "--format=%H %ct").partition(" ")
        return cls(version, commit or "unknown", int(os.environ.get("SOURCE_DATE_EPOCH") or time or 1767225600))


def _git(*arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=PROJECT, capture_output=True, text=True, check=False)
    return done.stdout.strip() if done.returncode == 0 else ""
