"""Quantiles and coarse buckets of request times, made of the data plane's buckets."""

from __future__ import annotations

from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.broker.metrics.requests import COARSE_BOUNDS_S, QUANTILES, coarse, quantiles
from penstock.pyx.net.border import BOUNDS_S, bucket_for

durations = st.lists(st.integers(0, 200_000_000_000), max_size=200)


def counted(times_ns: list[int]) -> array[int]:
    counts = array("q", [0] * (len(BOUNDS_S) + 1))
    for time_ns in times_ns:
        counts[bucket_for(time_ns)] += 1
    return counts


@given(durations)
def test_coarse_buckets_hold_all_and_where_they_belong(times_ns: list[int]) -> None:
    found = coarse(counted(times_ns))
    assert len(found) == len(COARSE_BOUNDS_S) + 1 and sum(found) == len(times_ns)
    so_far = 0
    for bound_s, count in zip(COARSE_BOUNDS_S, found, strict=False):
        so_far += count
        assert so_far == sum(BOUNDS_S[bucket_for(one)] <= bound_s for one in times_ns if bucket_for(one) < len(BOUNDS_S))


@given(durations.filter(bool))
def test_a_quantile_is_the_bound_of_the_bucket_that_has_it(times_ns: list[int]) -> None:
    found = quantiles(counted(times_ns))
    ordered = sorted(times_ns)
    for quantile in QUANTILES:
        exact = next(one for at, one in enumerate(ordered, 1) if at >= quantile * len(ordered))
        assert found[quantile] == BOUNDS_S[min(bucket_for(exact), len(BOUNDS_S) - 1)] * 1000


def test_nothing_counted_has_no_time() -> None:
    assert quantiles(counted([])) == pytest.approx(dict.fromkeys(QUANTILES, 0.0))
