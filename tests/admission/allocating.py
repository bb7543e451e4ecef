"""An allocator that makes passes, for a test in another network namespace.

`python -m tests.admission.allocating KUBECONFIG NAME RANGE`: prints, as JSON, its role, and whether each pass was
complete. The Lease stays as it is.
"""

import asyncio
import json
import sys
from pathlib import Path

from kroute.agent.allocator import Allocator
from kroute.base import logs
from kroute.planning.catalog import Catalog
from kroute.settings import Settings
from kroute.telemetry.events import EventRecorder
from kroute.watchers.kubernetes.api import Api
from tests.builders import LISTED, facts

PASSES = 2
"""The second one forgets the notes of the first."""


async def main(kubeconfig: str, name: str, networks: str) -> None:
    settings = Settings(
        node_name=name,
        kubeconfig=Path(kubeconfig),
        allocate_load_balancer_ips=True,
        load_balancer_ip_ranges=tuple(networks.split(",")),
    )
    async with await Api.open(settings) as api:
        catalog = Catalog(settings, facts())
        catalog.take(LISTED)
        allocator = Allocator(settings, api, catalog, EventRecorder(name, catalog.uid_of, api.when_up))
        await allocator.election.attempt()
        complete = [await allocator.pass_once() for _ in range(PASSES)]
        print(json.dumps({"role": allocator.election.role.value, "complete": complete}))


if __name__ == "__main__":
    logs.configure("json", "info")
    asyncio.run(main(*sys.argv[1:4]))
