"""Man pages and completions, as the program itself writes them."""

import gzip
import os
import subprocess
import sys
from pathlib import Path

from release import PROJECT

_COMPLETIONS = {
    "bash": "bash-completion/completions/kroute",
    "zsh": "zsh/vendor-completions/_kroute",
    "fish": "fish/vendor_completions.d/kroute.fish",
}


def write(share: Path, epoch: int) -> None:
    """Write them below `share` (usr/share of the package), with the time `epoch`."""
    pages = share / "man/man8"
    pages.mkdir(parents=True)
    _kroute("man", str(pages), epoch=epoch)
    for page in list(pages.iterdir()):
        page.with_name(f"{page.name}.gz").write_bytes(gzip.compress(page.read_bytes(), 9, mtime=0))
        page.unlink()
    for shell, name in _COMPLETIONS.items():
        path = share / name
        path.parent.mkdir(parents=True)
        path.write_text(_kroute("completion", shell, epoch=epoch))


def _kroute(*arguments: str, epoch: int) -> str:
    return subprocess.run(
        [sys.executable, "-m", "kroute", *arguments],
        check=True,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(PROJECT), "SOURCE_DATE_EPOCH": str(epoch)},
    ).stdout
