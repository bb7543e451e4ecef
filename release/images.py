"""The images as OCI archives, which every runtime imports without a registry."""

import json
import os
import re
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from release import PROJECT, Source
from release.archives import tar


class Variant(NamedTuple):
    """An image: how its name ends, its tag, in which `{}` is the release's version, and what scripts/image is told."""

    name: str
    tag: str
    settings: Mapping[str, str]


def bird_version() -> str:
    """The version of BIRD that deploy/Dockerfile installs."""
    [found] = re.findall(r"^ARG BIRD=(\S+)$", (PROJECT / "deploy/Dockerfile").read_text(), re.MULTILINE)
    return str(found)


PLAIN = Variant("", "{}", {"IPTABLES": "no"})
BIRD = Variant("-bird", bird_version(), {"TARGET": "bird"})
VARIANTS = PLAIN, Variant("", "{}-iptables", {"IPTABLES": "yes"}), BIRD


def build(source: Source, output: Path, cache: Path, image: str = "kroute") -> list[Path]:
    """Build the images for this machine's architecture, and write an archive of each. Returns their paths."""
    return [_archive(source, output, cache, image, wanted) for wanted in VARIANTS]


def file_system(source: Source, cache: Path, link: Path, variant: Variant = PLAIN) -> Path:
    """Build an image, and make `link` a link to its file system."""
    _scripts_image(source, variant, cache, link)
    return link.resolve()


def name_in(layout: Path, name: str) -> str:
    """Write the image's full name into the layout's index, where runtimes look for it. Returns its digest."""
    path = layout / "index.json"
    index = json.loads(path.read_text())
    [manifest] = index["manifests"]
    manifest["annotations"] = {"io.containerd.image.name": name, "org.opencontainers.image.ref.name": name}
    path.write_text(json.dumps(index, sort_keys=True))
    digest: str = manifest["digest"]
    return digest


def full_name(image: str, tag: str) -> str:
    """The name under which a kubelet asks for the image: `kroute` is docker.io/library/kroute."""
    host, _, rest = image.partition("/")
    if not rest:
        image = f"docker.io/library/{image}"
    elif "." not in host and ":" not in host and host != "localhost":
        image = f"docker.io/{image}"
    return f"{image}:{tag}"


def _archive(source: Source, output: Path, cache: Path, image: str, variant: Variant) -> Path:
    tag = variant.tag.format(source.version)
    with tempfile.TemporaryDirectory() as scratch:
        layout = Path(scratch, "layout")
        _scripts_image(source, variant, cache, "--oci", layout)
        name_in(layout, full_name(image + variant.name, tag))
        machine = {"x86_64": "amd64", "aarch64": "arm64"}[os.uname().machine]
        path = output / f"kroute{variant.name}-{tag}-linux-{machine}.oci.tar"
        path.write_bytes(tar(layout, source.epoch))
    return path


def _scripts_image(source: Source, variant: Variant, cache: Path, *arguments: str | Path) -> None:
    settings = {**variant.settings, "REVISION": source.revision, "SOURCE_DATE_EPOCH": str(source.epoch)}
    subprocess.run([PROJECT / "scripts/image", cache, *arguments], check=True, env={**os.environ, **settings})
