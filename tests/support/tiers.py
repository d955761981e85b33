"""How much the tests try: KAFKALOG_TIER is check, test (the default) or full.

    check   unit and property tests with few examples, but those marked `slow`, for every change (`make check`)
    test    all kinds of tests, property tests with a fifth of the examples, a sample of the crash matrix (`make test`)
    full    all examples, the whole crash matrix, and the tests marked `full`: soak and browser (`make test-full`)

A tier tries fewer cases than the next one; it asserts the same of each.
"""

from __future__ import annotations

import os
import random
from dataclasses import dataclass
from typing import Final

TIERS: Final = ("check", "test", "full")
TIER: Final = os.environ.get("KAFKALOG_TIER", "test")
if TIER not in TIERS:
    raise ValueError(f"KAFKALOG_TIER={TIER}: expected one of {', '.join(TIERS)}")

_EXAMPLES_DIVISOR: Final = {"check": 10, "test": 5, "full": 1}
_EXAMPLES_MIN: Final = 5
_CRASH_POINTS_SHARE: Final = {"check": 0.02, "test": 0.1, "full": 1.0}

#: The seed of everything that is sampled in this run; KAFKALOG_SEED repeats a run.
SEED: Final = int(os.environ.get("KAFKALOG_SEED") or random.SystemRandom().randrange(1 << 32))


def examples(count: int) -> int:
    """How many of `count` examples of a property test are tried in this tier."""
    return min(count, max(count // _EXAMPLES_DIVISOR[TIER], _EXAMPLES_MIN))


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
