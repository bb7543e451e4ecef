"""The option `--config`: a YAML file of kroute's, or kube-proxy's own configuration, gives options their defaults.

What it says, and what kroute makes of it, begins the log.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click
import structlog

from kroute.base import logs
from kroute.base.wording import in_words
from kroute.settings import Settings

log = structlog.get_logger(__name__)

_UNUSED_FIELDS = "kroute.unused-fields"


def read_config(ctx: click.Context, param: click.Parameter, path: Path | None) -> Path | None:
    """Use the values of a YAML file as defaults. Flags and variables take precedence over it.

    A configuration file of kube-proxy is accepted as well: the fields that mean something for kroute are used.
    """
    if path is None:
        return None
    import yaml  # noqa: PLC0415  0.02 s, and most agents have flags and variables only

    from kroute.migration.kube_proxy_configuration import is_kube_proxy_configuration  # noqa: PLC0415  as above

    try:
        content = yaml.safe_load(path.read_text()) or {}
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise click.BadParameter(f"cannot read {path}: {in_words(error)}", ctx, param) from None
    allowed = _settings(ctx, param)
    if is_kube_proxy_configuration(content):
        content = _of_kube_proxy(ctx, param, path, content)
    elif not isinstance(content, dict):
        raise click.BadParameter(f"{path} must hold `name: value` pairs, named like the flags", ctx, param)
    for name in content:
        if name not in allowed:
            message = f"{path}: {name!r} is not a setting; allowed: {', '.join(sorted(allowed))}"
            raise click.BadParameter(message, ctx, param)
    ctx.default_map = {str(allowed[name].name): as_written(value, allowed[name]) for name, value in content.items()}
    return path


def _of_kube_proxy(
    ctx: click.Context, param: click.Parameter, path: Path, content: Mapping[str, Any]
) -> dict[str, Any]:
    """The settings of a kube-proxy configuration that apply. Other fields are kept for `tell_of_unused_fields`."""
    from kroute.migration.kube_proxy_configuration import ConfigurationFieldError, translate  # noqa: PLC0415  as above

    allowed = _settings(ctx, param)
    try:
        settings_, remarks = translate(content)
    except ConfigurationFieldError as error:
        raise click.BadParameter(f"{path}: {error}", ctx, param) from None
    found: dict[str, Any] = {}
    for name, value, field, is_default in settings_:
        if name not in allowed:
            remarks |= {} if is_default else {field: f"kroute {ctx.info_name} has no such setting"}
            continue
        try:
            allowed[name].type_cast_value(ctx, as_written(value, allowed[name]))
        except click.BadParameter as error:
            raise click.BadParameter(f"{path}: {field}: {error.message}", ctx, param) from None
        found[name] = value
    ctx.meta[_UNUSED_FIELDS] = remarks
    return found


def begin_log(settings: Settings, differing: Mapping[str, str]) -> None:
    """Configure the log, and begin it with the settings that are not the defaults; /flagz has all."""
    logs.configure(settings.log_format, settings.log_level)
    logs.never_wait()
    log.info("settings.in_force", **{name.replace("-", "_"): value for name, value in differing.items()})
    tell_of_unused_fields(click.get_current_context())


def tell_of_unused_fields(ctx: click.Context) -> None:
    """Log each field of a kube-proxy configuration that is set and not used."""
    for field, why in ctx.meta.get(_UNUSED_FIELDS, {}).items():
        log.warning("config.field_not_used", field=field, why=why)


def _settings(ctx: click.Context, config: click.Parameter) -> dict[str, click.Parameter]:
    """The settings of a command, by their names in the file. Options without a variable, like --output, are none."""
    settings_ = [parameter for parameter in ctx.command.params if parameter.envvar and parameter.name != config.name]
    return {parameter.opts[0].lstrip("-"): parameter for parameter in settings_}


def as_written(value: Any, parameter: click.Parameter) -> Any:
    """The value as on the command line: a list becomes comma-separated, or one flag for each element."""
    if isinstance(value, list):
        return [str(each) for each in value] if parameter.multiple else ",".join(str(each) for each in value)
    if isinstance(value, bool):  # YAML reads `on` and `off` as booleans
        return value if isinstance(parameter, click.Option) and parameter.is_flag else ("on" if value else "off")
    if value is None:
        return value
    return [str(value)] if parameter.multiple else str(value)
