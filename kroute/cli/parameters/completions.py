"""What a shell may complete besides commands, flags and choices."""

from collections.abc import Callable

import click

from kroute.inspect import service_names
from kroute.settings import DEFAULTS

Complete = Callable[[click.Context, click.Parameter, str], list[str]]


def complete_service(context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[str]:
    """The Services of this node's agent that begin so; none if no agent answers at once."""
    state_dir = context.params.get("state_dir") or DEFAULTS.state_dir
    return [name for name in service_names.ask(state_dir) if name.startswith(incomplete)]


def complete_shown(
    context: click.Context, parameter: click.Parameter, incomplete: str, services: Complete = complete_service
) -> list[str]:
    """The words of `kroute show`. `services` completes names of Services."""
    words = tuple(context.params.get("what") or ())
    if words == ("service",):
        return services(context, parameter, incomplete)
    return [it for it in ("services", "service") if it.startswith(incomplete)] if not words else []
