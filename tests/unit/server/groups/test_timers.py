"""Timers run in the order of their times, once, and the newest of a key counts."""

from __future__ import annotations

from pyspark_kafkalog.server.groups.coordinator import Timers


def test_due_timers_run_in_order_and_replaced_or_cancelled_ones_do_not() -> None:
    now_ms, ran, woken = [0], [], []
    timers = Timers(lambda: now_ms[0], on_earlier=lambda: woken.append(now_ms[0]))
    for key, delay_ms in (("b", 20), ("a", 10), ("c", 30), ("b", 40)):
        timers.schedule(key, delay_ms, lambda key=key: ran.append(key))  # type: ignore[misc]
    timers.cancel("c")
    assert (timers.next_due_ms(), len(woken)) == (10, 2)
    now_ms[0] = 35
    timers.run_due()
    assert (ran, timers.next_due_ms()) == (["a"], 40)
    now_ms[0] = 40
    timers.run_due()
    assert (ran, timers.next_due_ms(), len(timers)) == (["a", "b"], None, 0)


def test_rescheduled_timers_do_not_pile_up() -> None:
    timers = Timers(lambda: 0)
    for _ in range(10_000):
        timers.schedule("member", 1000, lambda: None)
    assert len(timers._heap) < 2000
