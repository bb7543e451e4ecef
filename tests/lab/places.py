"""Where the lab keeps its files. Imports nothing but the standard library: the set-up asks before it installs."""

import os
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[2]
"""The clone in which this file is."""


def cache() -> Path:
    """Return the directory for what is downloaded and built, which all clones share.

    `KROUTE_CACHE` names it; else it is `kroute` in the user's cache (`XDG_CACHE_HOME`, by default `~/.cache`).
    """
    users = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return Path(os.environ.get("KROUTE_CACHE") or users / "kroute").resolve()


def leftovers() -> Path:
    """Return the clone's own directory for what its last run left: consoles and durations."""
    directory = PROJECT / ".lab"
    directory.mkdir(exist_ok=True)
    return directory


if __name__ == "__main__":
    print(cache())
