"""The search of the web site: what people type leads to the page with the answer, as the first result."""

import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest

from tests.browser.chromium import Browser, window
from tests.browser.conftest import shows

pytestmark = pytest.mark.browser

ROOT = Path(__file__).parents[2]
ENTER = "\ue007"

QUESTIONS = {
    "least connections": "annotations",
    "session affinity": "annotations",
    "rollback": "upgrade",
    "MTU": "troubleshooting",
    "exclude interface": "neighbours",
    "why packet": "operate",
    "API server down": "troubleshooting",
    "upgrade": "upgrade",
    "EKS": "managed",
    "k3s": "quickstart",
    "node-local-dns": "operate",
    "alert": "alerts monitoring",
    "Calico": "neighbours",
}
"""What people type, and the page with the answer; either of two pages where both have it."""


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The pages as `make docs` builds them, on a web server: its address."""
    directory = tmp_path_factory.mktemp("site")
    command = [Path(sys.executable).parent / "mkdocs", "build", "--strict", "--site-dir", directory]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(directory))) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


@pytest.fixture
async def home(site: str, chromium_session: str) -> AsyncIterator[Browser]:
    async with window(chromium_session) as browser:
        await browser.open(f"{site}/index.html")
        yield browser


@pytest.mark.parametrize("question", QUESTIONS)
async def test_the_first_result_is_on_the_page_with_the_answer(question: str, home: Browser) -> None:
    await home.type("#rtd-search-form input[name=q]", question + ENTER)

    async def is_first() -> bool:
        link = "document.querySelector('#mkdocs-search-results article a').getAttribute('href')"
        found: str = await home.script(f"return {link}")
        return found.removeprefix("./").partition(".html")[0] in QUESTIONS[question].split()

    await shows(is_first, wanted=True)


async def test_what_no_page_says_is_not_found(home: Browser) -> None:
    await home.type("#rtd-search-form input[name=q]", "supercalifragilistic" + ENTER)
    await shows(lambda: home.text("#mkdocs-search-results"), "No results found")
