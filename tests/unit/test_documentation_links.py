"""Every link of the pages leads somewhere: on a code host, which shows the files as they lie here."""

import re
from functools import cache
from pathlib import Path

from kroute import __version__
from tests.unit.each import assert_each

ROOT = Path(__file__).parents[2]
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]
LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")


def without_code(text: str) -> str:
    """Return the text of a page without its code: a bracket there is no link."""
    text = re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
    text = re.sub(r"^    .*$", "", text, flags=re.MULTILINE)
    return re.sub(r"`[^`\n]*`", lambda code: "`" + re.sub(r"[\[\]()]", "", code[0]) + "`", text)


@cache
def anchors(page: Path) -> set[str]:
    """Return the anchors that a code host gives the page's headings: small letters, no punctuation, `-` for a blank."""
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


def test_every_link_leads_to_a_file_and_a_heading() -> None:
    links = [(page, link) for page in PAGES for link in LINK.findall(without_code(page.read_text()))]

    def check(case: tuple[Path, str]) -> None:
        page, link = case
        path, _, anchor = link.partition("#")
        target = (page.parent / path) if path else page
        assert target.exists()
        assert not anchor or anchor in anchors(target)

    assert_each([case for case in links if not re.match(r"[a-z]+:", case[1])], check)


def test_the_readme_is_short_and_names_the_version() -> None:
    text = (ROOT / "README.md").read_text()
    assert len(text.split()) <= 1000
    assert f"Version {__version__}." in text


def test_the_home_of_the_site_names_every_page() -> None:
    text = (ROOT / "docs/index.md").read_text()
    linked = {(ROOT / "docs" / link.partition("#")[0]).resolve() for link in LINK.findall(text)}
    assert {page.name for page in PAGES if page not in linked} == {"README.md", "index.md"}


def test_the_site_has_every_page() -> None:
    """`make lint` builds it; mkdocs alone would only warn of a page that is in no menu."""
    docs = ROOT / "docs"
    pages = [str(page.relative_to(docs)) if page.is_relative_to(docs) else page.name for page in PAGES]
    text = (ROOT / "mkdocs.yml").read_text()
    in_menu = re.findall(r"^ *- (?:[\w ]+: )?([\w/-]+\.md)$", text, re.MULTILINE)
    assert sorted(in_menu) == sorted(page for page in pages if page != "README.md")


def test_a_list_or_table_has_a_blank_line_before_it() -> None:
    """Python-Markdown, which makes the site, would take it for text of the paragraph."""

    def check(page: Path) -> None:
        before = ""
        for line in re.sub(r"^```.*?^```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL).splitlines():
            if re.match(r"- |\d+\. |\|", line):
                assert re.match(r"- |\d+\. |\||  |#|<!--|$", before), line
            before = line

    assert_each(PAGES, check)
