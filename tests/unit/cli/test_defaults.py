"""A default is defined in the settings, and the command line shows the same."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click
import msgspec
import pytest

from kroute import settings
from kroute.cli.director import director, director_settings
from kroute.cli.migrate import migrate
from kroute.cli.parameters.run_options import settings_of
from kroute.cli.run import run
from kroute.director.settings import DEFAULTS as DIRECTOR_DEFAULTS
from kroute.migration.take_over import DEFAULTS as TAKE_OVER_DEFAULTS
from kroute.settings import ListenAddress, text


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
    assert text.parse_duration(text.write_duration(seconds)) == seconds


@pytest.mark.parametrize(
    "address", [None, ListenAddress("", 1), ListenAddress("127.0.0.1", 2), ListenAddress("fd00::1", 3)]
)
def test_an_address_that_was_written_reads_the_same(address: ListenAddress | None) -> None:
    assert text.parse_listen_address(text.write_bind_address(address)) == address


def test_every_flag_can_be_written_and_reads_the_same(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("KROUTE_LOG_FORMAT", "json")
    given = [
        *("--node-name=n1", "--node-ip=192.0.2.1,fd00::1", "--protected-ports=22,80-90", "--strict-arp=off"),
        *("--masquerade-exempt=10.0.0.0/8:10.1.0.0/16", "--masquerade-mark=0x8", "--ipvs-estimation=on"),
        *(
            "--conntrack-max-per-core=9",
            "--conntrack-tcp-be-liberal",
            "--conntrack-udp-timeout=7s",
            "--drain-timeout=2s",
        ),
        *("--ipvs-udp-timeout=9s", "--metrics-bind-address=off", "--masquerade-all", f"--manifests={tmp_path}"),
        *("--detect-local-mode=BridgeInterface", "--pod-bridge-interface=cbr0", "--exclude-cidrs=10.0.0.0/8,fd00::/8"),
    ]
    made = settings_of(run.make_context("run", given).params)
    written = text.as_flags(made)
    flags = {name.lstrip("-"): it for it in run.params for name in it.opts[:1]}
    assert written.keys() == flags.keys() - {"config"}
    again = [
        f"--{name}" if flags[name].is_flag else f"--{name}={value}"
        for name, value in written.items()
        if value not in {"", "false"}
    ]
    assert settings_of(run.make_context("run", again).params) == made
