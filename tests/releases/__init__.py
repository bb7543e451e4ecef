"""Previous releases of kroute, as files that the tests can run. README.md says how they are made."""

import zipfile
from pathlib import Path

COMMITS = {"0.1.0": "bdd957cff57cbc9d96851a42b5b916acb402d6a4"}
"""The releases, each with its commit."""


def wheel(version: str) -> Path:
    """The wheel of a release."""
    return Path(__file__).parent / f"kroute-{version}-py3-none-any.whl"


def environment(version: str, directory: Path) -> dict[str, str]:
    """Unpack a release below `directory`; the variables with which `python -m kroute` is that release."""
    unpacked = directory / f"kroute-{version}"
    with zipfile.ZipFile(wheel(version)) as archive:
        archive.extractall(unpacked)
    return {"PYTHONPATH": str(unpacked), "PYTHONSAFEPATH": "1", "PYTHONDONTWRITEBYTECODE": "1"}
