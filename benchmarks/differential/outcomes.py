"""The outcome of a case in a form that can be compared between both sides: rows by partition, or a failure."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from pyspark.sql import DataFrame

Row = tuple[Any, ...]

#: Kinds of errors, by patterns of the texts and classes of both sides; the first match counts.
_KINDS: Final = (
    ("data loss", r"DataLossError|data may have been lost|OffsetOutOfRange"),
    ("partition", r"Partition -?\d+ of topic|a record has partition -?\d+|Invalid partition"),
    ("topic", r"UnknownTopicError|UnknownTopicOrPartition|InvalidTopicException|topic name '.*' is invalid"),
    ("columns", r"attribute unsupported type|Required attribute|topic option required"),
    ("record", r"InvalidRecordError|RecordTooLarge|RecordBatchTooLarge|a null topic|NullPointerException"),
    ("option", r"InvalidOptionError|IllegalArgument|NumberFormat|ConfigException|KafkaIllegalState|AnalysisException"),
    ("option", r"AssertionError|assertion failed|NoSuchElement"),
)


@dataclass(frozen=True, slots=True)
class Failure:
    """An error. `stage`: load (before the query runs) or query; `kind`: one of _KINDS; `text`: for people."""

    stage: str
    kind: str
    text: str


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of one side; after a failed write, `value` is the content that is readable nevertheless."""

    value: Any = None
    failure: Failure | None = None

    def difference(self, other: Outcome) -> str | None:
        """A description of how kafkalog's `other` differs from the Kafka source's `self`; None if it does not.

        The stages of errors are compared by `is_earlier_than`.
        """
        if self.failure and other.failure:
            if self.failure.kind != other.failure.kind:
                return f"kafka fails with {self.failure}, kafkalog with {other.failure}"
            if self.value != other.value:
                return f"both fail, kafka leaves {brief(self.value)}, kafkalog {brief(other.value)}"
            return None
        if self.failure:
            return f"kafka fails with {self.failure}, kafkalog gives {brief(other.value)}"
        if other.failure:
            return f"kafka gives {brief(self.value)}, kafkalog fails with {other.failure}"
        if self.value != other.value:
            kafka, kafkalog = brief(self.value), brief(other.value)
            if kafka == kafkalog:
                return _first_difference(self.value, other.value)
            return f"kafka gives {kafka}, kafkalog {kafkalog}"
        return None

    def is_earlier_than(self, other: Outcome) -> bool:
        """Whether `self` failed before `other` did."""
        return bool(self.failure and other.failure and self.failure.stage == "load" and other.failure.stage != "load")


def observe(load: Callable[[], DataFrame], query: Callable[[DataFrame], Any]) -> Outcome:
    """Load, then query; what either raises is the outcome."""
    stage = "load"
    try:
        loaded = load()
        stage = "query"
        return Outcome(query(loaded))
    except Exception as error:
        return Outcome(failure=failure_of(error, stage))


#: The machine was too busy to start a Python process in time, which is no property of either source.
_NOT_IN_TIME: Final = r"failed to connect back|CANNOT_OPEN_SOCKET"


def was_not_in_time(outcome: Outcome) -> bool:
    """Whether the case is to be tried again."""
    return outcome.failure is not None and bool(re.search(_NOT_IN_TIME, outcome.failure.text))


def failure_of(error: BaseException, stage: str) -> Failure:
    whole = f"{type(error).__name__}: {error}"
    java = getattr(error, "java_exception", None) or getattr(error, "_origin", None)
    while java is not None:
        whole += f"\nCaused by: {java.toString()}"
        java = java.getCause()
    kind = next((kind for kind, pattern in _KINDS if re.search(pattern, whole)), "other")
    return Failure(stage, kind, _telling_line(whole))


def _telling_line(text: str) -> str:
    """The line of an error that says most: one of this package, or the last cause."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    telling = [line for line in lines if re.match(r"(Caused by: )?[\w.$]+(Error|Exception)\b.*:", line)]
    ours = [line for line in telling if line.startswith("pyspark_kafkalog.")]
    return (ours or telling or lines)[-1][:300]


def rows_by_partition(rows: list[Any]) -> Mapping[tuple[str, int], list[Row]]:
    """Rows of any columns, topic and partition among them, in the order in which they came, by partition."""
    found: dict[tuple[str, int], list[Row]] = {}
    for row in rows:
        plain = tuple(_plain(value) for value in row)
        found.setdefault((row["topic"], row["partition"]), []).append(plain)
    return dict(sorted(found.items()))


def _plain(value: Any) -> Any:
    if isinstance(value, bytearray):
        return bytes(value)
    if isinstance(value, list):
        return [tuple(_plain(part) for part in each) for each in value]
    return value


def brief(value: Any) -> str:
    """A value for people: of rows by partition how many there are."""
    return _counted(value)[:600]


def _counted(value: Any) -> str:
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{_named(key)}: {_counted(found)}' for key, found in value.items())}}}"
    if isinstance(value, list) and value and isinstance(value[0], tuple):
        return f"{len(value)} rows"
    if isinstance(value, list):
        return f"[{', '.join(map(_counted, value))}]"
    return repr(value)


def _named(key: Any) -> str:
    return f"{key[0]}-{key[1]}" if isinstance(key, tuple) else str(key)


def _first_difference(one: Any, other: Any, where: str = "") -> str:
    """The position and the kind of the difference between two values with the same counts."""
    if isinstance(one, Mapping) and isinstance(other, Mapping) and one.keys() == other.keys():
        return next(
            (
                _first_difference(one[key], other[key], f"{where} {_named(key)}")
                for key in one
                if one[key] != other[key]
            ),
            "",
        )
    if isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        pairs = enumerate(zip(one, other, strict=True))
        return next((_first_difference(*pair, f"{where} [{at}]") for at, pair in pairs if pair[0] != pair[1]), "")
    return f"at{where}: kafka {repr(one)[:300]}, kafkalog {repr(other)[:300]}"
