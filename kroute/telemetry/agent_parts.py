"""The parts of a running agent that telemetry reads."""

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING

import msgspec

from kroute.checks.ownership import Ownership
from kroute.controllers.node_controllers import NodeControllers
from kroute.firewall.backend import Choice
from kroute.kernel.clients import IpvsReader
from kroute.kernel.ipvs.client import Ipvs
from kroute.planning.catalog import Catalog
from kroute.reconcile.broadcaster import Broadcaster
from kroute.settings import Settings
from kroute.telemetry.changes import ChangeObserver
from kroute.telemetry.statistics import Statistics

if TYPE_CHECKING:
    from kroute.inspect.policies import Enforced
    from kroute.inspect.status import AllocatorView


class AgentParts(msgspec.Struct, frozen=True, kw_only=True):
    """The parts.

    `firewall` is the backend that was chosen. `changes` follows changes, `statistics` gives the current counts, and
    `faults` says what of the source cannot be read. `open_ipvs` opens the kernel's table. `policies` is None unless
    network policies are enforced. `allocator` says who gives Services their LoadBalancer addresses, if agents do.
    """

    settings: Settings
    firewall: Choice
    catalog: Catalog
    broadcaster: Broadcaster
    controllers: NodeControllers
    changes: ChangeObserver
    statistics: Callable[[], Statistics]
    ownership: Ownership
    policies: "Enforced | None" = None
    allocator: "Callable[[], AllocatorView] | None" = None
    faults: Callable[[], list[str]] = list
    open_ipvs: Callable[[], AbstractAsyncContextManager[IpvsReader]] = Ipvs
