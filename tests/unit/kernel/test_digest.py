"""How a look at a part of the kernel is judged: by the last digest, and after a write of one's own by counts."""

from kroute.kernel.digest import Digest, LastLook


def test_the_first_look_after_a_write_is_judged_by_the_counts_and_the_next_by_the_digest() -> None:
    last = LastLook()
    last.wrote()
    assert not last.is_same(Digest(7, (9,)), (10,))
    assert last.is_same(Digest(8, (10,)), (10,))
    assert last.is_same(Digest(8, (10,)), (10,))
    assert not last.is_same(Digest(9, (10,)), (10,)), "one object was exchanged for another"
    assert not last.is_same(Digest(9, (10,)), (10,)), "until it is read"
    last.read(Digest(9, (10,)))
    assert last.is_same(Digest(9, (10,)), (10,))


def test_what_is_missing_is_never_as_it_was() -> None:
    last = LastLook()
    last.read(None)
    assert not last.is_same(None, ())


def test_after_a_reading_the_digest_from_before_it_decides_whatever_the_counts_are() -> None:
    last = LastLook()
    last.read(Digest(7, (11,)))
    assert last.is_same(Digest(7, (11,)), (10,)), "objects that are not kroute's count too"
    assert not last.is_same(Digest(8, (10,)), (10,)), "this happened while the state was read"
