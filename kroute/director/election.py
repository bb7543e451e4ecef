"""The election of the active director: client-go's leader election (tools/leaderelection) with two more rules.

The holder renews the Lease every `retry_period`. Every other candidate waits until it has seen no renewal for
`duration` on its own clock, so the clocks of two machines need not agree. A released Lease is taken at once.

First rule: a standby that could not read the Lease for that long, or stood still, has seen nothing, and waits again
from the moment when it can read it. Otherwise both would find the Lease expired when a lost API server comes back, or
their host goes on after a pause, and the VIPs would move for no reason.

Second rule: a director that cannot renew the Lease goes on. client-go's leader stops at its deadline, because two
leaders that write are worse than none. Two directors that both answer for a VIP do no harm: both have the same virtual
servers, and either reaches the nodes. And when the API server is lost, it is usually lost to both: nobody can take the
Lease, and stopping would be an outage. The active director gives up when it reads that another one holds the Lease.

It also gives up when it finds its own identity in the Lease with a renewal time that it never wrote: another
director has the same identity, from a copied state directory. This one takes a new identity and becomes a standby.
"""

import asyncio
import math
import random
import time
from collections import deque
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime

import msgspec
import structlog

from kroute.base.backoff import exhaustion
from kroute.director.lease import Lease, LeaseLock, LeaseRole, LeaseSpec, timestamp
from kroute.director.settings import LeaseSettings
from kroute.watchers.kubernetes.errors import ApiError

log = structlog.get_logger(__name__)

MOST_TRANSITIONS = 1 << 31
"""After so many, the count begins at 0 again: the API server would refuse a Lease with a larger number."""
RENEWALS_KEPT = 1000
"""How many of its own renewals a candidate remembers: those of half an hour, more than can still be in flight."""
RELEASE_WITHIN = 4.0
"""Seconds in which a director that stops tries to release the Lease."""
RELEASE_PAUSE = 0.2
"""Seconds between two of those tries."""
JITTER = 0.2
"""A standby's pause is longer by up to this part of it, so that two do not keep trying at the same moment."""


