"""Options of `kroute run` for commands that describe what it would do, or what the running agent does.

If an agent runs, its settings apply, unless the command line, a variable or the file overrides them.
"""

import asyncio
from collections.abc import Callable
from functools import wraps
from inspect import signature
from typing import Any

import click
import msgspec
from click.core import ParameterSource

from kroute.cli.parameters.run_options import run_options, settings_of
from kroute.inspect import agent_settings
from kroute.settings import Settings

_SOURCES = frozenset({"kubeconfig", "master", "manifests"})
"""The options for the source of Services. Giving one of them overrides all of them."""
_NOT_IN_FORCE = frozenset({"state_dir", "log_format", "log_level"})
"""Settings that are never taken from the agent: `state_dir` has found it, and each process has its own logs."""


def settings_in_force(act: Callable[..., int]) -> Callable[..., int]:
    """Give a command the options of `kroute run` after its own.

    The command is called with the settings in force and the values of its own options.
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
    """The running agent's settings, overridden by the options in `given`, or `parsed` if no agent runs."""
    running = asyncio.run(agent_settings.ask(parsed.state_dir))
    if running is None:
        return parsed
    names = {_field_of(name) for name in given} | _NOT_IN_FORCE
    if names & _SOURCES:
        names |= _SOURCES
    fields = names & set(Settings.__struct_fields__)
    return msgspec.structs.replace(running, **{name: getattr(parsed, name) for name in fields})


def _field_of(option: str) -> str:
    """The field of the settings that an option sets; some options set a part of one."""
    if option.startswith("conntrack_"):
        return "conntrack"
    return "ipvs_timeouts" if option.startswith("ipvs_") and option.endswith("_timeout") else option
