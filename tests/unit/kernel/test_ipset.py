"""Set entries as bytes."""

import socket

import pytest

from kroute.kernel.ipset import AddEntry, Element, SetDefinition, encode_entry, parse_elements, set_message
from kroute.kernel.netlink.message import HEADER, nested

CASES: list[tuple[str, Element]] = [
    ("hash:ip", ("10.0.0.1",)),
    ("hash:ip", ("fd00::1",)),
    ("hash:net", ("10.0.0.0/8",)),
    ("hash:ip,port", ("10.0.0.1", 6, 80)),
    ("hash:ip,port,ip", ("fd00::1", 132, 65535, "fd00::2")),
    ("hash:ip,port,net", ("10.1.0.1", 6, 80, "192.0.2.0/24")),
    ("hash:ip,port,net", ("fd00::1", 6, 80, "fd00::/8")),
]


@pytest.mark.parametrize(("kind", "element"), CASES, ids=str)
def test_what_is_encoded_is_decoded(kind: str, element: Element) -> None:
    words = SetDefinition("S", kind).words
    listing = set_message(7, 0, nested(8, encode_entry(words, element)))
    assert parse_elements(words, listing[HEADER.size :]) == [element]


@pytest.mark.parametrize(
    ("kind", "element"),
    [
        ("hash:ip", ("10.0.0.1", 6, 80)),
        ("hash:ip,port", ("10.0.0.1",)),
        ("hash:ip,port", ("10.0.0.1", 6)),
        ("hash:ip,port", ("10.0.0.1", 6, 65536)),
        ("hash:ip", ("no address",)),
    ],
    ids=str,
)
def test_an_element_that_does_not_fit_is_refused(kind: str, element: Element) -> None:
    with pytest.raises(ValueError, match="does not fit"):
        encode_entry(SetDefinition("S", kind).words, element)


WANTED = SetDefinition("S", "hash:ip", socket.AF_INET, 1024, 65536)


@pytest.mark.parametrize(
    ("found", "fits"),
    [
        (WANTED, True),
        (WANTED._replace(hashsize=4096, maxelem=100_000), True),
        (WANTED._replace(maxelem=1000), False),
        (WANTED._replace(type="hash:net"), False),
        (WANTED._replace(family=socket.AF_INET6), False),
    ],
    ids=["same", "roomier", "too small", "other type", "other family"],
)
def test_a_set_fits_when_it_can_serve(found: SetDefinition, fits: bool) -> None:
    assert found.fits(WANTED) is fits


def test_changes_are_sentences() -> None:
    assert str(AddEntry("S", ("10.0.0.1", 6, 80))) == "add 10.0.0.1,TCP,80 to set S"