class Election:
    """One candidate. `may_take` says whether it could serve: before that, it only keeps a Lease that it already has.

    `new_identity` makes another identity when another process has this one. `announce` is called with each new role, in
    the event loop, and `attempted` after each attempt, with the time when it began and whether it had an answer.
    `clock` gives seconds, `now` the wall clock's time.
    """

    def __init__(
        self,
        lock: LeaseLock,
        identity: str,
        settings: LeaseSettings,
        announce: Callable[[LeaseRole], None],
        may_take: Callable[[], bool],
        *,
        new_identity: Callable[[], str],
        attempted: Callable[[float, bool], None] = lambda _began, _is_answered: None,
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
    ) -> None:
        self.role = LeaseRole.UNKNOWN
        self._lock = lock
        self._identity = identity
        self._settings = settings
        self._announce = announce
        self._may_take = may_take
        self._new_identity = new_identity
        self._attempted = attempted
        self._clock = clock
        self._now = now
        self._sleep = sleep
        self._rng = random.Random()  # noqa: S311  it spreads attempts, and guards nothing
        self._renewals: deque[str | None] = deque(maxlen=RENEWALS_KEPT)
        """When this process renewed the Lease, or tried to: an attempt without an answer may have been written."""
        self._lease: Lease | None = None
        self._seen: LeaseSpec | None = None
        self._seen_at = clock()
        self._read_at = clock()
        self._due = math.inf  # when the attempt was to begin
        self.has_missed = False  # whether the last attempt had no answer that it could use
        self._renewed_at = clock()
        self._is_overdue = False

    @property
    def holder(self) -> str:
        """Who held the Lease when it was seen last; "" if nobody did, or it was never seen."""
        return (self._seen.holder_identity or "") if self._seen is not None else ""

    async def run(self) -> None:
        """Take part until cancelled.

        An attempt that has begun is finished first: what was sent may still be written, and `release` must see it. One
        that hangs is given up, and with it the role.
        """
        while True:
            began = self._clock()
            attempt = asyncio.ensure_future(self.attempt())
            try:
                await asyncio.shield(attempt)
            except asyncio.CancelledError:
                _, hanging = await asyncio.wait([attempt], timeout=RELEASE_WITHIN)
                if hanging:  # then a release would hang, too
                    attempt.cancel()
                    self._unreleased(f"no answer within {RELEASE_WITHIN:g} s")
                raise
            self._attempted(began, not self.has_missed)
            pause = self._pause()
            self._due = self._clock() + pause
            await self._sleep(pause)

    async def attempt(self) -> None:
        """Renew the Lease, or take it if it is free.

        Raises nothing, whatever the API answers or the system lacks; `run` tries again after `retry_period`.
        """
        try:
            async with asyncio.timeout(self._settings.attempt_timeout):
                await self._renew_or_take()
        except TimeoutError:
            self._missed(f"no answer within {self._settings.attempt_timeout} s")
        except Exception as error:
            if not isinstance(error, (ApiError, msgspec.DecodeError)) and exhaustion(error) is None:
                raise
            self._lease = None  # the next attempt reads before it writes
            self._missed(str(error) or type(error).__name__)

    async def release(self) -> None:
        """Let another director take the Lease at once. Does nothing if this director does not hold it.

        Tries for RELEASE_WITHIN seconds: a standby waits for the whole duration of a Lease that is not released.
        """
        reason = f"no answer within {self._settings.attempt_timeout:g} s"
        try:
            async with asyncio.timeout(RELEASE_WITHIN):
                while (failure := await self._released()) is not None:
                    reason = failure or reason
                    await asyncio.sleep(RELEASE_PAUSE)
        except (msgspec.DecodeError, TimeoutError) as error:
            self._unreleased(str(error) or reason)
        self.role = LeaseRole.STANDBY

    def _unreleased(self, error: str) -> None:
        log.warning("lease.unreleased", error=error, consequence="a standby waits until it has expired")
        self.role = LeaseRole.STANDBY

    async def _released(self) -> str | None:
        """Try once to release the Lease. Returns what the API server objected to, None if nobody holds it for us.

        Nobody does if there is none, unless the last attempt was not answered: it may still make one.
        """
        try:
            async with asyncio.timeout(self._settings.attempt_timeout):
                lease = await self._lock.read()
                if self._is_mine(lease):
                    await self._lock.update(lease, self._spec(lease.spec, holder="", duration=1))
                    log.info("lease.released", identity=self._identity)
        except ApiError as error:
            return None if error.is_missing and not self.has_missed else str(error)
        except TimeoutError as error:
            return str(error)
        return None

    def _pause(self) -> float:
        """Seconds until the next attempt. A standby does not wait beyond the moment when the Lease expires."""
        pause = self._settings.retry_period
        if self.role is LeaseRole.ACTIVE:
            return pause
        pause *= 1 + JITTER * self._rng.random()
        left = self._expires_at(self._lease) - self._clock() if self._lease is not None else 0.0
        return min(pause, left) if left > 0 else pause

    async def _renew_or_take(self) -> None:
        if self.role is LeaseRole.ACTIVE and self._lease is not None and await self._still_writes(self._lease):
            return
        lease = await self._read()
        if lease is not None and self._is_namesakes(lease):
            self._leave_identity()
        if lease is None:
            if self._may_take():
                await self._lock.create(self._remembered(self._spec(LeaseSpec(), transitions=0)))
                await self._read()
                self._become(LeaseRole.ACTIVE)
        elif self._is_mine(lease) or (self._may_take() and self._is_free(lease)):
            await self._write(lease)
        elif lease.spec.holder_identity or self.role is not LeaseRole.ACTIVE:
            self._become(LeaseRole.STANDBY, holder=lease.spec.holder_identity)

    async def _still_writes(self, lease: Lease) -> bool:
        """Renew without reading first. Returns False if the Lease has changed or was deleted."""
        try:
            await self._write(lease)
        except ApiError as error:
            if error.status not in {404, 409}:
                raise
            return False
        return True

    async def _read(self) -> Lease | None:
        """Read the Lease, and note when a change of it was seen."""
        try:
            lease = await self._lock.read()
        except ApiError as error:
            if error.is_missing:
                return None
            raise
        self._observe(lease)
        return lease

    async def _write(self, lease: Lease) -> None:
        """Renew or take the Lease. After a conflict (409), the next attempt reads it first."""
        before = lease.spec.lease_transitions or 0
        transitions = before if self._is_mine(lease) else (before + 1) % MOST_TRANSITIONS
        renewal = self._remembered(self._spec(lease.spec, transitions=transitions))
        written = await self._lock.update(lease, renewal)
        self._observe(written)
        self._become(LeaseRole.ACTIVE)

    def _observe(self, lease: Lease) -> None:
        now = self._clock()
        could_not_look = self.has_missed and now - self._read_at >= self._promised(lease)
        stood_still = now - self._due >= self._promised(lease)
        if lease.spec != self._seen or could_not_look or stood_still:
            self._seen, self._seen_at = lease.spec, now
        self._lease, self._read_at, self.has_missed = lease, now, False

    def _is_mine(self, lease: Lease) -> bool:
        return lease.spec.holder_identity == self._identity

    def _is_namesakes(self, lease: Lease) -> bool:
        """Whether another process has written the Lease under this identity.

        Before this process has a role, the previous run counts as the writer.
        """
        is_own = self.role is LeaseRole.UNKNOWN or lease.spec.renew_time in self._renewals
        return self._is_mine(lease) and not is_own

    def _leave_identity(self) -> None:
        """Leave the old identity and the Lease to the other process."""
        shared, self._identity = self._identity, self._new_identity()
        log.error(
            "lease.identity_shared",
            identity=shared,
            new_identity=self._identity,
            consequence="another process renews the Lease under this identity: this one goes on as a standby",
            next_step="give each director a --state-dir of its own, and copy none from another machine",
        )

    def _is_free(self, lease: Lease) -> bool:
        """Whether nobody holds the Lease, or its holder has not renewed it for the time that it promised."""
        return not lease.spec.holder_identity or self._clock() >= self._expires_at(lease)

    def _expires_at(self, lease: Lease) -> float:
        return self._seen_at + self._promised(lease)

    def _promised(self, lease: Lease) -> float:
        """How many seconds after a renewal the holder keeps the Lease."""
        return max(0, lease.spec.lease_duration_seconds or 0) or self._settings.duration

    def _spec(
        self,
        before: LeaseSpec,
        *,
        holder: str | None = None,
        duration: int | None = None,
        transitions: int | None = None,
    ) -> LeaseSpec:
        now = timestamp(self._now())
        keeps = holder is None and before.holder_identity == self._identity
        return LeaseSpec(
            holder_identity=self._identity if holder is None else holder,
            lease_duration_seconds=duration or self._settings.duration,
            acquire_time=(before.acquire_time if keeps else None) or now,
            renew_time=now,
            lease_transitions=before.lease_transitions if transitions is None else transitions,
        )

    def _remembered(self, renewal: LeaseSpec) -> LeaseSpec:
        self._renewals.append(renewal.renew_time)
        return renewal

    def _become(self, role: LeaseRole, holder: str | None = None) -> None:
        if role is LeaseRole.ACTIVE:
            self._renewed_at = self._clock()
            if self._is_overdue:
                log.info("lease.renewed_again", identity=self._identity)
            self._is_overdue = False
        if role is self.role:
            return
        self.role = role
        lease, holder = str(self._settings), holder or self._identity
        log.info("lease.role", lease=lease, role=role.value, identity=self._identity, holder=holder)
        self._announce(role)

    def _missed(self, reason: str) -> None:
        """Record a failed attempt, and log once that the Lease was not renewed in time (the module's second rule)."""
        self.has_missed = True
        late = self._clock() - self._renewed_at
        if self.role is LeaseRole.ACTIVE and late >= self._settings.renew_deadline and not self._is_overdue:
            self._is_overdue = True
            log.error(
                "lease.not_renewed",
                identity=self._identity,
                seconds=round(late, 1),
                reason=reason,
                lease=str(self._settings),
                consequence="this holder goes on; a standby that reaches the API server takes the Lease as well",
            )
        else:
            log.debug("lease.attempt_failed", reason=reason)
