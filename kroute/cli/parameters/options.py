"""Options of the command line: how each is read from a flag, a variable or a file, and those that commands share."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import click
import msgspec

from kroute.base.schedulers import parse_scheduler_flags
from kroute.settings import DEFAULTS, text

Command = TypeVar("Command", bound=Callable[..., Any])


class Parsed(click.ParamType[Any]):
    """A parameter that is parsed by one of the `parse_…` functions of `settings.text`."""

    def __init__(self, name: str, parse: Callable[[str], Any]) -> None:
        self.name = name
        self._parse = parse

    def get_metavar(self, param: click.Parameter, ctx: click.Context | None = None) -> str:  # noqa: ARG002
        """The name as it is: click would show the word `off` as OFF."""
        return self.name

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Parse one value. A value that is not text has been parsed already."""
        if not isinstance(value, str):
            return value
        try:
            return self._parse(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)


class ParsedList(Parsed):
    """The same for a list of values, whose elements are separated by commas; see `ListOption`."""


class ListOption(click.Option):
    """An option whose value is a list: its elements are separated by commas, and it may be given many times.

    All texts that are given count together, as with a `StringSlice` of Go's pflag: the type parses them as one text,
    and drops elements that are there twice.
    """

    def __init__(self, names: Sequence[str], **attributes: Any) -> None:
        super().__init__(names, multiple=True, **attributes)

    def value_from_envvar(self, ctx: click.Context) -> list[str] | None:
        """The variable is one text, whatever spaces it has."""
        text = self.resolve_envvar_value(ctx)
        return None if text is None else [text]

    def type_cast_value(self, ctx: click.Context, value: Any) -> Any:
        """Parse the list of texts."""
        return self.type(",".join(map(str, value or ())), self, ctx)


DURATION = Parsed("DURATION", text.parse_duration)
TIMEOUT = Parsed("DURATION", text.parse_timeout)
CONNTRACK_TIMEOUT = Parsed("DURATION", text.parse_conntrack_timeout)
BIND_ADDRESS = Parsed("IP:PORT|off", text.parse_listen_address)
INTERFACE = Parsed("NAME", text.parse_interface)
PROXY_NAME = Parsed("NAME", text.parse_proxy_name)
NETWORKS = ParsedList("CIDR[,CIDR]", text.parse_networks)
CLASSES = ParsedList("CLASS[,CLASS]", text.parse_load_balancer_classes)
SERVERS = ParsedList("URL[,URL]", text.parse_servers)
NODE_IPS = ParsedList("IP[,IP]", text.parse_node_ips)
SCHEDULER_FLAGS = ParsedList("FLAG[,FLAG]|none", parse_scheduler_flags)
NODE_PORT_ADDRESSES = ParsedList("CIDR[,CIDR]|primary", text.parse_nodeport_addresses)
ROUTER_ID = Parsed("ID", text.parse_router_id)
ROUTER_IPS = ParsedList("IP[,IP]", text.parse_router_ips)
ROUTER_PORTS = ParsedList("PORT[,PORT]", text.parse_router_ports)
ASNS = ParsedList("ASN[,ASN]", text.parse_asns)
PORTS = ParsedList("PORT[-PORT][,...]", text.parse_ports)
EXEMPTIONS = ParsedList("SRC:DST[,...]", text.parse_exemptions)
SHARE = Parsed("PERCENT", text.parse_share)
MARK = Parsed("MARK", text.parse_mark)
FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
DIRECTORY = click.Path(exists=True, file_okay=False, path_type=Path)
ABSOLUTE_DIRECTORY = Parsed("DIRECTORY", text.parse_directory)
LEVEL = click.Choice(["debug", "info", "warning", "error"])
ON_OFF = click.Choice(["on", "off"], case_sensitive=False)


class Setting(msgspec.Struct, frozen=True):
    """A setting on the command line, which a variable KROUTE_…, named like the flag, and the file can set as well.

    Without a `type` it is a switch. Its default is that of `Settings`, unless `more`, which has further attributes of
    the option, names another one.
    """

    flag: str
    type: click.ParamType[Any] | None
    help: str
    more: Mapping[str, Any] = {}


DEFAULT_FLAGS = text.as_flags(DEFAULTS)
_FIELDS = {flag: field for field, flag in text.FLAG_NAMES.items()}


def option(setting: Setting, defaults: Mapping[str, str] = DEFAULT_FLAGS) -> Callable[[Command], Command]:
    """The option for a setting, whose value is named like the field of the settings. `defaults` are by flag."""
    name = setting.flag.removeprefix("--")
    default = setting.more.get("default", defaults.get(name) or None)
    is_shown = isinstance(default, str) and (default != "0s" or setting.type is DURATION)
    attributes = {"type": setting.type, "show_default": is_shown, **setting.more}
    if setting.type is None:
        attributes = {"is_flag": True, "default": default == "true"}
    elif isinstance(setting.type, ParsedList):
        attributes |= {"cls": ListOption, "default": default.split(",") if default else ()}
    elif default is not None:
        attributes["default"] = default
    return click.option(
        setting.flag,
        _FIELDS.get(name, name.replace("-", "_")),
        help=setting.help,
        envvar="KROUTE_" + name.replace("-", "_").upper(),
        show_envvar=False,
        **attributes,
    )


SORT_BY = click.option(
    "--sort-by",
    type=click.Choice(("packets", "connections", "bytes", "active", "name")),
    default=None,
    help="The order of rates: the busiest first, or by name.  [default: packets]",
)
FILTER = click.option(
    "--filter", "only", default="", metavar="TEXT", help="Only what has this text in a Service's name or an address."
)
