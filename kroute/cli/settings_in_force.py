"""Commands with the options of `kroute run`: they say what it would do, or what the running agent does.

Where an agent runs, its settings hold, unless the command line, a variable or the file overrides them.
"""

import asyncio
from collections.abc import Callable
from functools import wraps
from inspect import signature
from typing import Any

import click
import msgspec
from click.core import ParameterSource

from kroute.cli.run_options import run_options, settings_of
from kroute.inspect import agent_settings
from kroute.settings import Settings

_SOURCES = frozenset({"kubeconfig", "master", "manifests"})
"""Where Services come from: who names one of these means none of the others."""
_NOT_IN_FORCE = frozenset({"state_dir", "log_format", "log_level"})
"""By the first the agent was found; the others are each process's own."""


def settings_in_force(act: Callable[..., int]) -> Callable[..., int]:
    """Give a command the options of `kroute run` after its own.

    It is called with the settings in force and the values of its own options.
    """

    own = list(signature(act).parameters)[1:]

    @run_options
    @click.pass_context
    @wraps(act)
    def command(context: click.Context, /, **values: Any) -> int:
        mine = {name: values.pop(name) for name in own}
        given = {key for key in values if context.get_parameter_source(key) is not ParameterSource.DEFAULT}
        return act(_in_force(settings_of(values), given), **mine)

    return command


def _in_force(parsed: Settings, given: set[str]) -> Settings:
    """The running agent's settings, overridden by what was `given` (names of options); without an agent, the parsed
    settings.
    """
    running = asyncio.run(agent_settings.ask(parsed.state_dir))
    if running is None:
        return parsed
    names = {"ipvs_timeouts" if name.startswith("ipvs_") else name for name in given} | _NOT_IN_FORCE
    if names & _SOURCES:
        names |= _SOURCES
    fields = names & set(Settings.__struct_fields__)
    return msgspec.structs.replace(running, **{name: getattr(parsed, name) for name in fields})
