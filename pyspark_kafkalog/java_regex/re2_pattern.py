"""Regular expressions that clients send to a server, matched in linear time by RE2.

Kafka's brokers match them by RE2J, which has RE2's syntax: subscriptions of the consumer protocol (KIP-848) and
patterns of transactional ids (KIP-1152). An engine that goes back and tries again, as Python's `re` and
java.util.regex do, would let one expression of a client stop the server. RE2 does not, and lets other threads run
meanwhile. What an expression may take is bounded: its length, and the memory of its automaton; the package's own cache
keeps at most 128 of them.

The package google-re2 is part of the extra `server`. Without it every expression is refused.

Source of the rule: org.apache.kafka.coordinator.group.Utils, kafka.coordinator.transaction.TransactionStateManager.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from typing import Final

from pyspark_kafkalog.errors import missing_package
from pyspark_kafkalog.units import MIB

#: A record of a subscription cannot hold a longer expression.
_CHARS_MAX: Final = 32_767
_AUTOMATON_BYTES_MAX: Final = MIB
_MISSING: Final = str(missing_package("re2", "regular expressions of clients need"))


def why_no_re2_patterns() -> str | None:
    """Why every expression is refused; None if RE2 is installed."""
    return _MISSING if importlib.util.find_spec("re2") is None else None


def compile_re2_pattern(text: str) -> Callable[[str], bool]:
    """Whether a name as a whole matches `text`. Raises ValueError if it is invalid, too large, or RE2 is missing."""
    if len(text) > _CHARS_MAX:
        raise ValueError(
            f"a regular expression of {len(text)} characters is too long: at most {_CHARS_MAX} are allowed"
        )
    try:
        import re2
    except ModuleNotFoundError:
        raise ValueError(_MISSING) from None
    options = re2.Options()
    options.max_mem = _AUTOMATON_BYTES_MAX
    options.never_capture = True
    options.log_errors = False
    try:
        compiled = re2.compile(text, options)
    except re2.error as error:
        reason = error.args[0] if error.args else ""
        reason = reason.decode(errors="replace") if isinstance(reason, bytes) else reason
        raise ValueError(f"the regular expression {text[:100]!r} is invalid: {reason}") from None
    return lambda name: compiled.fullmatch(name) is not None
