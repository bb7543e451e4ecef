"""The pages for operators name what there is."""

import re
from pathlib import Path

import click

from kroute import cli
from kroute.planning.annotations import ANNOTATIONS, SCHEDULER_FLAGS
from kroute.settings import SCHEDULERS

DOCS = Path(__file__).parents[2] / "docs"


def test_every_flag_of_run_has_its_row_with_variable_and_default() -> None:
    row = re.compile(r"^\| `(--[a-z-]+)` \| `(KROUTE_[A-Z_]+)` \| (.*?) \|", re.MULTILINE)
    rows = row.findall((DOCS / "settings.md").read_text())
    documented = {flag: (variable, default) for flag, variable, default in rows}
    options = [each for each in cli.run.params if isinstance(each, click.Option)]
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
