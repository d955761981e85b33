"""How much the tests try: KAFKALOG_TIER is check, test (the default) or full.

    tier                            check        test           full
    command                         make check   make test      make test-full
    tests                           unit,        all kinds      all kinds
                                    property
    tests marked `slow`             no           yes            yes
    tests marked `full`             no           no             yes
    cases of a test, by parameters  a third,     six at most    all
                                    at most six
    examples of a property          5 %          10 %           all
    calls of the crash matrix       2 %          5 %            all

A tier tries fewer cases than the next one; it asserts the same of each. What is sampled is drawn by a seed, which the
run prints: KAFKALOG_SEED repeats it. A run that names a module, or tests of it, runs them with all cases in every tier,
also those marked `slow` and `full`. All cases are tried of tests whose cases belong together (`all_cases`), too.

`slow` takes about a second or more of a processor. `full` are soak, browser, and whatever repeats at the price of
seconds what another test has shown. In `test`, each feature has one test with Spark, on roots of files. Brokers take
part where a broker reads what this package wrote, reads its export, serves its groups, and writes what it reads; what
maintenance leaves is shown to Kafka's tools. Further codecs, settings, kinds of roots and sessions, kills and races
are `full` (`rest_full` marks the further values of a parameter).
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

import pytest

TIERS: Final = ("check", "test", "full")
TIER: Final = os.environ.get("KAFKALOG_TIER", "test")
if TIER not in TIERS:
    raise ValueError(f"KAFKALOG_TIER={TIER}: expected one of {', '.join(TIERS)}")

_EXAMPLES_DIVISOR: Final = {"check": 20, "test": 10, "full": 1}
_EXAMPLES_MIN: Final = {"check": 2, "test": 5, "full": 1}
_CRASH_POINTS_SHARE: Final = {"check": 0.02, "test": 0.05, "full": 1.0}
_CASES_DIVISOR: Final = {"check": 3, "test": 1, "full": 1}
_CASES_MAX: Final = {"check": 6, "test": 6, "full": None}

#: The seed of everything that is sampled in this run; KAFKALOG_SEED repeats a run.
SEED: Final = int(os.environ.get("KAFKALOG_SEED") or random.SystemRandom().randrange(1 << 32))
os.environ["KAFKALOG_SEED"] = str(SEED)  # the processes of a run must draw the same


def examples(count: int) -> int:
    """How many of `count` examples of a property test are tried in this tier."""
    return min(count, max(count // _EXAMPLES_DIVISOR[TIER], _EXAMPLES_MIN[TIER]))


def chosen_cases(test: str, count: int) -> frozenset[int]:
    """Which of the `count` sets of parameters of `test`, from 0 on, are tried in this tier."""
    kept = -(-count // _CASES_DIVISOR[TIER])
    if (most := _CASES_MAX[TIER]) is not None:
        kept = min(kept, most)
    return frozenset(random.Random(f"{SEED} {test}").sample(range(count), kept))


def rest_full(values: Iterable[Any], kept: int = 1) -> list[Any]:
    """Parameters of a test: the first `kept` of `values` in every tier, the variants after them in the full tier alone.

    A tuple is one set of parameters.
    """
    parameters: list[Any] = []
    for number, each in enumerate(values):
        of_test = each if isinstance(each, tuple) else (each,)
        parameters.append(each if number < kept else pytest.param(*of_test, marks=pytest.mark.full))
    return parameters


@dataclass(frozen=True, slots=True)
class Sample:
    """Which calls of a scenario are tried: all of them in the full tier, else a sample by the run's seed."""

    share: float
    seed: int

    @classmethod
    def of_tier(cls) -> Sample:
        return cls(_CRASH_POINTS_SHARE[TIER], SEED)

    def calls(self, scenario: str, count: int) -> list[int]:
        """The numbers, from 1 on, of the calls to try of `count`; the first and the last one are among them."""
        drawn = random.Random(f"{self.seed} {scenario}")
        return [at for at in range(1, count + 1) if drawn.random() < self.share or at in (1, count)]
