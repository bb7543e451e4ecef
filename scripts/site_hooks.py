"""Hooks of mkdocs: what lies outside docs/ becomes part of the site, links work there as on a code host, and the search
finds answers."""

import json
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
PAGES = ("CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md")
"""The pages at the root of the repository that the site has too. The README is not one: docs/index.md is the home."""

NOT_SEARCHED = ("CHANGELOG.html", "conformance.html")
"""Pages that name everything and explain nothing: the search would show them first."""

TITLES = "this.field('title');"
TITLES_FIRST = """this.field('title', {boost: 3});
      this.pipeline.remove(lunr.stopWordFilter);
      this.searchPipeline.remove(lunr.stopWordFilter);"""
"""What the search's worker says of titles, in mkdocs and here."""

LINK = re.compile(r"(\]\()([^)\s:#]+)(#[^)\s]*)?\)")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    for name in PAGES:
        files.append(File.generated(config, name, content=(ROOT / name).read_text()))
    for picture in sorted((ROOT / "bench/results").glob("*.svg")):
        files.append(File.generated(config, f"bench/results/{picture.name}", abs_src_path=str(picture)))
    return files


def on_page_markdown(markdown: str, page: Page, **_: object) -> str:
    return LINK.sub(lambda link: link_in_site(link, page.file.src_uri), indented_by_four(markdown))


def on_post_build(config: MkDocsConfig) -> None:
    """Make the search prefer headings, and take words such as "why" and "least" for words."""
    search = Path(config.site_dir) / "search"
    index = json.loads((search / "search_index.json").read_text())
    index["docs"] = [part for part in index["docs"] if part["location"].partition("#")[0] not in NOT_SEARCHED]
    (search / "search_index.json").write_text(json.dumps(index))
    worker = (search / "worker.js").read_text()
    if TITLES not in worker:
        raise PluginError(f"mkdocs' search/worker.js has no longer the line {TITLES}: see {__file__}")
    (search / "worker.js").write_text(worker.replace(TITLES, TITLES_FIRST))


def link_in_site(link: re.Match[str], page: str) -> str:
    """Return a link of a page to a file of the repository as it is in the site, where docs/ is the root."""
    path, anchor, out_of_docs = link[2], link[3] or "", "../" * (page.count("/") + 1)
    if page in PAGES:
        path = path.removeprefix("docs/")
    elif path.startswith(out_of_docs):
        path = path.removeprefix("../")
    return f"{link[1]}{path}{anchor})"


def indented_by_four(markdown: str) -> str:
    """Indent what belongs to an item of a numbered list by four columns, as Python-Markdown wants it, not by three."""
    lines = []
    in_item = False
    for line in markdown.splitlines():
        if re.match(r"\d\. ", line):
            in_item = True
            lines.append(line)
            continue
        in_item = in_item and (not line or line.startswith("   "))
        lines.append(f" {line}" if in_item and line else line)
    return "\n".join(lines)
