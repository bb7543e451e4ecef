"""The lists of what the images and the Debian package contain, as CycloneDX: Python's and Debian's packages."""

import re
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component, ComponentType
from cyclonedx.output.json import JsonV1Dot6
from packageurl import PackageURL

from release import PROJECT, Source
from release.images import bird_version

_PIN = re.compile(r"^([A-Za-z0-9._-]+)==(\S+)", re.MULTILINE)


def build(source: Source, output: Path, root: Path) -> Path:
    """Write that of kroute. `root` is the file system of the image, whose dpkg says which Debian packages it has."""
    kroute = _component("pypi", None, "kroute", source.version, kind=ComponentType.APPLICATION)
    return _write(source, output, kroute, [*_python_packages(), *_debian_packages(root)])


def build_of_bird(source: Source, output: Path, root: Path) -> Path:
    """Write that of BIRD's image, whose file system is `root`."""
    image = _component("generic", None, "kroute-bird", bird_version(), kind=ComponentType.CONTAINER)
    return _write(source, output, image, [*_debian_packages(root)])


def _write(source: Source, output: Path, whole: Component, parts: list[Component]) -> Path:
    bom = Bom(
        serial_number=uuid.uuid5(uuid.NAMESPACE_URL, f"{whole.name} {whole.version} {source.revision}"),
        components=parts,
    )
    bom.metadata.component = whole
    bom.metadata.timestamp = datetime.fromtimestamp(source.epoch, UTC)
    bom.register_dependency(whole, parts)
    path = output / f"{whole.name}-{whole.version}.cdx.json"
    path.write_text(JsonV1Dot6(bom).output_as_string(indent=2) + "\n")
    return path


def _python_packages() -> Iterator[Component]:
    for package, version in _PIN.findall((PROJECT / "requirements/run.txt").read_text()):
        yield _component("pypi", None, package.lower(), version)


def _debian_packages(root: Path) -> Iterator[Component]:
    for paragraph in (root / "var/lib/dpkg/status").read_text().split("\n\n"):
        fields = dict(re.findall(r"^([A-Z][A-Za-z-]+): (.+)$", paragraph, re.MULTILINE))
        if fields.get("Status") == "install ok installed":
            qualifiers = {"arch": fields["Architecture"], "distro": "debian-12"}
            yield _component("deb", "debian", fields["Package"], fields["Version"], qualifiers)


def _component(
    system: str,
    namespace: str | None,
    name: str,
    version: str,
    qualifiers: dict[str, str] | None = None,
    kind: ComponentType = ComponentType.LIBRARY,
) -> Component:
    purl = PackageURL(system, namespace, name, version, qualifiers)
    return Component(name=name, version=version, purl=purl, type=kind, bom_ref=purl.to_string())
