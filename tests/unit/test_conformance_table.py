"""Every row of the Kubernetes end-to-end tests has tests or a reason, as docs/conformance.md says."""

import re
import subprocess
import sys
from collections import Counter

from tests.conformance.rows import ROWS, SECTIONS
from tests.conformance.table import PAGE, Result, Run, declared, page, results
from tests.unit.each import assert_each

DECLARED = declared()
BY_ID = {row.id: row for row in ROWS}
OURS = [row for row in ROWS if not row.reason]
RUN = Run("0123456789ab", "2026-11-22", "Linux 7.3 (built)", "make conformance: 2 tests passed, 0 failed")
SHOWN = {each for ids in DECLARED.values() for each in ids}


def test_no_row_occurs_twice_and_each_is_in_a_section() -> None:
    assert [each for each, count in Counter(row.id for row in ROWS).items() if count > 1] == []
    assert {row.section for row in ROWS} == SECTIONS.keys()


def test_each_row_that_is_ours_has_a_test() -> None:
    assert [row.id for row in OURS if row.id not in SHOWN] == []


def test_each_test_shows_known_rows_and_bears_the_name_of_the_first() -> None:
    def check(test: str) -> None:
        ids = DECLARED[test]
        assert ids, "the test names no row: decorate it with @row"
        assert [each for each in ids if each not in BY_ID] == []
        assert [each for each in ids if BY_ID[each].reason] == [], "a row has a test and a reason to have none"
        assert test.partition("::")[2].startswith(BY_ID[ids[0]].test_prefix)

    assert_each(DECLARED, check)


def test_the_page_says_that_all_tests_pass() -> None:
    text = PAGE.read_text()
    assert text == page(results(dict.fromkeys(DECLARED, True)), Run.of(text)), "run: make conformance"


def test_the_page_names_the_run_that_it_comes_from() -> None:
    run = Run.of(PAGE.read_text())
    assert re.match(r"[0-9a-f]{12}( |$)", run.commit)
    assert re.fullmatch(r"\d{4}-\d\d-\d\d", run.date)
    assert "Linux " in run.kernel
    assert re.match("make (conformance|nightly)", run.by)


def test_the_generator_leaves_the_plugins_to_pytest() -> None:
    """One that is imported before pytest rewrites it is an error when pytest starts."""
    check = "import sys, tests.conformance.__main__; sys.exit('tests.lab.plugin' in sys.modules)"
    subprocess.run([sys.executable, "-c", check], cwd=PAGE.parents[1], check=True)


def test_a_run_is_found_again_on_its_page() -> None:
    run = Run.here(
        ["Linux 7.3 (built), fed by manifests: 2 tests", "4 machines"], "make nightly: 2 tests passed, 0 failed"
    )
    assert Run.of(page({row.id: [] for row in ROWS}, run)) == run


def test_what_is_shown_is_said_of_rows_that_have_tests() -> None:
    assert [row.id for row in ROWS if row.shows and row.reason] == []
    assert {row.id for row in ROWS if row.shows} >= {"C19", "service 1792", "networking 458"}


def test_the_page_names_a_test_that_failed() -> None:
    passed = {row.id: [Result("test_file::test_one", True)] for row in ROWS}
    failed = [Result("test_file::test_one", True), Result("test_file::test_two", False)]
    text = page({**passed, "C1": failed}, RUN)
    assert "| C1 | Services: serve a basic endpoint from pods | **fails**: `test_two` |" in text
    assert "| C2 | Services: serve multiport endpoints from pods | passes: `test_one` |" in text


def test_the_page_shows_a_row_without_a_test_as_failed() -> None:
    assert "| C1 | Services: serve a basic endpoint from pods | **fails**: no test |" in page(
        {row.id: [] for row in ROWS}, RUN
    )
