"""What `make test` runs of the tests that repeat each other, and that the page names each of them."""

import re
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.lab.draws import Draw, file_of, group_of

ROOT = Path(__file__).parents[2]


def variants(*group: str) -> list[pytest.Item]:
    def marker(_name: str) -> pytest.Mark:
        return pytest.mark.drawn(3, *group).mark

    names = [f"a.py::{name}[{number}]" for name in ("one", "other") for number in range(6)]
    return [SimpleNamespace(nodeid=name, get_closest_marker=marker) for name in names]  # type: ignore[misc]


TESTS = variants()
Source = pytest.Config.ArgsSource


def run(source: Source = Source.TESTPATHS, keyword: str = "") -> pytest.Config:
    options = SimpleNamespace(keyword=keyword)
    return SimpleNamespace(args_source=source, option=options, stash=pytest.Stash())  # type: ignore[return-value]


def drawn(config: pytest.Config, one_of: int = 3) -> list[str]:
    chosen = Draw.of(config).part(TESTS, one_of, "tests", group_of)
    return [item.nodeid for item in chosen]


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KROUTE_LAB_THOROUGH", raising=False)
    monkeypatch.setenv("KROUTE_LAB_SEED", "5")


def test_a_run_of_everything_has_a_part_of_each_function_and_says_which_seed_draws_it_again() -> None:
    first = run()
    part = drawn(first)
    assert [nodeid.partition("[")[0] for nodeid in part] == ["a.py::one"] * 2 + ["a.py::other"] * 2
    assert drawn(run()) == part
    assert Draw.of(first).said() == "seed 5 has drawn 4 of 12 tests; with KROUTE_LAB_SEED=5 it draws them again"


def test_every_test_is_drawn_by_some_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    found = set[str]()
    for by in range(50):
        monkeypatch.setenv("KROUTE_LAB_SEED", str(by))
        found |= set(drawn(run(), 6))
    assert found == {item.nodeid for item in TESTS}


def test_of_a_group_at_least_one_is_drawn() -> None:
    assert len(drawn(run(), 100)) == 2
    assert len(Draw.of(run()).part(TESTS, 100, "tests", file_of)) == 1


def test_functions_of_one_group_are_drawn_together() -> None:
    assert len(Draw.of(run()).part(variants("a group"), 12, "tests", group_of)) == 1


@pytest.mark.parametrize("config", [run(Source.ARGS), run(keyword="one")], ids=["named", "-k"])
def test_what_is_asked_for_runs_whole(config: pytest.Config) -> None:
    assert len(drawn(config)) == len(TESTS)
    assert Draw.of(config).said() == ""


def test_a_thorough_run_has_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KROUTE_LAB_THOROUGH", "1")
    assert len(drawn(run())) == len(TESTS)


def test_the_page_names_every_file_of_which_a_thorough_run_has_more() -> None:
    page = (ROOT / "docs/lab.md").read_text()
    table = page[page.index("**What `make nightly` alone runs.**") :].partition("KROUTE_LAB_SEED")[0]
    files = [
        file.name
        for file in sorted((ROOT / "tests").glob("*/test_*.py"))
        if file.parent.name != "unit" and re.search(r"mark\.(drawn|thorough)\b|is_thorough\(\)", file.read_text())
    ]
    assert len(files) > 10
    assert [name for name in files if name not in table] == []
