"""The Debian package: the image's /opt/kroute, the units of systemd, configuration, man pages and completions."""

import gzip
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from release import PROJECT, Source, terminal
from release.archives import settle

PACKAGING = PROJECT / "deploy/debian"
UNITS = ("kroute.service", "kroute-director.service", "kroute-bird.service")
SETTINGS = ("kroute.yaml", "director.yaml")
COMMANDS = ("kroute", "kubectl-kroute", "kubectl_complete-kroute")
_CONTROL_FILES = ("postinst", "prerm", "postrm")


def build(source: Source, output: Path, root: Path, level: int = 12) -> Path:
    """Write the package, compressed with this level of zstd. Returns its path.

    `root` is the image's file system: the package has its programs.
    """
    with tempfile.TemporaryDirectory() as scratch:
        tree = Path(scratch)
        _programs(tree, root)
        _configuration(tree)
        _documentation(tree, source)
        terminal.write(tree / "usr/share", source.epoch)
        architecture = _architecture()
        _control(tree, source, architecture)
        settle(tree, source.epoch)
        package = output / f"kroute_{source.version}_{architecture}.deb"
        subprocess.run(
            ["dpkg-deb", "--root-owner-group", "-Zzstd", f"-z{level}", "--threads-max=1", "--build", tree, package],
            check=True,
            capture_output=True,
            env={**os.environ, "SOURCE_DATE_EPOCH": str(source.epoch)},
        )
    return package


def _programs(tree: Path, root: Path) -> None:
    shutil.copytree(root / "opt/kroute", tree / "opt/kroute", symlinks=True)
    commands = tree / "usr/bin"
    commands.mkdir(parents=True)
    for program in (tree / "opt/kroute/bin").iterdir():
        if program.name in COMMANDS:
            (commands / program.name).symlink_to(f"/opt/kroute/bin/{program.name}")
        elif not program.name.startswith("python"):
            program.unlink()  # those of the libraries


def _configuration(tree: Path) -> None:
    units, temporary, settings = tree / "usr/lib/systemd/system", tree / "usr/lib/tmpfiles.d", tree / "etc/kroute"
    for directory in (units, temporary, settings):
        directory.mkdir(parents=True)
    for name in UNITS:
        shutil.copyfile(PROJECT / "deploy" / name, units / name)
    shutil.copyfile(PACKAGING / "tmpfiles.conf", temporary / "kroute.conf")
    for name in SETTINGS:
        shutil.copyfile(PACKAGING / name, settings / name)


def _documentation(tree: Path, source: Source) -> None:
    directory = tree / "usr/share/doc/kroute"
    directory.mkdir(parents=True)
    shutil.copyfile(PACKAGING / "copyright", directory / "copyright")
    changes = (PROJECT / "CHANGELOG.md").read_bytes()
    (directory / "NEWS.gz").write_bytes(gzip.compress(changes, 9, mtime=source.epoch))


def _control(tree: Path, source: Source, architecture: str) -> None:
    directory = tree / "DEBIAN"
    directory.mkdir()
    size = sum(it.lstat().st_size for it in tree.rglob("*") if it.is_file()) // 1024
    fields = {"VERSION": source.version, "ARCHITECTURE": architecture, "SIZE": str(size)}
    control = (PACKAGING / "control").read_text()
    for name, value in fields.items():
        control = control.replace(f"@{name}@", value)
    (directory / "control").write_text(control)
    (directory / "conffiles").write_text("".join(f"/etc/kroute/{name}\n" for name in SETTINGS))
    for name in _CONTROL_FILES:
        shutil.copyfile(PACKAGING / name, directory / name)
        (directory / name).chmod(0o755)


def _architecture() -> str:
    return subprocess.run(["dpkg", "--print-architecture"], check=True, capture_output=True, text=True).stdout.strip()


def main() -> None:
    """`python -m release.debian ROOT OUTPUT`: the package alone, as the tests need it, hardly compressed."""
    root, output = (Path(it) for it in sys.argv[1:])
    build(Source.here(), output, root.resolve(), level=1)


if __name__ == "__main__":
    main()
