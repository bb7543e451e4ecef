"""The pages for operators name what there is."""

import re
from pathlib import Path

import click
import pytest

from kroute import cli
from kroute.director.command import director
from kroute.planning.annotations import ANNOTATIONS, SCHEDULER_FLAGS
from kroute.settings import SCHEDULERS

DOCS = Path(__file__).parents[2] / "docs"


@pytest.mark.parametrize(("page", "command"), [("settings.md", cli.run), ("director.md", director)])
def test_every_flag_has_its_row_with_variable_and_default(page: str, command: click.Command) -> None:
    row = re.compile(r"^\| `(--[a-z-]+)` \| `(KROUTE_[A-Z_]+)` \| (.*?) \|", re.MULTILINE)
    rows = row.findall((DOCS / page).read_text())
    documented = {flag: (variable, default) for flag, variable, default in rows}
    options = [each for each in command.params if isinstance(each, click.Option)]
    assert documented.keys() == {option.opts[0] for option in options}
    for option in options:
        variable, default = documented[option.opts[0]]
        assert variable == option.envvar
        if option.show_default is True:
            assert default == f"`{option.default}`"


def test_every_annotation_scheduler_and_flag_is_named() -> None:
    page = (DOCS / "annotations.md").read_text()
    for word in (*(row.name for row in ANNOTATIONS), *SCHEDULERS, *SCHEDULER_FLAGS):
        assert f"`{word}`" in page
