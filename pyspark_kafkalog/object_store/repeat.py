"""The rule for requests that have the same effect when they are sent again: time decides when they are given up.

A request is repeated while the store is busy, out of reach, or answers with something cut off or not its own, until
`Waiting.patience_seconds` have passed; delays double from 50 ms to 5 s. A definite answer ends it at once: a missing
object, an object in the way, a refusal. Only `create` is not repeated here: `create.create_once` looks at the object
after each of its answers.
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, TypeVar

from pyspark_kafkalog.object_store.store import (
    ObjectExistsError,
    ObjectNotFoundError,
    ObjectStoreError,
    StoreCredentialsError,
    StoreRefusedError,
)

#: How often a refusal is believed only after a repetition: services that hand out credentials fail at times.
REFUSALS_REPEATED: Final = 2
_WARNED_ATTEMPT: Final = 6
_FIRST_DELAY_SECONDS: Final = 0.05
_LONGEST_DELAY_SECONDS: Final = 5.0

T = TypeVar("T")

_LOG: Final = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Waiting:
    """How the rules tell the time and wait; tests pass a virtual clock. monotonic gives seconds.

    patience_seconds: how long a request is repeated. A store that fails longer than that is down.
    """

    monotonic: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    rng: Callable[[], float] = random.random
    patience_seconds: float = 120.0


def repeat(call: Callable[[], T], waiting: Waiting) -> T:
    """The result of `call`. Raises the ObjectStoreError of the last request, which says how often it was sent."""
    deadline = waiting.monotonic() + waiting.patience_seconds
    attempts = refusals = 0
    while True:
        attempts += 1
        try:
            return call()
        except StoreCredentialsError:
            refusals += 1
            if refusals > REFUSALS_REPEATED:
                raise
        except (ObjectNotFoundError, ObjectExistsError, StoreRefusedError):
            raise
        except ObjectStoreError as error:
            if waiting.monotonic() >= deadline:
                times = f" (after {attempts} requests in {waiting.patience_seconds:g} s)" if attempts > 1 else ""
                raise type(error)(f"{error}{times}") from None
            if attempts == _WARNED_ATTEMPT:
                _LOG.warning("%s; the request is repeated for up to %g s", error, waiting.patience_seconds)
        waiting.sleep(delay_seconds(attempts, waiting.rng()))


def delay_seconds(attempts: int, jitter: float) -> float:
    """How long to wait after so many attempts; jitter is from 0 to 1."""
    longest = min(_LONGEST_DELAY_SECONDS, _FIRST_DELAY_SECONDS * 2.0 ** min(attempts, 30))
    return longest * (0.5 + jitter / 2)
