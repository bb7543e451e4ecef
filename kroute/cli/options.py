"""Options of the command line: how one is read from a flag, a variable or a file, and those that commands share."""

import socket
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import click

from kroute import settings
from kroute.migration.kube_proxy_configuration import (
    ConfigurationFieldError,
    is_kube_proxy_configuration,
    translate,
)

_UNUSED_FIELDS = "kroute.unused-fields"

_Command = TypeVar("_Command", bound=Callable[..., Any])


class Parsed(click.ParamType[Any]):
    """A parameter that one of the `settings.parse_…` functions reads."""

    def __init__(self, name: str, parse: Callable[[str], Any]) -> None:
        self.name = name
        self._parse = parse

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Read one value; what is not text has been read before."""
        if not isinstance(value, str):
            return value
        try:
            return self._parse(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)


NETWORKS = Parsed("CIDR[,CIDR]", settings.parse_networks)
DURATION = Parsed("DURATION", settings.parse_duration)
TIMEOUT = Parsed("DURATION", settings.parse_timeout)
BIND_ADDRESS = Parsed("IP:PORT|off", settings.parse_bind_address)
INTERFACE = Parsed("NAME", settings.parse_interface)


def option(*names: str, **attributes: Any) -> Callable[[_Command], _Command]:
    """An option that can also be given as a KROUTE_… variable, named like the flag."""
    flag = max(names, key=lambda name: name.startswith("--"))
    variable = "KROUTE_" + flag.lstrip("-").replace("-", "_").upper()
    return click.option(*names, envvar=variable, show_envvar=False, **attributes)


def read_config(ctx: click.Context, param: click.Parameter, path: Path | None) -> Path | None:
    """Take the values of a YAML file as defaults: flags and variables go before it.

    A file of kube-proxy's is one as well: those of its fields that mean something for kroute are its values.
    """
    if path is None:
        return None
    import yaml  # noqa: PLC0415 - only who uses a file pays for the parser

    try:
        content = yaml.safe_load(path.read_text()) or {}
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise click.BadParameter(f"cannot read {path}: {' '.join(str(error).split())}", ctx, param) from None
    if is_kube_proxy_configuration(content):
        _use_kube_proxy_configuration(ctx, param, path, content)
        return path
    if not isinstance(content, dict):
        raise click.BadParameter(f"{path} must hold `name: value` pairs, named like the flags", ctx, param)
    allowed = {_config_name(each): each for each in ctx.command.params if each.name != param.name}
    for name in content:
        if name not in allowed:
            raise click.BadParameter(
                f"{path}: {name!r} is not a setting; allowed: {', '.join(sorted(allowed))}", ctx, param
            )
    ctx.default_map = {str(allowed[name].name): _as_written(value, allowed[name]) for name, value in content.items()}
    return path


def _use_kube_proxy_configuration(
    ctx: click.Context, param: click.Parameter, path: Path, content: Mapping[str, Any]
) -> None:
    """Take what applies as defaults; what does not is kept for `tell_of_unused_fields`."""
    allowed = {_config_name(each): each for each in ctx.command.params if each.name != param.name}
    try:
        settings_, remarks = translate(content)
    except ConfigurationFieldError as error:
        raise click.BadParameter(f"{path}: {error}", ctx, param) from None
    defaults: dict[str, Any] = {}
    for name, value, field in settings_:
        if name not in allowed:
            remarks[field] = f"kroute {ctx.info_name} has no such setting"
            continue
        written = _as_written(value, allowed[name])
        try:
            allowed[name].type_cast_value(ctx, written)
        except click.BadParameter as error:
            raise click.BadParameter(f"{path}: {field}: {error.message}", ctx, param) from None
        defaults[str(allowed[name].name)] = written
    ctx.default_map = defaults
    ctx.meta[_UNUSED_FIELDS] = remarks


def tell_of_unused_fields(ctx: click.Context) -> None:
    """Log each field of a kube-proxy configuration that is set and not used; when logs are configured."""
    import structlog  # noqa: PLC0415 - after the logs, which decide what it loads

    log = structlog.get_logger(__name__)
    for field, why in ctx.meta.get(_UNUSED_FIELDS, {}).items():
        log.warning("config.field_not_used", field=field, why=why)


def _config_name(parameter: click.Parameter) -> str:
    return parameter.opts[0].lstrip("-")


def _as_written(value: Any, parameter: click.Parameter) -> Any:
    """The value as it would be written on the command line: a list becomes comma-separated or several flags."""
    if isinstance(value, list):
        return [str(each) for each in value] if parameter.multiple else ",".join(str(each) for each in value)
    if isinstance(value, bool):  # YAML reads `on` and `off` as booleans
        return value if isinstance(parameter, click.Option) and parameter.is_flag else ("on" if value else "off")
    if value is None:
        return value
    return [str(value)] if parameter.multiple else str(value)


CONFIG = click.option(
    "--config",
    type=click.Path(dir_okay=False, path_type=Path),
    envvar="KROUTE_CONFIG",
    callback=read_config,
    is_eager=True,
    expose_value=False,
    help="YAML file with the same names as the flags; flags and variables go before it.",
)
KUBECONFIG = option(
    "--kubeconfig", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="How to reach the API server."
)
MASTER = option("--master", metavar="URL", help="The API server's address; overrides the kubeconfig's.")
NODE_NAME = option(
    "--node-name", default=socket.gethostname, help="The Node object of this node.  [default: the host name]"
)
STATE_DIR = option(
    "--state-dir",
    type=click.Path(file_okay=False, path_type=Path),
    default=settings.DEFAULT_STATE_DIR,
    show_default=True,
    help="Where the ledger and the agent's socket are kept; must live as long as the kernel's state (tmpfs).",
)
DUMMY_INTERFACE = option(
    "--dummy-interface",
    type=INTERFACE,
    default=settings.DEFAULT_DUMMY_INTERFACE,
    show_default=True,
    help="The interface that carries the VIPs.",
)
PROC_SYS = option(
    "--proc-sys",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    default=settings.DEFAULT_PROC_SYS,
    show_default=True,
    help="Where sysctls are read and written: a container's own /proc/sys is read-only, so it is given the host's.",
)
EXCLUDE_CIDRS = option("--exclude-cidrs", type=NETWORKS, default=(), help="Never touch what has these addresses.")
HEALTHZ_BIND_ADDRESS = option(
    "--healthz-bind-address",
    type=BIND_ADDRESS,
    default="0.0.0.0:10256",
    show_default=True,
    help="Where /healthz, /livez and /readyz are answered.",
)
METRICS_BIND_ADDRESS = option(
    "--metrics-bind-address",
    type=BIND_ADDRESS,
    default="127.0.0.1:10249",
    show_default=True,
    help="Where /metrics and the status page are; they name Services and pods.",
)
METRICS_SERVICES = option(
    "--metrics-services",
    type=click.IntRange(0, 100_000),
    default=1000,
    show_default=True,
    help="How many Services have metrics of their own: those with most connections.",
)
LOG_FORMAT = option(
    "--log-format",
    type=click.Choice(["json", "console"]),
    default=None,
    help="Default: console on a terminal, else json.",
)
LOG_LEVEL = option(
    "--log-level", type=click.Choice(["debug", "info", "warning", "error"]), default="info", show_default=True
)
