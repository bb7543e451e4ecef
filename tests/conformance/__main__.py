"""`python -m tests.conformance [PYTEST ARGUMENTS]`: run all conformance tests and write docs/conformance.md."""

import sys

import pytest

from tests.conformance.page_writer import PageWriter

if __name__ == "__main__":
    sys.exit(pytest.main(["tests/conformance", *sys.argv[1:]], plugins=[PageWriter("conformance")]))
