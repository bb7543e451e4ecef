"""Undo direct return on this node and in its pods."""

from kroute.controllers.direct_return.pods import with_links
from kroute.kernel.clients import TunnelClient
from kroute.kernel.errors import KernelError
from kroute.reconcile.cleanup_report import CleanupReport


async def undo_direct_return(tunnels: TunnelClient, report: CleanupReport) -> None:
    """Undo what earlier runs did on the node and, as far as this process may look there, in its pods.

    Without the rights of direct return nothing in pods is found, and nothing was made unless these were taken away.
    """
    with report.step("routes and rules of direct return"):
        if await tunnels.remove():
            report.add("delete the routes and rules of direct return")
    try:
        found = await tunnels.find(())
    except KernelError:
        return
    for namespace, family in with_links(found):
        with report.step(f"end of a tunnel in the network namespace of process {namespace.pid}"):
            if await tunnels.undo(namespace, family):
                report.add(f"delete the end of a tunnel in the network namespace of process {namespace.pid}")
