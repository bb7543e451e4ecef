"""The Debian package as a file. tests/machine/test_under_systemd.py installs it."""

import _imp
import hashlib
import os
import subprocess
from pathlib import Path

import pytest

from release import Source, debian
from tests.lab.container import image

pytestmark = pytest.mark.release
SOURCE = Source("1.2.3", "0123456789abcdef", 1_800_000_000)


def test_a_second_build_elsewhere_is_the_same_and_has_what_it_promises(tmp_path: Path) -> None:
    first = debian.build(SOURCE, tmp_path, image(), level=1)
    other = tmp_path / "another/directory"
    other.mkdir(parents=True)
    umask = os.umask(0o077)
    try:
        second = debian.build(SOURCE, other, image(), level=1)
    finally:
        os.umask(umask)
    digests = {hashlib.sha256(it.read_bytes()).hexdigest() for it in (first, second)}
    assert len(digests) == 1
    check_contents(first)


def check_contents(package: Path) -> None:
    def ask(*arguments: str) -> str:
        return subprocess.run(["dpkg-deb", *arguments], check=True, capture_output=True, text=True).stdout

    assert ask("--field", str(package), "Package", "Version") == "Package: kroute\nVersion: 1.2.3\n"
    lines = [line.split() for line in ask("--contents", str(package)).splitlines()]
    owners = {line[1] for line in lines}
    assert owners == {"root/root"}
    files = {line[5].removeprefix("."): line[0] for line in lines}
    for name in debian.UNITS:
        assert files[f"/usr/lib/systemd/system/{name}"] == "-rw-r--r--"
    assert files["/usr/lib/tmpfiles.d/kroute.conf"] == "-rw-r--r--"
    assert files["/usr/bin/kroute"].startswith("l")
    assert {"/etc/kroute/kroute.yaml", "/etc/kroute/director.yaml"} <= files.keys()
    assert not [name for name in files if name.startswith("/opt/kroute/bin/pip")]
    for name in ("man8/kroute.8.gz", "man8/kroute-run.8.gz", "man8/kroute-director.8.gz"):
        assert f"/usr/share/man/{name}" in files
    for name in (
        "bash-completion/completions/kroute",
        "zsh/vendor-completions/_kroute",
        "fish/vendor_completions.d/kroute.fish",
    ):
        assert f"/usr/share/{name}" in files


def test_the_image_has_the_byte_code_of_every_module_that_an_agent_may_import() -> None:
    """Its files are read-only, so Python would compile a third of a second's worth at each start."""
    packages = next((image() / "opt/kroute/lib").glob("python3*/site-packages"))
    sources = [*packages.rglob("*.py")]
    assert len(sources) > 500
    stale = [it.relative_to(packages) for it in sources if not has_byte_code(it)]
    assert stale == []


def has_byte_code(source: Path) -> bool:
    """Whether a Python of the image's version takes its byte code without a look at the source (PEP 552)."""
    compiled = [*(source.parent / "__pycache__").glob(f"{source.stem}.cpython-*.pyc")]
    if len(compiled) != 1:
        return False
    header = compiled[0].read_bytes()[:16]
    magic, flags = int.from_bytes(header[:4], "little"), int.from_bytes(header[4:8], "little")
    is_unchecked = flags == 1
    return is_unchecked and header[8:] == _imp.source_hash(magic, source.read_bytes())
