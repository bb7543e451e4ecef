"""Debian's packages in the image come from the day from which its base was made (`deploy/install`, SNAPSHOT=yes)."""

import re
import subprocess
from pathlib import Path

import pytest

from tests.lab.manifests import DEPLOY

OF_THE_BASE = """\
Types: deb
# http://snapshot.debian.org/archive/debian/20261102T000000Z
URIs: http://deb.debian.org/debian
Suites: bookworm bookworm-updates
Components: main
Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg

Types: deb
# http://snapshot.debian.org/archive/debian-security/20261102T000000Z
URIs: http://deb.debian.org/debian-security
Suites: bookworm-security
Components: main
Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg
"""
"""The sources of debian:bookworm-slim, as debuerreotype writes them."""


def pinned(directory: Path, sources: str) -> subprocess.CompletedProcess[str]:
    """What the script makes of a system's sources."""
    given = directory / "given"
    given.write_text(sources)
    script = f"""set -euo pipefail; eval "$(sed -n '/^snapshot()/,/^}}/p' {DEPLOY}/install)"; snapshot {given}"""
    return subprocess.run(["bash", "-c", script], check=False, capture_output=True, text=True)


def test_apt_asks_the_snapshot_of_every_suite_and_nothing_else(tmp_path: Path) -> None:
    made = pinned(tmp_path, OF_THE_BASE)
    assert made.returncode == 0
    parts = tmp_path / "parts"
    parts.mkdir()
    (parts / "debian.sources").write_text(made.stdout)
    only = ("--option", "Dir::Etc::SourceList=/dev/null", "--option", f"Dir::Etc::SourceParts={parts}")
    asked = subprocess.run(["apt-get", *only, "--print-uris", "update"], check=True, capture_output=True, text=True)
    assert {re.sub(r"^'(.*?/dists/[^/]+)/.*", r"\1", line) for line in asked.stdout.splitlines()} == {
        "http://snapshot.debian.org/archive/debian/20261102T000000Z/dists/bookworm",
        "http://snapshot.debian.org/archive/debian/20261102T000000Z/dists/bookworm-updates",
        "http://snapshot.debian.org/archive/debian-security/20261102T000000Z/dists/bookworm-security",
    }
    assert made.stdout.count("Check-Valid-Until: no") == 2


@pytest.mark.parametrize(
    "sources",
    ["", OF_THE_BASE.replace("# http://snapshot", "# http://deb"), OF_THE_BASE.replace("archive/debian-security", "x")],
    ids=["none", "no snapshot", "no snapshot of the security fixes"],
)
def test_sources_that_do_not_name_their_day_are_not_taken(tmp_path: Path, sources: str) -> None:
    assert pinned(tmp_path, sources).returncode != 0


def test_the_dockerfile_pins_and_a_base_that_was_made_here_does_not() -> None:
    stages = (DEPLOY / "Dockerfile").read_text().split("\nFROM ")[1:]
    assert all("\nARG SNAPSHOT=yes\nRUN" in stage or "\nARG SNAPSHOT=yes\nWORKDIR" in stage for stage in stages)
    assert "--build-arg SNAPSHOT=no" in (DEPLOY.parent / "scripts/image").read_text()
