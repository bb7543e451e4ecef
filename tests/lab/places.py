"""The directories of the lab. Imports only the standard library: the set-up runs it before anything is installed."""

import os
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[2]
"""The clone that contains this file."""


def cache() -> Path:
    """Return the directory for downloaded and built files, which all clones share.

    `KROUTE_CACHE` names it. By default it is `kroute` in the user's cache (`XDG_CACHE_HOME`, by default `~/.cache`).
    """
    users = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return Path(os.environ.get("KROUTE_CACHE") or users / "kroute").resolve()


def leftovers() -> Path:
    """Return the clone's own directory for files of its last run: consoles and durations."""
    directory = PROJECT / ".lab"
    directory.mkdir(exist_ok=True)
    return directory


if __name__ == "__main__":
    print(cache())
