"""The metrics' text is what Prometheus reads: its own parser checks it."""

import asyncio

from prometheus_client.parser import text_string_to_metric_families

from kroute.base.histogram import Histogram
from kroute.telemetry.metrics.exposition import LINES_A_SLICE, Metric, Samples, write


async def written(*families: tuple[Metric, Samples]) -> str:
    return b"".join([part async for part in write(families)]).decode()


async def read(*families: tuple[Metric, Samples]) -> dict[str, list[tuple[dict[str, str], float]]]:
    parsed = text_string_to_metric_families(await written(*families))
    return {
        sample.name: [(it.labels, it.value) for it in family.samples if it.name == sample.name]
        for family in parsed
        for sample in family.samples
    }


async def test_counters_and_gauges_with_and_without_labels() -> None:
    jobs = Metric("jobs_total", "counter", "Jobs.", ("state",))
    heat = Metric("heat", "gauge", "How hot it is.")
    assert await read((jobs, [(("done",), 3), (("new",), 0)]), (heat, [((), 36.6)])) == {
        "jobs_total": [({"state": "done"}, 3), ({"state": "new"}, 0)],
        "heat": [({}, 36.6)],
    }


async def test_any_text_may_be_a_label() -> None:
    text = 'quote " backslash \\ newline \n brace } and ü'
    assert await read((Metric("odd", "gauge", 'Help with "\\" and\na line.', ("text",)), [((text,), 1)])) == {
        "odd": [({"text": text}, 1)]
    }


async def test_a_histogram_has_cumulative_buckets_count_and_sum() -> None:
    durations = Histogram((0.25, 1.0, 4.0))
    for seconds in (0.1, 0.25, 0.5, 3.0, 100.0):
        durations.observe(seconds)
    found = await read((Metric("wait_seconds", "histogram", "Waits."), [((), durations)]))
    assert found == {
        "wait_seconds_bucket": [({"le": "0.25"}, 2), ({"le": "1"}, 3), ({"le": "4"}, 4), ({"le": "+Inf"}, 5)],
        "wait_seconds_sum": [({}, 103.85)],
        "wait_seconds_count": [({}, 5)],
    }


async def test_a_family_without_series_is_left_out() -> None:
    assert await written((Metric("nothing", "gauge", "Nothing."), [])) == ""


async def test_numbers_keep_their_value() -> None:
    values = [0, 1, 2**63, 1e-9, 0.1 + 0.2, 1_700_000_000.123456, True]
    series = [((str(index),), value) for index, value in enumerate(values)]
    found = await read((Metric("number", "gauge", "Numbers.", ("index",)), series))
    assert [value for _, value in found["number"]] == [float(value) for value in values]


async def test_other_tasks_run_while_much_is_written() -> None:
    turns = 0

    async def take_turns() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    other = asyncio.create_task(take_turns())
    series = [((str(index),), index) for index in range(10 * LINES_A_SLICE)]
    text = await written((Metric("many", "gauge", "Many.", ("index",)), series))
    other.cancel()
    assert len(text.splitlines()) == 2 + len(series)
    assert turns >= 9
