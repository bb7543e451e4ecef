"""A list option of any command may be given many times, and takes commas: every element counts, each once."""

from typing import Any, get_origin, get_type_hints

import click
import pytest

from kroute.cli.main import COMMANDS, load
from kroute.cli.parameters.options import ListOption
from kroute.director.settings import DirectorSettings
from kroute.settings import Settings

ELEMENTS = {
    "--master": ("https://192.0.2.1:6443", "https://[2001:db8::1]:6443"),
    "--node-ip": ("192.0.2.1", "2001:db8::1"),
    "--protected-ports": ("22", "2379-2380"),
    "--masquerade-exempt": ("10.0.0.0/8:10.1.0.0/16", "fd00::/64:fd00:1::/64"),
    "--scheduler-flags": ("sh-port", "mh-port"),
    "--selector": ("app=web", "tier in (a,b)"),
    "--loadbalancer-class": ("example.com/internal", "default"),
}
"""Two elements of each option whose elements are not networks."""
PARALLEL = {"--peer-router-ips", "--peer-router-asns", "--peer-router-ports"}
"""Options whose elements belong to those of another one, so that one may be there twice."""
NETWORKS = ("10.0.0.0/8", "2001:db8::/64")


LIST_OPTIONS = [
    pytest.param(load(name), option, id=f"{name} {option.opts[0]}")
    for name in COMMANDS
    for option in load(name).params
    if isinstance(option, ListOption) and option.opts[0] not in PARALLEL
]


def parsed(command: click.Command, option: click.Option, *arguments: str) -> Any:
    """Return the value of one option; what the command requires besides is left out."""
    alone = click.Command("alone", params=[option])
    return alone.make_context(str(command.name), list(arguments)).params[str(option.name)]


@pytest.mark.parametrize(("command", "option"), LIST_OPTIONS)
def test_every_element_counts_once_however_often_the_option_is_given(
    command: click.Command, option: ListOption, monkeypatch: pytest.MonkeyPatch
) -> None:
    flag = option.opts[0]
    one, two = ELEMENTS.get(flag, NETWORKS)
    both = parsed(command, option, flag, f"{one},{two}")
    assert both not in (parsed(command, option, flag, one), parsed(command, option, flag, two))
    assert parsed(command, option, flag, one, f"{flag}={two}") == both
    assert parsed(command, option, flag, f"{one},{two}", flag, one) == both
    assert parsed(command, option, flag, one, flag, two, flag, f"{two},{one}") == both
    monkeypatch.setenv(str(option.envvar), f"{one},{two}")
    assert parsed(command, option) == both
    assert parsed(command, option, flag, one) == parsed(command, option, flag, one, flag, one)


@pytest.mark.parametrize("name", COMMANDS)
def test_every_setting_that_is_a_list_has_such_an_option(name: str) -> None:
    types = get_type_hints(DirectorSettings) | get_type_hints(Settings)
    lists = {field for field, its_type in types.items() if get_origin(its_type) is tuple}
    single = {str(it.name) for it in load(name).params if not isinstance(it, ListOption)}
    assert len(lists) > 5
    assert not lists & single


def test_the_primary_address_may_be_named_twice_but_not_beside_networks() -> None:
    run = load("run")
    [option] = [it for it in run.params if it.opts[0] == "--nodeport-addresses" and isinstance(it, ListOption)]
    flag = option.opts[0]
    assert parsed(run, option, flag, "primary", flag, "primary") == ("primary",)
    with pytest.raises(click.BadParameter, match="the word primary alone"):
        parsed(run, option, flag, "primary", flag, "10.0.0.0/8")


def test_a_second_node_address_of_one_family_is_refused_also_from_a_second_flag() -> None:
    run = load("run")
    [option] = [it for it in run.params if it.opts[0] == "--node-ip" and isinstance(it, ListOption)]
    with pytest.raises(click.BadParameter, match="names two addresses of one family"):
        parsed(run, option, "--node-ip", "192.0.2.1", "--node-ip", "192.0.2.2")
