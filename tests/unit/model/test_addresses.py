"""Addresses: which are valid, and their canonical text."""

import pytest

from kroute.model.addresses import canonical, unicast


@pytest.mark.parametrize(
    ("written", "text"),
    [
        ("10.96.0.1", "10.96.0.1"),
        ("fd00::1", "fd00::1"),
        ("FD00:0:0::1", "fd00::1"),
        ("fd00:0:0:1:0:0:0:1", "fd00:0:0:1::1"),
        ("169.254.10.1", "169.254.10.1"),
    ],
)
def test_an_address_has_one_canonical_text(written: str, text: str) -> None:
    assert canonical(written) == text


@pytest.mark.parametrize(
    "written",
    [
        "",
        "10.96.0",
        "10.96.0.256",
        "010.96.0.1",
        "10.96.0.1/32",
        " 10.96.0.1",
        "fd00::1%eth0",
        "::1::",
        "x",
        "1\0",
        "\udc80",
    ],
)
def test_text_that_is_no_address_has_none(written: str) -> None:
    assert canonical(written) is None
    assert unicast(written) is None


def test_canonical_text_is_not_copied() -> None:
    written = f"fd00::{0xABCD:x}"
    assert canonical(written) is written


@pytest.mark.parametrize(
    "address",
    ["10.0.0.1", "1.0.0.1", "169.253.0.1", "223.255.255.255", "128.0.0.1", "fd00::1", "2001:db8::1", "fec0::1"],
)
def test_a_unicast_address_may_be_served(address: str) -> None:
    assert unicast(address) == address


@pytest.mark.parametrize(
    "address",
    [
        *("0.0.0.0", "0.1.2.3", "127.0.0.1", "127.255.0.1", "169.254.169.254", "224.0.0.1", "255.255.255.255"),
        *("::", "::1", "fe80::1", "febf::1", "ff02::1", "::ffff:10.0.0.1", "::10.0.0.1"),
    ],
)
def test_an_address_that_means_something_else_everywhere_is_refused(address: str) -> None:
    assert canonical(address) is not None
    assert unicast(address) is None
