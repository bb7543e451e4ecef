"""How one Service is served: the settings, overridden by `sessionAffinity` and the annotations."""

from typing import Self

import msgspec

from kroute.base.schedulers import SCHEDULERS, SHARING, flag_bits
from kroute.model.plan import Ejection, Persistence, Protocol, RealServer, VirtualServer, VirtualServerKey
from kroute.planning.weights.text import Locality, ServiceWeights
from kroute.settings import AUTO, Settings


class Options(msgspec.Struct, frozen=True):
    """How one Service is served. `persistence_timeout` is in seconds, 0 for none.

    `scheduler_flags` are those that the scheduler gets if the Service says nothing, in words. `chosen_flags` are the
    Service's own, in the kernel's bits; None if it has none.
    `hairpin`: whether the Service's pods may reach themselves through it. `skip_load_balancer_ips`: whether the nodes
    leave the load balancer's addresses unserved. `is_local`: whether `externalTrafficPolicy` counts as Local.
    `slow_start` is for how many seconds the weight of a new real server climbs; 0: not at all.
    `weights` and `locality` are explained in docs/weights.md, `ejection` in docs/ejection.md. `has_counters`: whether
    the kernel counts what real servers answer.
    `direct_return`: whether pods are asked to answer the clients of external addresses themselves.
    `weighs_endpoints`: whether a director weighs nodes by their endpoints.
    `is_open`: whether nothing has chosen the scheduler, so that what needs shares by weight may change it.
    """

    scheduler: str = SCHEDULERS[0]
    scheduler_flags: tuple[str, ...] = ()
    chosen_flags: int | None = None
    persistence_timeout: int = 0
    ipv4_prefix: int = 32
    ipv6_prefix: int = 128
    hairpin: bool = True
    skip_load_balancer_ips: bool = False
    is_local: bool = False
    slow_start: int = 0
    weights: ServiceWeights | None = None
    locality: Locality | None = None
    direct_return: bool = False
    ejection: Ejection | None = None
    has_counters: bool = True
    weighs_endpoints: bool = False
    is_open: bool = False

    @classmethod
    def by_default(cls, settings: Settings, persistence_timeout: int) -> Self:
        """The options of a Service that has no annotations."""
        return cls(
            settings.usual_scheduler,
            settings.scheduler_flags,
            persistence_timeout=persistence_timeout,
            hairpin=settings.hairpin,
            has_counters=settings.ipvs_estimation is not False,
            is_open=settings.scheduler == AUTO,
        )

    def sharing(self) -> Self:
        """The same with a scheduler that divides connections by weight."""
        return msgspec.structs.replace(self, scheduler=SHARING)

    @property
    def flags(self) -> int:
        """The flags of the scheduler, in the kernel's bits."""
        return flag_bits(self.scheduler_flags, self.scheduler) if self.chosen_flags is None else self.chosen_flags

    def virtual_server(
        self, key: VirtualServerKey, real_servers: tuple[RealServer, ...], *, is_tunnelled: bool = False
    ) -> VirtualServer:
        """The virtual server with these options. Answers from behind a tunnel do not pass the node: none is ejected."""
        persistence = self.persistence_for(key.address)
        ejection = self.ejection if key.protocol == Protocol.TCP and not is_tunnelled else None
        options = self.scheduler, self.flags, persistence
        return VirtualServer(key, *options, real_servers, self.slow_start, is_tunnelled, ejection)

    def persistence_for(self, address: str) -> Persistence | None:
        """The persistence of a virtual server on this address, or None."""
        if not self.persistence_timeout:
            return None
        return Persistence(self.persistence_timeout, self.ipv6_prefix if ":" in address else self.ipv4_prefix)
