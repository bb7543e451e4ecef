"""Only one kroute at a time uses a state directory, where it also shows that it is ready."""

from pathlib import Path

import pytest

from kroute.inspect import agent_socket
from kroute.runtime.state_dir import StateDirectory, StateDirectoryError


def test_a_second_one_is_refused_and_named_the_first(tmp_path: Path) -> None:
    import os

    with StateDirectory.claim(tmp_path), pytest.raises(StateDirectoryError, match=f"process {os.getpid()}"):
        StateDirectory.claim(tmp_path).__enter__()


def test_it_is_free_again_afterwards(tmp_path: Path) -> None:
    for _ in range(2):
        with StateDirectory.claim(tmp_path / "made"):
            assert (tmp_path / "made").is_dir()


async def test_ready_is_said_anew_by_each_agent(tmp_path: Path) -> None:
    with StateDirectory.claim(tmp_path) as state_dir:
        assert not (tmp_path / "ready").exists()
        await state_dir.mark_ready()
        assert (tmp_path / "ready").exists()
    with StateDirectory.claim(tmp_path):
        assert not (tmp_path / "ready").exists()


async def test_emptied_it_keeps_nothing_not_even_the_socket_of_an_agent_that_was_killed(tmp_path: Path) -> None:
    (tmp_path / agent_socket.NAME).touch()
    with StateDirectory.claim(tmp_path) as state_dir:
        await state_dir.mark_ready()
        state_dir.empty()
    assert not list(tmp_path.iterdir())  # noqa: ASYNC240


def test_a_directory_that_cannot_be_made_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StateDirectoryError, match="cannot use the state directory"):
        StateDirectory.claim(tmp_path / "file" / "state").__enter__()
