"""A default is defined in the settings, and the command line shows the same."""

from collections.abc import Mapping
from typing import Any

import click
import msgspec
import pytest

from kroute import settings
from kroute.cli.director import director, director_settings
from kroute.cli.migrate import migrate
from kroute.cli.run import run
from kroute.cli.run_options import settings_of
from kroute.director.settings import DEFAULTS as DIRECTOR_DEFAULTS
from kroute.migration.take_over_options import DEFAULTS as TAKE_OVER_DEFAULTS
from kroute.settings import ListenAddress


def values(command: click.Command, monkeypatch: pytest.MonkeyPatch, *arguments: str) -> Mapping[str, Any]:
    """Return the values that a command gets from these arguments alone."""
    monkeypatch.setenv("KROUTE_LOG_FORMAT", settings.DEFAULTS.log_format)  # otherwise it depends on the terminal
    return command.make_context("command", list(arguments)).params


def test_run_without_options_has_the_defaults(monkeypatch: pytest.MonkeyPatch) -> None:
    made = settings_of(values(run, monkeypatch, "--node-name", "n1"))
    assert made == msgspec.structs.replace(settings.DEFAULTS, node_name="n1")


def test_a_director_without_options_has_the_defaults(monkeypatch: pytest.MonkeyPatch) -> None:
    required = ("--identity", "d1", "--vip-interface", "eth0", "--external-ip-range", "203.0.113.0/24")
    made = director_settings(values(director, monkeypatch, *required))
    common = msgspec.structs.replace(DIRECTOR_DEFAULTS.common, node_name="d1", external_ip_ranges=("203.0.113.0/24",))
    assert made == msgspec.structs.replace(DIRECTOR_DEFAULTS, common=common, vip_interface="eth0")


def test_a_take_over_without_options_has_the_defaults(monkeypatch: pytest.MonkeyPatch) -> None:
    made = values(migrate, monkeypatch)
    assert (made["node_port_range"], made["wait"]) == (TAKE_OVER_DEFAULTS.node_ports, TAKE_OVER_DEFAULTS.wait)


@pytest.mark.parametrize("seconds", [0.0, 0.5, 2.0, 30.0, 900.0])
def test_a_duration_that_was_written_reads_the_same(seconds: float) -> None:
    assert settings.parse_duration(settings.write_duration(seconds)) == seconds


@pytest.mark.parametrize(
    "address", [None, ListenAddress("", 1), ListenAddress("127.0.0.1", 2), ListenAddress("fd00::1", 3)]
)
def test_an_address_that_was_written_reads_the_same(address: ListenAddress | None) -> None:
    assert settings.parse_listen_address(settings.write_bind_address(address)) == address
