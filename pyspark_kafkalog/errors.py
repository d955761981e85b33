"""The errors a user meets, few kinds, told apart by what the user would do about them.

All descend from `KafkalogError`, and each from the built-in that fits, so `except ValueError` works too.
An error about bytes on disk says which file, at which position, what was expected, what was found and what to do.
"""

from __future__ import annotations


class KafkalogError(Exception):
    """Root of every error raised on purpose by this package."""


def _rebuild(cls: type[DiskFormatError], fields: dict[str, object]) -> DiskFormatError:
    return cls(**fields)  # type: ignore[arg-type]


class DiskFormatError(KafkalogError, ValueError):
    """Bytes on disk are not what the format allows. Carries file, position, expected, found, advice."""

    default_advice = "run kafkalog dump-log on the file to look at it"

    def __init__(
        self,
        *,
        file: str,
        position: int,
        expected: str,
        found: str,
        advice: str | None = None,
    ) -> None:
        self.file = file
        self.position = position
        self.expected = expected
        self.found = found
        self.advice = advice if advice is not None else self.default_advice
        super().__init__(f"{file} at byte {position}: expected {expected}, found {found}; {self.advice}")

    def __reduce__(self) -> tuple[object, ...]:
        # Keyword-only arguments do not survive Exception's own pickling, and Spark pickles what tasks raise.
        fields = {
            "file": self.file,
            "position": self.position,
            "expected": self.expected,
            "found": self.found,
            "advice": self.advice,
        }
        return _rebuild, (type(self), fields)


class CorruptRecordError(DiskFormatError):
    """A record batch or a record in it is damaged (Kafka: CorruptRecordException, InvalidRecordException)."""


class CorruptIndexError(DiskFormatError):
    """An index, producer snapshot or checkpoint file is damaged; these can be rebuilt from the log."""

    default_advice = "delete the file: it is rebuilt from the .log file"


class UnsupportedFormatError(DiskFormatError):
    """The bytes are of a format version that this package does not read (record magic 0 and 1, newer files)."""

    default_advice = "have a Kafka broker of version 0.11 or later rewrite the topic with record format v2"


class InvalidRecordError(KafkalogError, ValueError):
    """Records handed in for writing break a rule (Kafka: InvalidRecordException, RecordTooLargeException)."""


class OffsetOutOfRangeError(KafkalogError, LookupError):
    """The offset asked for lies outside [log start, end] of the partition."""


class UnknownTopicError(KafkalogError, LookupError):
    """No such topic or partition in this log directory."""


class TopicExistsError(KafkalogError, FileExistsError):
    """A topic of that name is there already."""


class InvalidTopicError(KafkalogError, ValueError):
    """A topic name that Kafka does not allow."""


class UnknownGroupError(KafkalogError, LookupError):
    """No such consumer group in this log directory (Kafka: GroupIdNotFoundException)."""


class InvalidGroupError(KafkalogError, ValueError):
    """A group's name, or an offset for a group, that Kafka does not allow."""


class InvalidConfigError(KafkalogError, ValueError):
    """A configuration name or value that Kafka does not allow."""


class PolicyViolationError(KafkalogError, PermissionError):
    """The topic's configuration does not allow it (Kafka: PolicyViolationException)."""


class InvalidOptionError(KafkalogError, ValueError):
    """An option of the data source is unknown, misspelt or has a bad value."""


class DataLossError(KafkalogError, RuntimeError):
    """Records of the range asked for are gone, and failOnDataLoss is true."""


class ProducerFencedError(KafkalogError, PermissionError):
    """A producer with the same id and a newer epoch has written (Kafka: InvalidProducerEpochException)."""


class OutOfOrderSequenceError(KafkalogError, ValueError):
    """An idempotent producer's sequence number does not follow its last one."""


class CommitConflictError(KafkalogError, RuntimeError):
    """Another writer published first; refresh and try again."""


class CommitStateUnknownError(KafkalogError, RuntimeError):
    """The publish call failed in a way that leaves open whether the commit is there."""


class InvalidAclError(KafkalogError, ValueError):
    """An access control entry, or a principal, that Kafka does not allow."""


class AuthorizationError(KafkalogError, PermissionError):
    """The principal may not do that (Kafka: TopicAuthorizationException, GroupAuthorizationException, ...)."""


class ReadOnlyLogDirError(KafkalogError, PermissionError):
    """A log directory of a Kafka broker (a foreign root) is read-only here."""


class LogDirError(KafkalogError, OSError):
    """The path is not a log directory, or cannot be opened."""


class MissingPackageError(KafkalogError, ImportError):
    """An optional package is asked for that is not installed."""
