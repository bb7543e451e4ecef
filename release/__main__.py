"""`python -m release DIRECTORY [--image NAME]`: write everything of a release, and SHA256SUMS, into DIRECTORY."""

import argparse
import hashlib
import sys
import tempfile
from pathlib import Path

from release import Source, debian, images, manifests, sbom, wheel
from tests.lab.places import cache


def checksums(directory: Path) -> str:
    """The lines of `sha256sum` for all files there."""
    files = sorted(it for it in directory.iterdir() if it.is_file() and it.name != "SHA256SUMS")
    return "".join(f"{hashlib.sha256(it.read_bytes()).hexdigest()}  {it.name}\n" for it in files)


def main() -> None:
    parser = argparse.ArgumentParser(prog="release", description=__doc__)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--image", default="kroute", help="the name that the manifests have for the image")
    wanted = parser.parse_args()
    source, output = Source.here(), wanted.directory.resolve()
    output.mkdir(parents=True, exist_ok=True)
    if any(output.iterdir()):
        parser.error(f"{output} is not empty")
    manifests.build(source, output, wanted.image)
    wheel.build(source, output)
    images.build(source, output, cache() / "image", wanted.image)
    with tempfile.TemporaryDirectory() as scratch:
        root = images.file_system(source, cache() / "image", Path(scratch, "root"))
        debian.build(source, output, root)
        sbom.build(source, output, root)
        bird = images.file_system(source, cache() / "image", Path(scratch, "bird"), images.BIRD)
        sbom.build_of_bird(source, output, bird)
    (output / "SHA256SUMS").write_text(checksums(output))
    sys.stdout.write((output / "SHA256SUMS").read_text())


if __name__ == "__main__":
    main()
