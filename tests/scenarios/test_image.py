"""The images that buildah makes of deploy/Dockerfile."""

from importlib.util import MAGIC_NUMBER, cache_from_source
from pathlib import Path

from kroute import __version__
from release.images import bird_version
from tests.lab.container import image, image_configuration


def stale(root: Path) -> list[Path]:
    """The modules whose byte code Python would make anew at each start: files there are read-only.

    Byte code that is not compared with its source (PEP 552: flags 1) is good whatever time the files have.
    """
    sources = [*root.rglob("*.py")]
    assert len(sources) > 500
    usable = MAGIC_NUMBER + (1).to_bytes(4, "little")
    found = []
    for source in sources:
        compiled = Path(cache_from_source(str(source)))
        if not compiled.exists() or compiled.read_bytes()[:8] != usable:
            found.append(source)
    return found


def test_python_compiles_nothing_at_a_start() -> None:
    assert not stale(image() / "opt/kroute/lib")
    of_the_system = stale(image() / "usr/lib/python3.11")
    assert not [it for it in of_the_system if "lib2to3/tests" not in str(it)]


def test_it_says_what_it_is() -> None:
    labels = image_configuration()["Labels"]
    assert labels["org.opencontainers.image.version"] == __version__
    assert labels["org.opencontainers.image.licenses"] == "Apache-2.0"
    assert image_configuration()["Entrypoint"] == ["kroute"]


def test_nothing_in_it_installs_anything() -> None:
    for program in ("opt/kroute/bin/pip", "usr/bin/pip", "usr/bin/pip3", "usr/bin/gcc", "usr/bin/curl"):
        assert not (image() / program).exists()
        assert not (image("kroute-bird") / program).exists()
    left = [it for it in ("build", "root/.cache", "run/secrets", "etc/pip.conf") if (image() / it).exists()]
    assert not left, left


def test_its_files_have_one_time_so_that_a_second_build_is_the_same() -> None:
    files = [it for it in (image() / "opt/kroute").rglob("*") if it.is_file()]
    assert len({it.lstat().st_mtime for it in files}) == 1
    assert not [it for it in (image() / "var/log").rglob("*") if it.is_file()]


def test_birds_image_has_the_bird_that_it_says_and_no_python() -> None:
    configured = image_configuration("kroute-bird")
    assert configured["Labels"]["org.opencontainers.image.version"] == bird_version()
    assert (configured["Entrypoint"], configured["User"]) == (["bird"], image_configuration()["User"])
    packages = (image("kroute-bird") / "var/lib/dpkg/status").read_text().split("\n\n")
    [bird] = [it for it in packages if it.startswith("Package: bird2\n")]
    assert f"\nVersion: {bird_version()}-" in bird
    assert not [it for it in packages if it.startswith("Package: python3")]


def test_nothing_in_birds_image_tells_the_day_of_its_build() -> None:
    changed = {line.split(":")[0]: line.split(":")[2] for line in _lines("etc/shadow")}
    assert changed["bird"] in {"", "0"}
    assert not [it for it in (image("kroute-bird") / "var/log").rglob("*") if it.is_file()]


def _lines(name: str) -> list[str]:
    return (image("kroute-bird") / name).read_text().splitlines()
