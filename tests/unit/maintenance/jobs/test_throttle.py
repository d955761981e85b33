"""The throttle keeps to its rate and does not wait needlessly."""

from __future__ import annotations

import pytest

from pyspark_kafkalog.maintenance.jobs.tasks import NO_LIMIT, Throttle


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


def test_throttle_sleeps_to_keep_rate() -> None:
    clock = Clock()
    throttle = Throttle(1000.0, clock=clock, sleep=clock.sleep)
    for _ in range(50):
        throttle.take(100)
    assert clock.slept == pytest.approx(5 - 0.3)


def test_throttle_does_not_sleep_for_elapsed_time() -> None:
    clock = Clock()
    throttle = Throttle(1000.0, clock=clock, sleep=clock.sleep)
    for _ in range(50):
        clock.now += 0.2
        throttle.take(100)
    assert clock.slept == 0.0


def test_long_pause_permits_only_a_limited_burst() -> None:
    clock = Clock()
    throttle = Throttle(1000.0, clock=clock, sleep=clock.sleep)
    clock.now += 1000
    throttle.take(1300)
    assert clock.slept == pytest.approx(1.0)


def test_unlimited_throttle_never_sleeps() -> None:
    clock = Clock()
    Throttle(NO_LIMIT, clock=clock, sleep=clock.sleep).take(1 << 60)
    assert clock.slept == 0.0


def test_zero_rate_is_rejected() -> None:
    with pytest.raises(ValueError, match="expected a rate above 0"):
        Throttle(0)
