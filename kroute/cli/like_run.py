"""Commands that take what `kroute run` takes: what it would do is asked of them, or what its agent does.

Where an agent runs, its settings are in force, but for those that the command line, a variable or the file names.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import click
import msgspec
from click.core import ParameterSource

from kroute.settings import Settings

ReadSettings = Callable[[Mapping[str, Any]], Settings]
"""Makes settings of the values of the options of `kroute run`; UsageError for those that do not fit together."""

Act = Callable[[Settings, Mapping[str, Any]], int]
"""Does a command's work with the settings in force and the values of its own options; returns the exit code."""

_SOURCES = frozenset({"kubeconfig", "master", "manifests"})
"""Where Services come from: who names one of these means none of the others."""
_NOT_IN_FORCE = frozenset({"state_dir", "log_format", "log_level"})
"""By the first the agent was found; the others are each process's own."""


def like_run(
    run: click.Command, read: ReadSettings, name: str, own: Sequence[click.Parameter], act: Act
) -> click.Command:
    """A command with the options of `run` and its `own`. Its help is the docstring of `act`."""

    @click.pass_context
    def callback(context: click.Context, /, **values: Any) -> int:
        mine = {str(option.name): values.pop(str(option.name)) for option in own}
        given = {key for key in values if context.get_parameter_source(key) is not ParameterSource.DEFAULT}
        return act(in_force(read(values), given), mine)

    return click.Command(name, params=[*own, *run.params], callback=callback, help=act.__doc__)


def in_force(told: Settings, given: set[str]) -> Settings:
    """The running agent's settings, with what was `given` (by the names of the options) on top; else what was told."""
    import asyncio  # noqa: PLC0415 - `kroute run` does without both

    from kroute.inspect import agent_settings  # noqa: PLC0415

    running = asyncio.run(agent_settings.ask(told.state_dir))
    if running is None:
        return told
    names = {"ipvs_timeouts" if name.startswith("ipvs_") else name for name in given} | _NOT_IN_FORCE
    if names & _SOURCES:
        names |= _SOURCES
    fields = names & set(Settings.__struct_fields__)
    return msgspec.structs.replace(running, **{name: getattr(told, name) for name in fields})
