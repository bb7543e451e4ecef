"""The command line, as tests call it."""

from unittest.mock import patch

import pytest

from kroute.base import logs
from kroute.cli.main import main


def exit_code(*arguments: object) -> int:
    """Run `kroute` with these arguments in this process, without a change of its logging; return the exit code."""
    with patch.object(logs, "configure"), pytest.raises(SystemExit) as stop:
        main([str(argument) for argument in arguments])
    assert isinstance(stop.value.code, int)
    return stop.value.code
