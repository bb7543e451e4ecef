"""Commands with the options of `kroute run` use the agent's settings, overridden by their own options."""

from pathlib import Path
from unittest.mock import Mock, patch

import click
import msgspec
import pytest
from click.testing import CliRunner

from kroute.base import logs
from kroute.cli.parameters.run_options import settings_in_force
from kroute.cli.terminal.formats import output_option
from kroute.firewall.backend import Choice
from kroute.inspect import agent_socket
from kroute.settings import AUTO, Exemption, PortRange, Settings
from kroute.telemetry.answers import answers_of

AGENT = Settings(
    node_name="node1",
    kubeconfig=Path("/etc/kubeconfig"),
    scheduler="lc",
    masquerade_all=True,
    cluster_cidrs=("10.1.0.0/16",),
    protected_ports=(PortRange(1, 2),),
    masquerade_exemptions=(Exemption("10.2.0.0/16", "10.3.0.0/16"),),
    ipvs_udp_timeout=300,
    log_format="json",
)


SEEN: list[Settings] = []


@click.command()
@output_option
@settings_in_force
def probe(settings: Settings, *, output: str) -> int:
    SEEN.append(settings)
    assert output == "table"
    return 0


@pytest.fixture
def in_force() -> list[Settings]:
    """The settings with which the command ran."""
    SEEN.clear()
    return SEEN


@pytest.fixture
def agent(monkeypatch: pytest.MonkeyPatch) -> None:
    async def ask(_state_dir: Path) -> Settings:
        return AGENT

    monkeypatch.setattr(agent_socket, "ask_settings", ask)


def run(*arguments: str, **variables: str) -> None:
    with patch.object(logs, "configure"):
        result = CliRunner().invoke(probe, arguments, env=variables)
    assert result.exit_code == 0, result.output


@pytest.mark.usefixtures("agent")
def test_without_options_it_is_the_agents(in_force: list[Settings], tmp_path: Path) -> None:
    run("--state-dir", str(tmp_path))
    [settings] = in_force
    assert settings.state_dir == tmp_path
    assert (settings.node_name, settings.scheduler, settings.ipvs_udp_timeout) == ("node1", "lc", 300)


@pytest.mark.usefixtures("agent")
def test_what_is_given_goes_before_the_agents(in_force: list[Settings], tmp_path: Path) -> None:
    run("--scheduler", "mh", "--state-dir", str(tmp_path), KROUTE_CLUSTER_CIDR="10.9.0.0/16")
    [settings] = in_force
    assert (settings.scheduler, settings.cluster_cidrs, settings.masquerade_all) == ("mh", ("10.9.0.0/16",), True)


@pytest.mark.usefixtures("agent")
def test_who_gives_a_source_means_no_other(in_force: list[Settings], tmp_path: Path) -> None:
    run("--manifests", str(tmp_path), "--state-dir", str(tmp_path))
    [settings] = in_force
    assert (settings.manifests, settings.kubeconfig) == (tmp_path, None)


def test_without_an_agent_it_is_as_run_would_have_it(in_force: list[Settings], tmp_path: Path) -> None:
    run("--node-name", "node7", "--state-dir", str(tmp_path))
    [settings] = in_force
    assert (settings.node_name, settings.scheduler) == ("node7", "auto")


async def test_settings_survive_the_socket(tmp_path: Path) -> None:
    async def answer(about: str) -> bytes:
        return msgspec.json.encode(AGENT, enc_hook=str)

    async with agent_socket.serve(tmp_path, {agent_socket.SETTINGS: answer}):
        assert await agent_socket.ask_settings(tmp_path) == AGENT
    assert await agent_socket.ask_settings(tmp_path) is None


@pytest.mark.parametrize(("given", "firewall"), [(True, "nftables"), (False, AUTO)])
async def test_a_backend_that_the_agent_has_chosen_itself_is_nobodys_setting(given: bool, firewall: str) -> None:
    settings = Settings("node1", firewall="nftables")
    choice = Choice("nftables", "why", given=given)
    answers = answers_of(Mock(settings=settings, firewall=choice))
    answer = await answers[agent_socket.SETTINGS]("")
    assert msgspec.json.decode(answer)["firewall"] == firewall
