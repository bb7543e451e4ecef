"""Histograms: durations counted in buckets."""

import msgspec

from kroute.base.histogram import Histogram

BOUNDS = (0.1, 1.0)


def filled() -> Histogram:
    histogram = Histogram(BOUNDS)
    for seconds in (0.1, 0.2, 1.0, 7.0):
        histogram.observe(seconds)
    return histogram


def test_a_range_includes_its_upper_bound_and_the_last_one_takes_the_rest() -> None:
    assert filled().counts == [1, 2, 1]
    assert filled().cumulative == {0.1: 1, 1.0: 3}
    assert filled().count == 4


def test_what_was_sent_elsewhere_is_the_same_histogram() -> None:
    sent = msgspec.json.decode(msgspec.json.encode(filled()), type=Histogram)
    assert (sent.cumulative, sent.count, sent.sum) == (filled().cumulative, 4, filled().sum)
