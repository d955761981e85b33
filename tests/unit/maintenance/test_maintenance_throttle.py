"""The throttle lets more through than its rate, or waits for nothing."""

from __future__ import annotations

import pytest

from pyspark_kafkalog.maintenance.throttle import NO_LIMIT, Throttle


class Clock:
    """Time that passes only by sleeping, or by hand."""

    def __init__(self) -> None:
        self.now = 100.0
        self.slept = 0.0

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        self.slept += seconds


def test_more_goes_through_than_the_rate_allows() -> None:
    clock = Clock()
    throttle = Throttle(1000.0, clock=clock, sleep=clock.sleep)
    for _ in range(50):
        throttle.take(100)
    assert clock.slept == pytest.approx(5 - 0.3)


def test_time_that_passes_by_itself_is_waited_for_again() -> None:
    clock = Clock()
    throttle = Throttle(1000.0, clock=clock, sleep=clock.sleep)
    for _ in range(50):
        clock.now += 0.2
        throttle.take(100)
    assert clock.slept == 0.0


def test_a_long_rest_lets_a_flood_through() -> None:
    clock = Clock()
    throttle = Throttle(1000.0, clock=clock, sleep=clock.sleep)
    clock.now += 1000
    throttle.take(1300)
    assert clock.slept == pytest.approx(1.0)


def test_no_limit_waits() -> None:
    clock = Clock()
    Throttle(NO_LIMIT, clock=clock, sleep=clock.sleep).take(1 << 60)
    assert clock.slept == 0.0


def test_a_rate_of_nothing_is_taken() -> None:
    with pytest.raises(ValueError, match="would never end"):
        Throttle(0)
