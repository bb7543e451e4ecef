"""The web site of the pages: `make lint` fails on a dead link in it."""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
MKDOCS = Path(sys.executable).parent / "mkdocs"


def built(directory: Path, link: str) -> subprocess.CompletedProcess[str]:
    """What the command of `make lint` says of a site of two pages, by the project's settings, with this link in it."""
    [options] = re.findall(r"^lint:(?:.*\n\t)*?.*/mkdocs (build .*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    (directory / "docs").mkdir()
    (directory / "docs/index.md").write_text(f"# Home\n\n{link}\n")
    (directory / "docs/other.md").write_text("# Other\n\n## There\n")
    settings = directory / "mkdocs.yml"
    settings.write_text(f"INHERIT: {ROOT}/mkdocs.yml\nnav: [index.md, other.md]\nhooks: []\n")
    return subprocess.run(
        [MKDOCS, *options.split(), "--config-file", settings, "--site-dir", directory / "site"],
        capture_output=True,
        text=True,
        check=False,
    )


def test_a_site_without_a_dead_link_is_built(tmp_path: Path) -> None:
    done = built(tmp_path, "[there](other.md#there)")
    assert done.returncode == 0, done.stderr


def test_dead_links_fail_and_each_is_named(tmp_path: Path) -> None:
    links = ["page.md", "other.md#elsewhere", "#elsewhere", "directory", "picture.svg", "/other.md"]
    done = built(tmp_path, " ".join(f"[dead]({link})" for link in links))
    assert done.returncode != 0
    warnings = [line for line in done.stderr.splitlines() if line.startswith("WARNING")]
    assert [link for link in links if not any(f"'{link}'" in line for line in warnings)] == []
    assert f"Aborted with {len(links)} warnings in strict mode" in done.stdout
