"""The wheels of previous releases are what their commits were, and can be made again."""

import csv
import io
import subprocess
import zipfile
from pathlib import Path

import pytest

from kroute import __version__
from tests import releases
from tests.releases import COMMITS
from tests.releases import __main__ as maker

DIRECTORY = Path(releases.__file__).parent
MOST_BYTES = 640 << 10


@pytest.mark.parametrize("version", COMMITS)
class TestRelease:
    def test_its_wheel_is_intact_and_small(self, version: str) -> None:
        path = releases.wheel(version)
        assert path.stat().st_size < MOST_BYTES
        with zipfile.ZipFile(path) as wheel:
            record = wheel.read(f"kroute-{version}.dist-info/RECORD").decode()
            for name, digest, _size in csv.reader(io.StringIO(record)):
                if digest:
                    assert digest == f"sha256={maker.digest(wheel.read(name))}", name
            assert f'__version__ = "{version}"' in wheel.read("kroute/__init__.py").decode()

    def test_it_is_its_commit_and_no_more(self, version: str) -> None:
        """Where history reaches back to the commit; elsewhere the members are in order."""
        with zipfile.ZipFile(releases.wheel(version)) as wheel:
            found = {name: wheel.read(name) for name in wheel.namelist()}
        try:
            package = maker.package(COMMITS[version])
        except (subprocess.CalledProcessError, OSError):
            package = {name: text for name, text in found.items() if name.startswith("kroute/")}
        assert found == maker.members(package)[1]

    def test_the_page_says_of_which_commit_it_is(self, version: str) -> None:
        assert f"| {version} | `{COMMITS[version]}` |" in (DIRECTORY / "README.md").read_text()


def test_there_are_only_releases_before_this_version() -> None:
    assert {path.name for path in DIRECTORY.glob("*.whl")} == {releases.wheel(it).name for it in COMMITS}
    assert __version__ not in COMMITS


def test_the_same_files_make_the_same_wheel(tmp_path: Path) -> None:
    files = {"kroute/__init__.py": b'__version__ = "9.9"\n', "kroute/cli/main.py": b"x = 1\n"}
    first = maker.write(tmp_path, files).read_bytes()
    backwards = dict(reversed(files.items()))
    assert maker.write(tmp_path, backwards).read_bytes() == first
