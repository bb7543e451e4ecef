"""The images as OCI archives, which every runtime imports without a registry."""

import json
import os
import subprocess
import tempfile
from pathlib import Path

from release import PROJECT, Source
from release.archives import tar

VARIANTS = {"no": "", "yes": "-iptables"}
"""What `--build-arg IPTABLES=` is, and how the tag of such an image ends."""


def build(source: Source, output: Path, cache: Path, image: str = "kroute") -> list[Path]:
    """Build both images for this machine's architecture, and write an archive of each. Returns their paths."""
    return [_archive(source, output, cache, image, wanted) for wanted in VARIANTS]


def file_system(source: Source, cache: Path, link: Path) -> Path:
    """Build the image without iptables, and make `link` a link to its file system."""
    _scripts_image(source, "no", cache, link)
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


def _archive(source: Source, output: Path, cache: Path, image: str, iptables: str) -> Path:
    with tempfile.TemporaryDirectory() as scratch:
        layout = Path(scratch, "layout")
        _scripts_image(source, iptables, cache, "--oci", layout)
        name_in(layout, full_name(image, source.version + VARIANTS[iptables]))
        machine = {"x86_64": "amd64", "aarch64": "arm64"}[os.uname().machine]
        path = output / f"kroute-{source.version}{VARIANTS[iptables]}-linux-{machine}.oci.tar"
        path.write_bytes(tar(layout, source.epoch))
    return path


def _scripts_image(source: Source, iptables: str, cache: Path, *arguments: str | Path) -> None:
    settings = {"IPTABLES": iptables, "REVISION": source.revision, "SOURCE_DATE_EPOCH": str(source.epoch)}
    subprocess.run([PROJECT / "scripts/image", cache, *arguments], check=True, env={**os.environ, **settings})
