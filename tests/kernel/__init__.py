"""Tests of kroute.kernel on a real kernel."""

import pytest

pytest.register_assert_rewrite(
    "tests.kernel.contracts_conntrack",
    "tests.kernel.contracts_network",
    "tests.kernel.contracts_tables",
    "tests.kernel.nodes",
)
