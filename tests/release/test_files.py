"""What a release consists of is the same wherever and whenever it is built."""

import hashlib
import io
import json
import os
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest
import yaml

from kroute import __version__
from release import Source, images
from release.__main__ import checksums
from tests.lab.chart import render_chart
from tests.lab.manifests import DEPLOY

pytestmark = pytest.mark.release
PROJECT = DEPLOY.parent
SOURCE = Source(__version__, "0123456789abcdef", 1_800_000_000)
_BUILD = """
import os, sys
from pathlib import Path
from release import manifests, sbom, wheel
from release import Source
os.umask(int(sys.argv[2], 8))
source, output = Source({version!r}, {revision!r}, {epoch}), Path(sys.argv[1])
wheel.build(source, output)
manifests.build(source, output)
sbom.build(source, output, Path(sys.argv[3]))
sbom.build_of_bird(source, output, Path(sys.argv[3]))
"""
_STATUS = """\
Package: python3
Status: install ok installed
Architecture: amd64
Version: 3.11.2-1+b1

Package: removed
Status: deinstall ok config-files
Architecture: all
Version: 1.0
"""


def built(output: Path, root: Path, umask: str, **variables: str) -> dict[str, bytes]:
    """Every file that a build in a process of its own writes, by name."""
    output.mkdir(parents=True)
    program = _BUILD.format(version=SOURCE.version, revision=SOURCE.revision, epoch=SOURCE.epoch)
    done = subprocess.run(
        [sys.executable, "-c", program, output, umask, root],
        cwd=PROJECT,
        env={**os.environ, **variables},
        check=False,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return {it.name: it.read_bytes() for it in output.iterdir()}


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file system of an image, as far as the list of its packages goes."""
    made = tmp_path_factory.mktemp("root")
    (made / "var/lib/dpkg").mkdir(parents=True)
    (made / "var/lib/dpkg/status").write_text(_STATUS)
    return made


@pytest.fixture(scope="module")
def release(root: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    return built(tmp_path_factory.mktemp("first") / "dist", root, "022", TZ="UTC", LC_ALL="C.UTF-8")


def test_a_second_build_elsewhere_is_the_same_byte_by_byte(
    release: dict[str, bytes], root: Path, tmp_path: Path
) -> None:
    second = built(tmp_path / "a/longer/path", root, "077", TZ="Asia/Kathmandu", LC_ALL="C", PYTHONHASHSEED="7")
    assert second.keys() == release.keys()
    for name, content in release.items():
        assert hashlib.sha256(second[name]).hexdigest() == hashlib.sha256(content).hexdigest(), name


def test_the_wheel_has_every_module_and_file_of_the_package(release: dict[str, bytes]) -> None:
    with zipfile.ZipFile(io.BytesIO(release[f"kroute-{__version__}-py3-none-any.whl"])) as wheel:
        packed = {it for it in wheel.namelist() if ".dist-info/" not in it}
        [entry_points] = [wheel.read(it).decode() for it in wheel.namelist() if it.endswith("entry_points.txt")]
    files = {it for it in (PROJECT / "kroute").rglob("*") if it.is_file() and "__pycache__" not in it.parts}
    assert packed == {str(it.relative_to(PROJECT)) for it in files}
    assert "kroute = kroute.cli.main:main" in entry_points


def test_the_chart_renders_the_same_as_its_source(release: dict[str, bytes], tmp_path: Path) -> None:
    archive = tmp_path / "kroute.tgz"
    archive.write_bytes(release[f"kroute-{__version__}.tgz"])
    values = {"apiServer": {"host": "192.0.2.1"}, "prometheusRule": {"enabled": True}}
    assert render_chart(values, archive) == render_chart(values)


def test_install_yaml_is_the_chart_with_its_defaults(release: dict[str, bytes]) -> None:
    assert [it for it in yaml.safe_load_all(release["install.yaml"]) if it] == render_chart(
        {"apiServer": {"host": "API-SERVER"}}
    )


def test_the_list_of_contents_has_every_pinned_and_every_installed_package(release: dict[str, bytes]) -> None:
    listed = json.loads(release[f"kroute-{__version__}.cdx.json"])
    assert (listed["bomFormat"], listed["specVersion"]) == ("CycloneDX", "1.6")
    names = {it["purl"] for it in listed["components"]}
    assert "pkg:deb/debian/python3@3.11.2-1%2Bb1?arch=amd64&distro=debian-12" in names
    assert not [it for it in names if "removed" in it]
    pins = [it.split(" ")[0] for it in (PROJECT / "requirements/run.txt").read_text().splitlines() if "==" in it]
    assert {f"pkg:pypi/{it.replace('==', '@').lower()}" for it in pins} <= names
    [root] = [it for it in listed["dependencies"] if it["ref"] == f"pkg:pypi/kroute@{__version__}"]
    assert len(root["dependsOn"]) == len(listed["components"])


def test_the_list_of_birds_image_has_its_packages_and_none_of_python(release: dict[str, bytes]) -> None:
    listed = json.loads(release[f"kroute-bird-{images.bird_version()}.cdx.json"])
    assert listed["metadata"]["component"]["name"] == "kroute-bird"
    assert {it["purl"].partition("/")[0] for it in listed["components"]} == {"pkg:deb"}


def test_the_checksums_are_those_that_sha256sum_takes(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("one")
    (tmp_path / "SHA256SUMS").write_text(checksums(tmp_path))
    assert subprocess.run(["sha256sum", "--check", "--strict", "SHA256SUMS"], cwd=tmp_path, check=False).returncode == 0


@pytest.mark.parametrize(
    ("image", "name"),
    [
        ("kroute", "docker.io/library/kroute:1"),
        ("somebody/kroute", "docker.io/somebody/kroute:1"),
        ("registry.example/kroute", "registry.example/kroute:1"),
        ("localhost/kroute", "localhost/kroute:1"),
        ("registry:5000/kroute", "registry:5000/kroute:1"),
    ],
)
def test_an_image_has_the_name_that_kubelets_ask_for(image: str, name: str) -> None:
    assert images.full_name(image, "1") == name


def test_the_name_is_where_runtimes_look_for_it(tmp_path: Path) -> None:
    layout = {"schemaVersion": 2, "manifests": [{"digest": "sha256:ab", "annotations": {"x": "y"}}]}
    (tmp_path / "index.json").write_text(json.dumps(layout))
    assert images.name_in(tmp_path, "docker.io/library/kroute:1") == "sha256:ab"
    [manifest] = json.loads((tmp_path / "index.json").read_text())["manifests"]
    assert set(manifest["annotations"].values()) == {"docker.io/library/kroute:1"}


def test_archives_have_no_owner_of_the_builder(release: dict[str, bytes]) -> None:
    with tarfile.open(fileobj=io.BytesIO(release[f"kroute-{__version__}.tgz"])) as chart:
        members = chart.getmembers()
    assert {(it.uid, it.gid, it.mtime) for it in members} == {(0, 0, SOURCE.epoch)}
    assert {it.type for it in members} == {tarfile.REGTYPE}
