"""The initial sync alone: read every object once, for commands that do not watch."""

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Sequence
from pathlib import Path

from kroute.model.kinds import InitialSync, WatchedKind, of_services
from kroute.model.node_facts import NO_API, ApiFacts
from kroute.model.objects import Applied, Change, Listed, Node
from kroute.settings import Settings
from kroute.watchers import Sink
from kroute.watchers.kubernetes.errors import ApiError, ConfigurationError
from kroute.watchers.manifests import ManifestWatcher

PATIENCE = 60.0
"""Seconds that the initial sync may take. In a large cluster it takes a few."""


class InitialSyncError(Exception):
    """The source cannot be read completely. The message is one line."""


async def initial_sync(settings: Settings) -> list[Change]:
    """Every object that Services need, from the source that the settings name, as changes. Raises as `read_all`."""
    changes: list[Change] = []
    await read_all(settings, of_services(settings), changes.extend)
    return changes


async def read_all(settings: Settings, kinds: Iterable[WatchedKind], sink: Sink) -> None:
    """Pass on every object of these kinds from the source that the settings name.

    Raises:
        InitialSyncError: the source cannot be read.
    """
    try:
        if settings.manifests is not None:
            await _from_manifests(settings.manifests, kinds, sink)
        else:
            await _from_api(settings, kinds, sink)
    except* (ConfigurationError, ApiError) as group:
        raise InitialSyncError(str(group.exceptions[0])) from None


async def api_facts(settings: Settings) -> ApiFacts:
    """What the way to the API says now; nothing with manifests. Raises as `initial_sync` does."""
    if settings.manifests is not None:
        return NO_API
    from kroute.watchers.kubernetes.api_facts import read_api_facts  # noqa: PLC0415

    try:
        return await read_api_facts(settings)
    except ConfigurationError as error:
        raise InitialSyncError(str(error)) from None


async def node_object(settings: Settings) -> Node | None:
    """This node's Node object, or None. Raises as `initial_sync` does."""
    nodes = [
        change.item
        for change in await initial_sync(settings)
        if isinstance(change, Applied) and isinstance(change.item, Node)
    ]
    return next((node for node in nodes if node.key.name == settings.node_name), None)


async def _from_manifests(directory: Path, kinds: Iterable[WatchedKind], sink: Sink) -> None:
    """Every object of the files. An agent goes on with what it read last; here nothing was read before."""
    watchers: list[ManifestWatcher] = []

    def follow(take: Sink) -> Coroutine[None, None, None]:
        watchers.append(ManifestWatcher(directory, take, kinds))
        return watchers[0].run()

    await _collect(follow, kinds, sink)
    for name, why in watchers[0].unreadable.items():
        raise ConfigurationError(f"{directory / name} cannot be read: {why}")


async def _from_api(settings: Settings, kinds: Iterable[WatchedKind], sink: Sink) -> None:
    from kroute.watchers.kubernetes.api import Api  # noqa: PLC0415  0.015 s and 0.9 MiB, not for manifests
    from kroute.watchers.kubernetes.watcher import KubernetesWatcher  # noqa: PLC0415

    async with await Api.open(settings) as api:
        await api.server_time()  # fails at once if there is no server; a reflector would wait for one
        await _collect(lambda take: KubernetesWatcher(api, take, kinds=kinds).run(), kinds, sink)


async def _collect(
    follow: Callable[[Sink], Coroutine[None, None, None]], kinds: Iterable[WatchedKind], sink: Sink
) -> None:
    """Follow until each kind has been listed."""
    sync = InitialSync(kinds)
    complete = asyncio.Event()

    def take(some: Sequence[Change]) -> None:
        sink(some)
        for change in some:
            if isinstance(change, Listed):
                sync.listed(change.kind)
        if sync.is_complete:
            complete.set()

    async with asyncio.TaskGroup() as group:
        following = group.create_task(follow(take))
        try:
            async with asyncio.timeout(PATIENCE):
                await complete.wait()
        except TimeoutError:
            problem = f"no initial sync of {', '.join(sync.missing)} after {PATIENCE:.0f} s; see `kroute check`"
            raise ConfigurationError(problem) from None
        finally:
            following.cancel()
