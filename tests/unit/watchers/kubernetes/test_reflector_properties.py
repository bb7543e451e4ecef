"""After any failures and changes the follower has the server's objects, and never lost one in between."""

import asyncio
import tempfile
from collections.abc import Sequence
from pathlib import Path
from unittest.mock import patch

from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from kroute.model.objects import Change, Deleted
from tests.apiserver import ApiServer, Features
from tests.examples import examples
from tests.unit.watching import Follower, Pauses, eventually, quick, reflecting, service

LASTING = ("always-a", "always-b")
NAMES = ("one", "two", "three")

changes = st.one_of(
    st.tuples(st.just("apply"), st.sampled_from(LASTING + NAMES)),
    st.tuples(st.just("delete"), st.sampled_from(NAMES)),
    st.tuples(st.just("exclude"), st.sampled_from(NAMES)),
)
incidents = st.one_of(
    st.tuples(st.just("end watches"), st.none()),
    st.tuples(st.just("compact"), st.none()),
    st.tuples(
        st.just("fault"),
        st.fixed_dictionaries(
            {
                "kind": st.sampled_from(["answer", "drop", "delay", "truncate", "cut", "stall", "expire"]),
                "where": st.sampled_from(["any", "list", "watch"]),
                "after": st.integers(0, 3),
                "times": st.integers(1, 3),
                "status": st.sampled_from([400, 410, 429, 500, 503, 504]),
                "seconds": st.just(1.0),
            }
        ),
    ),
    st.tuples(st.just("let it run"), st.integers(1, 10)),
)


class Witness(Follower):
    """A follower that notices at once when an object is lost."""

    def __call__(self, changes: Sequence[Change]) -> None:
        for change in changes:
            assert not (isinstance(change, Deleted) and change.key.name in LASTING), change
        super().__call__(changes)  # fails on the deletion of an object that never existed


async def carry_out(server: ApiServer, step: tuple[str, object]) -> None:
    match step:
        case "apply", str(name):
            server.apply(service(name))
        case "exclude", str(name):
            server.apply(service(name, clusterIP="None"))
        case "delete", str(name):
            if any(item["metadata"]["name"] == name for item in server.objects("Service")):
                server.delete("Service", name, "default")
        case "end watches", None:
            server.end_watches()
        case "compact", None:
            server.compact()
        case "fault", dict(how):
            server.faults.add(**how)
        case "let it run", int(milliseconds):
            await asyncio.sleep(milliseconds / 1000)


async def follow(features: Features, steps: list[tuple[str, object]], directory: Path) -> None:
    witness = Witness()
    timing = quick(Pauses(), stall_timeout=0.05, list_stall_timeout=0.05)
    async with ApiServer(features=features, second=0.001) as server:
        for name in LASTING:
            server.apply(service(name))
        async with reflecting(server, directory, witness, timing):
            for step in steps:
                await carry_out(server, step)
            server.faults.clear()
            server.apply(service("last"))

            def converged() -> bool:
                there = {
                    (item["metadata"]["name"], item["metadata"]["resourceVersion"])
                    for item in server.objects("Service")
                    if item["spec"]["clusterIP"] != "None"
                }
                return there == {
                    (item.metadata.name, item.metadata.resource_version) for item in witness.items.values()
                }

            await eventually(converged)
            await witness.until_listed()
    assert len(witness.listed) == 1


@examples(50, suppress_health_check=[HealthCheck.too_slow])
@given(
    features=st.builds(
        Features, streaming_lists=st.booleans(), watch_cache=st.booleans(), service_fields=st.booleans()
    ),
    steps=st.lists(st.one_of(changes, incidents), max_size=25),
)
def test_the_follower_converges_and_loses_nothing_that_lasts(
    features: Features, steps: list[tuple[str, object]]
) -> None:
    with tempfile.TemporaryDirectory() as directory, patch("kroute.watchers.kubernetes.api.READ_TIMEOUT", 0.05):
        asyncio.run(follow(features, steps, Path(directory)))
