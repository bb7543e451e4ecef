"""The rows of a table of another proxy's flags: each is translated, accepted, or refused with a reason."""

from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from typing import NamedTuple

from kroute.migration.go_values import duration, is_true

Translate = Callable[[str], list[str]]
"""From a flag's value to kroute's arguments. Raises ValueError with a sentence for a value that has none."""

THE_SAME = "the same"
DEBUG = 4
"""The verbosity of klog that means debugging (kubernetes/community, sig-instrumentation/logging.md)."""


class Outcome(StrEnum):
    """What becomes of a flag. The last two accept its default, and a switch that is off: these ask for nothing."""

    HONOURED = "honoured"
    REFUSED = "refused"
    NO_MEANING = "no meaning here"


class Flag(NamedTuple):
    """One flag of another proxy.

    `becomes` names kroute's flag, or says why there is none. `default` is the other proxy's, as its help writes it.
    `is_switch`: it means true without a value, and takes a value only after a `=`, as in Go's pflag. `field`: its name
    in the other proxy's configuration file, or empty.
    """

    outcome: Outcome
    becomes: str
    default: str
    translate: Translate
    is_switch: bool = False
    field: str = ""

    @property
    def keeps_its_name(self) -> bool:
        return self.becomes == THE_SAME


class OtherFlags(NamedTuple):
    """All flags of one proxy, by name."""

    proxy: str
    flags: Mapping[str, Flag]


def renamed(
    ours: str, default: str = "", write: Callable[[str], str] = str, *, unset: str | None = None, becomes: str = ""
) -> Flag:
    """A flag that kroute has under the name `ours`. `write` writes its value as kroute's.

    Empty text is "not set", or has the meaning of the value `unset`.
    """

    def translate(value: str) -> list[str]:
        if value.strip():
            return [ours, write(value)]
        return [] if unset is None else [ours, unset]

    return Flag(Outcome.HONOURED, becomes or f"`{ours}`", default, translate)


def same(name: str, default: str = "", write: Callable[[str], str] = str, *, unset: str | None = None) -> Flag:
    """A flag that kroute has with this name and meaning."""
    return renamed(f"--{name}", default, write, unset=unset, becomes=THE_SAME)


def switch(on: Sequence[str], off: Sequence[str], becomes: str, *, default: bool = False) -> Flag:
    """A switch, with kroute's arguments for true and for false."""
    return Flag(
        Outcome.HONOURED, becomes, _written(default), lambda value: list(on if is_true(value) else off), is_switch=True
    )


def refused(why: str, default: str | bool) -> Flag:
    """A flag that asks for what kroute does not do."""
    return _default_alone(Outcome.REFUSED, why, default)


def no_meaning(why: str, default: str | bool) -> Flag:
    """A flag about what does not exist in kroute."""
    return _default_alone(Outcome.NO_MEANING, why, default)


def either(why: str, *, default: bool) -> Flag:
    """A switch that asks for nothing: both values are accepted."""
    return switch([], [], why, default=default)._replace(outcome=Outcome.NO_MEANING)


def needed(why: str) -> Flag:
    """A switch that is on in the other proxy and cannot be off in kroute."""

    def translate(value: str) -> list[str]:
        if not is_true(value):
            raise ValueError(why)
        return []

    return Flag(Outcome.REFUSED, why, "true", translate, is_switch=True)


def verbosity() -> Flag:
    """The flag `--v` of klog. Kubernetes uses 4 and more for what developers look at."""

    def translate(value: str) -> list[str]:
        try:
            level = int(value)
        except ValueError:
            raise ValueError(f"{value!r} is not a number; kroute's word is --log-level") from None
        return ["--log-level", "debug"] if level >= DEBUG else []

    return Flag(Outcome.HONOURED, f"`--log-level debug` from `{DEBUG}` on; less asks for nothing", "0", translate)


def _default_alone(outcome: Outcome, why: str, default: str | bool) -> Flag:
    is_switch = isinstance(default, bool)

    def translate(value: str) -> list[str]:
        if (is_true(value) and not default) if is_switch else (_plain(value) != _plain(str(default))):
            raise ValueError(why)
        return []

    return Flag(outcome, why, _written(default), translate, is_switch)


def _written(default: str | bool) -> str:
    return default if isinstance(default, str) else str(default).lower()


def _plain(text: str) -> str:
    """The value in one of the ways in which it may be written: `1m0s` is `60s`, and `[]` an empty list."""
    try:
        return duration(text)
    except ValueError:
        return text.strip("[]\"'")
