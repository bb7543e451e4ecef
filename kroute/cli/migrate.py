"""The command `kroute migrate`."""

import socket
from typing import Any

import click

from kroute.cli.options import DUMMY_INTERFACE, DURATION, EXCLUDE_CIDRS, LOG_LEVEL, STATE_DIR, Parsed
from kroute.migration.take_over_options import NODE_PORT_RANGE, TakeOverOptions, parse_port_range
from kroute.settings import Settings

PROXIES = ("kube-proxy", "kube-router")


@click.command()
@click.option("--from", "origin", type=click.Choice(PROXIES), default=None, help="The proxy that had this node.")
@click.option("--to", "destination", type=click.Choice(PROXIES), default=None, help="The proxy that is to have it.")
@click.option("--take-over", is_flag=True, help="With --from: adopt what serves, or beside an agent remove the rest.")
@click.option("--hand-over", is_flag=True, help="With --to: remove what is kroute's alone, and leave what serves.")
@click.option("--force", is_flag=True, help="Also if the other seems to run, or does not serve all that kroute did.")
@click.option("--wait", type=DURATION, default="60s", show_default=True, help="For the agent to become ready.")
@click.option(
    "--node-port-range",
    type=Parsed("PORT-PORT", parse_port_range),
    default=f"{NODE_PORT_RANGE.first}-{NODE_PORT_RANGE.last}",
    show_default=True,
    help="Where the cluster's node ports are, as the API server has it.",
)
@click.option("-o", "--output", type=click.Choice(["text", "json"]), default="text", show_default=True)
@DUMMY_INTERFACE
@EXCLUDE_CIDRS
@STATE_DIR
@LOG_LEVEL
def migrate(origin: str | None, destination: str | None, **values: Any) -> int:
    """Show what another service proxy left on this node and take it over, or hand the node back to it."""
    other = origin or destination
    if other is None or (origin and destination):
        raise click.UsageError("give one of --from and --to: the proxy that had the node, or that is to have it")
    if (values["take_over"] and destination) or (values["hand_over"] and origin):
        raise click.UsageError("--take-over goes with --from, and --hand-over with --to")
    from kroute import logs  # noqa: PLC0415
    from kroute.migration import operation  # noqa: PLC0415

    logs.configure("console", values["log_level"])
    settings = Settings(
        node_name=socket.gethostname(),
        dummy_interface=values["dummy_interface"],
        exclude_cidrs=values["exclude_cidrs"],
        state_dir=values["state_dir"],
    )
    options = TakeOverOptions(values["node_port_range"], values["wait"], values["force"])
    as_json = values["output"] == "json"
    if origin:
        return operation.migrate_from(other, settings, options, do=values["take_over"], as_json=as_json)
    return operation.migrate_to(other, settings, force=values["force"], do=values["hand_over"], as_json=as_json)
