"""A director's identity in the Lease: unique, and the same after a restart."""

from pathlib import Path

import pytest

from kroute.director.lease import DirectorIdentity
from kroute.runtime.state_dir import StateDirectory, StateDirectoryError


def test_two_machines_of_one_name_have_two_identities(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    one, other = (str(DirectorIdentity.open("director", tmp_path / name)) for name in "ab")
    assert one != other
    assert {one.partition("_")[0], other.partition("_")[0]} == {"director"}


def test_a_restart_keeps_the_identity(tmp_path: Path) -> None:
    assert str(DirectorIdentity.open("director", tmp_path)) == str(DirectorIdentity.open("director", tmp_path))


def test_a_new_identity_is_kept_as_well(tmp_path: Path) -> None:
    identity = DirectorIdentity.open("director", tmp_path)
    before = str(identity)
    after = identity.renew()
    assert after == str(identity) != before
    assert str(DirectorIdentity.open("director", tmp_path)) == after


@pytest.mark.parametrize(
    "kept",
    [b"", b"one\n", b"\xff" * 37, b"0" * 1_000_000, b"00000000-0000-4000-8000-00000000000\n\n"],
    ids=["empty", "no uuid", "bytes", "long", "cut"],
)
def test_what_is_no_identity_is_replaced(tmp_path: Path, kept: bytes) -> None:
    (tmp_path / "identity").write_bytes(kept)
    made = str(DirectorIdentity.open("director", tmp_path))
    assert len(made) == len("director_") + 36
    assert str(DirectorIdentity.open("director", tmp_path)) == made


def test_one_that_cannot_be_kept_is_an_error_with_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "identity").mkdir()
    with pytest.raises(StateDirectoryError, match="cannot keep this director's identity"):
        DirectorIdentity.open("director", tmp_path)


def test_a_cleanup_leaves_no_identity(tmp_path: Path) -> None:
    DirectorIdentity.open("director", tmp_path)
    with StateDirectory.claim(tmp_path) as state_dir:
        state_dir.empty()
    assert list(tmp_path.iterdir()) == []
