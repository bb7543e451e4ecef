"""Every row of the Kubernetes end-to-end tests has tests or a reason, as docs/conformance.md says."""

from collections import Counter

import pytest

from tests.conformance.rows import ROWS, SECTIONS, Row
from tests.conformance.table import PAGE, Result, declared, page, results

DECLARED = declared()
BY_ID = {row.id: row for row in ROWS}
OURS = [row for row in ROWS if not row.reason]
SHOWN = {each for ids in DECLARED.values() for each in ids}


def test_no_row_occurs_twice_and_each_is_in_a_section() -> None:
    assert [each for each, count in Counter(row.id for row in ROWS).items() if count > 1] == []
    assert {row.section for row in ROWS} == SECTIONS.keys()


@pytest.mark.parametrize("row", OURS, ids=lambda row: row.id)
def test_each_row_that_is_ours_has_a_test(row: Row) -> None:
    assert row.id in SHOWN


@pytest.mark.parametrize("test", DECLARED)
def test_each_test_shows_known_rows_and_bears_the_name_of_the_first(test: str) -> None:
    ids = DECLARED[test]
    assert ids, "the test names no row: decorate it with @row"
    assert [each for each in ids if each not in BY_ID] == []
    assert [each for each in ids if BY_ID[each].reason] == [], "a row has a test and a reason to have none"
    assert test.partition("::")[2].startswith(BY_ID[ids[0]].test_prefix)


def test_the_page_says_that_all_tests_pass() -> None:
    assert PAGE.read_text() == page(results(dict.fromkeys(DECLARED, True))), "run: make conformance"


def test_the_page_names_a_test_that_failed() -> None:
    passed = {row.id: [Result("test_file::test_one", True)] for row in ROWS}
    text = page({**passed, "C1": [Result("test_file::test_one", True), Result("test_file::test_two", False)]})
    assert "| C1 | Services: serve a basic endpoint from pods | **fails**: `test_two` |" in text
    assert "| C2 | Services: serve multiport endpoints from pods | passes: `test_one` |" in text


def test_the_page_shows_a_row_without_a_test_as_failed() -> None:
    assert "| C1 | Services: serve a basic endpoint from pods | **fails**: no test |" in page(
        {row.id: [] for row in ROWS}
    )
