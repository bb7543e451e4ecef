"""`kroute run`: the agent of a node."""

from typing import Any

import click

from kroute.base import logs  # noqa: F401  before the other modules: it decides what structlog and msgspec load

# isort: split

from kroute.agent.start import serve
from kroute.cli.parameters.config_file import begin_log
from kroute.cli.parameters.run_options import run_options, settings_of
from kroute.cli.parameters.settings_command import FlagsCommand
from kroute.runtime.runner import run_to_the_end
from kroute.settings import text
from kroute.telemetry.loop_watch import LoopWatch


@click.command(cls=FlagsCommand)
@run_options
def run(**values: Any) -> int:
    """Serve this node until SIGTERM; the data path stays in place afterwards, unless told otherwise."""
    settings = settings_of(values)
    begin_log(settings, text.differing(settings))
    loop_watch = LoopWatch()
    return run_to_the_end(serve(settings, loop_watch), loop_watch.new_loop)
