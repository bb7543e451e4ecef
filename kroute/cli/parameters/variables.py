"""Variables KROUTE_… that no command reads: a misspelled setting must not be ignored silently.

Kubernetes puts variables into each pod for every Service of its namespace (`enableServiceLinks`), named like the
Service: for one called `kroute` or `kroute-…` they begin with KROUTE_ as well. Those are recognised by name and value.
"""

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping

import click

PREFIX = "KROUTE_"
OF_THE_REPOSITORY = ("KROUTE_CACHE", "KROUTE_FEED", "KROUTE_FUZZ_", "KROUTE_IMAGE_", "KROUTE_KERNEL", "KROUTE_LAB",
                     "KROUTE_WRITE_GOLDEN")  # fmt: skip
"""How the names of the variables begin that the tools of kroute's repository read; scripts/setup names some."""

_OF_SERVICES = (
    (r"KROUTE(_\w+)?_SERVICE_HOST", r"[0-9a-fA-F.:]+"),
    (r"KROUTE(_\w+)?_SERVICE_PORT(_\w+)?", r"\d{1,5}"),
    (r"KROUTE(_\w+)?_PORT(_\d+_(TCP|UDP|SCTP))?", r"(tcp|udp|sctp)://\S+"),
    (r"KROUTE(_\w+)?_PORT_\d+_(TCP|UDP|SCTP)_PROTO", r"tcp|udp|sctp"),
    (r"KROUTE(_\w+)?_PORT_\d+_(TCP|UDP|SCTP)_PORT", r"\d{1,5}"),
    (r"KROUTE(_\w+)?_PORT_\d+_(TCP|UDP|SCTP)_ADDR", r"[0-9a-fA-F.:]+"),
)
"""Regular expressions of the names and values of the variables that Kubernetes makes of a Service
(pkg/kubelet/envvars). They are compiled when a variable needs them, which no command's own does."""


def variables_of(command: click.Command) -> set[str]:
    """The variables that a command reads."""
    return {name for parameter in command.params if isinstance(name := getattr(parameter, "envvar", None), str)}


def check_variables(
    environment: Mapping[str, str], command: click.Command, others: Callable[[], Iterable[click.Command]]
) -> None:
    """Raise UsageError if a variable begins with KROUTE_ and no command reads it.

    `others` returns all commands; it is called only if there is a variable that this command does not read.
    """
    unknown = sorted(_unknown(environment, variables_of(command)))
    if not unknown:
        return
    known = {name for each in others() for name in variables_of(each)}
    for name in unknown:
        if name not in known:
            raise click.UsageError(_complaint(name, known))


def _unknown(environment: Mapping[str, str], read: Collection[str]) -> Iterator[str]:
    for name, value in environment.items():
        is_ours = name.startswith(PREFIX) and not name.startswith(OF_THE_REPOSITORY)
        if is_ours and name not in read and not _is_of_a_service(name, value):
            yield name


def _is_of_a_service(name: str, value: str) -> bool:
    return any(re.fullmatch(names, name) and re.fullmatch(values, value) for names, values in _OF_SERVICES)


def _complaint(name: str, known: Collection[str]) -> str:
    from difflib import get_close_matches  # noqa: PLC0415  for a mistake only

    meant = get_close_matches(name.removeprefix(PREFIX), sorted(name.removeprefix(PREFIX) for name in known), n=1)
    hint = f"did you mean {PREFIX}{meant[0]}?" if meant else "docs/settings.md names all; remove it"
    return f"the variable {name} is not a setting of kroute: {hint}"
