"""The package's exceptions, one class for each remedy.

All descend from `KafkalogError`, and most also from a matching built-in exception, so that `except ValueError` works.
An error about bytes on disk states the file, the position, what was expected, what was found, and a remedy.
"""

from __future__ import annotations

import functools
import inspect
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final, TypeVar


class KafkalogError(Exception):
    """Base class of all errors that this package raises deliberately."""


_T = TypeVar("_T")
_E = TypeVar("_E", bound=BaseException)


def without_frames(error: _E) -> _E:
    """The error without its traceback and its causes, to be kept or handed over.

    Their frames hold what the code has worked on, such as the content of a batch. With the error in one of them, only
    the garbage collector would free it.
    """
    error.__cause__ = error.__context__ = None
    return error.with_traceback(None)


#: Spark's variable for spark.sql.execution.pyspark.udf.hideTraceback.enabled. A worker reads it when a call has failed.
_HIDE_TRACEBACK: Final = "SPARK_HIDE_TRACEBACK"


def called_by_spark(cls: type[_T]) -> type[_T]:
    """Decorate a class whose public methods Spark's Python workers call: expected errors come without a traceback.

    A worker formats the error and its traceback as the message that the user gets, and ends. Errors of this package and
    of the operating system say what is wrong; the frames would bury that sentence. Other errors are faults of the
    program and keep their traceback.
    """
    for name, method in list(vars(cls).items()):
        if inspect.isfunction(method) and (name == "__init__" or not name.startswith("_")):
            setattr(cls, name, _without_traceback(method))
    return cls


def _without_traceback(method: Callable[..., Any]) -> Callable[..., Any]:
    if inspect.isgeneratorfunction(method):

        @functools.wraps(method)
        def generate(*args: Any, **kwargs: Any) -> Iterator[Any]:
            with _traceback_hidden():
                yield from method(*args, **kwargs)

        return generate

    @functools.wraps(method)
    def call(*args: Any, **kwargs: Any) -> Any:
        with _traceback_hidden():
            return method(*args, **kwargs)

    return call


@contextmanager
def _traceback_hidden() -> Iterator[None]:
    try:
        yield
    except (KafkalogError, OSError):
        if _is_spark_worker():
            os.environ[_HIDE_TRACEBACK] = "1"
        raise


def _is_spark_worker() -> bool:
    """Whether this process is one that Spark started to plan or to run tasks, and not a user's driver."""
    name: str = getattr(sys.modules["__main__"].__spec__, "name", "")
    return name.startswith("pyspark.")


def _rebuild(cls: type[DiskFormatError], fields: dict[str, object]) -> DiskFormatError:
    return cls(**fields)  # type: ignore[arg-type]


class DiskFormatError(KafkalogError, ValueError):
    """Bytes on disk violate the format. Attributes: file, position (in bytes), expected, found, advice."""

    default_advice = "kafkalog verify shows how much is damaged, and what to do"

    def __init__(self, *, file: str, position: int, expected: str, found: str, advice: str | None = None) -> None:
        self.file = file
        self.position = position
        self.expected = expected
        self.found = found
        self.advice = advice if advice is not None else self.default_advice
        super().__init__(f"{file} at byte {position}: expected {expected}, found {found}; {self.advice}")

    def __reduce__(self) -> tuple[object, ...]:
        # Exception's own pickling loses keyword-only arguments, and Spark pickles the exceptions of tasks.
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

    default_advice = (
        "on a root of this package run kafkalog reindex, which rebuilds the file from the .log file; in a broker's "
        "directory move the segment's .index file away: a broker that starts, and kafkalog adopt, rebuild all of them"
    )


def checked_count(
    count: int, most: int, *, what: str, file: str, position: int, kind: type[DiskFormatError] = CorruptRecordError
) -> int:
    """`count` as read from byte `position` of `file`, once it is known to be at most `most`, for which there is room.

    For whatever is built or read in the size of a number that the input states: the memory that this takes is then
    bounded by the input's own length. Raises an error of `kind` for more, and for a negative count.
    """
    if not 0 <= count <= most:
        raise kind(file=file, position=position, expected=f"at most {most} {what}", found=f"{count}")
    return count


class UnsupportedFormatError(DiskFormatError):
    """The bytes have a format version that this package does not read (record magic 0 and 1, newer files)."""

    default_advice = (
        "read the topic with a Kafka client or from the broker's directory, which converts the messages, and write the "
        "records into a topic of a new root"
    )


class UnsupportedApiError(KafkalogError, LookupError):
    """A request is of an API or a version of it that this package does not have (Kafka: InvalidRequestException)."""


class NetworkError(KafkalogError, ConnectionError):
    """A server cannot be reached, closed the connection, or did not answer in time (Kafka: NetworkException)."""


class LeaderUnavailableError(NetworkError):
    """The leader that a root follows does not answer, or answers with an error; trying again later may help."""


class InvalidRecordError(KafkalogError, ValueError):
    """Records to be written violate a rule (Kafka: InvalidRecordException).

    `record_errors` names the refused records, if single records were refused: the index of each in the append, and why.
    """

    def __init__(self, message: str, record_errors: tuple[tuple[int, str], ...] = ()) -> None:
        super().__init__(message, record_errors) if record_errors else super().__init__(message)
        self.record_errors = record_errors

    def __str__(self) -> str:
        return str(self.args[0])


class RecordTooLargeError(InvalidRecordError):
    """A record batch is larger than max.message.bytes (Kafka: RecordTooLargeException)."""


class RecordBatchTooLargeError(InvalidRecordError):
    """A record batch is larger than segment.bytes (Kafka: RecordBatchTooLargeException)."""


class InvalidTimestampError(InvalidRecordError):
    """A record's timestamp is out of the range that the topic accepts (Kafka: InvalidTimestampException)."""


class UnsupportedCompressionError(InvalidRecordError):
    """A record batch has a codec that Kafka does not have (Kafka: UnsupportedCompressionTypeException)."""


class InvalidTransactionStateError(InvalidRecordError):
    """A batch does not fit the state of its producer's transaction (Kafka: InvalidTxnStateException)."""


class OffsetOutOfRangeError(KafkalogError, LookupError):
    """The requested offset is outside of the partition's range [log start offset, end]."""


class UnknownTopicError(KafkalogError, LookupError):
    """The topic or partition does not exist in this log directory."""


class TopicExistsError(KafkalogError, FileExistsError):
    """A topic of that name already exists."""


class InvalidTopicError(KafkalogError, ValueError):
    """A topic name that Kafka does not allow."""


class InvalidPartitionsError(InvalidTopicError):
    """A number of partitions that Kafka does not allow (Kafka: InvalidPartitionsException)."""


class UnknownGroupError(KafkalogError, LookupError):
    """The consumer group does not exist in this log directory (Kafka: GroupIdNotFoundException)."""


class InvalidGroupError(KafkalogError, ValueError):
    """A group's name, or an offset for a group, that Kafka does not allow."""


class InvalidConfigError(KafkalogError, ValueError):
    """A configuration name or value that Kafka does not allow."""


class TopicDeletionDisabledError(InvalidConfigError):
    """Topics cannot be deleted: delete.topic.enable is false (Kafka: TopicDeletionDisabledException)."""


class PolicyViolationError(KafkalogError, PermissionError):
    """The topic's configuration does not allow the operation (Kafka: PolicyViolationException)."""


class InvalidOptionError(KafkalogError, ValueError):
    """An option of the data source is unknown or has an invalid value."""


class DataLossError(KafkalogError, RuntimeError):
    """Records of the requested range no longer exist, and failOnDataLoss is true."""


class ProducerFencedError(KafkalogError, PermissionError):
    """A producer with the same id and a newer epoch has written (Kafka: InvalidProducerEpochException)."""


class CoordinatorFencedError(ProducerFencedError):
    """A later coordinator has ended a transaction of the producer (Kafka: TransactionCoordinatorFencedException)."""


class OutOfOrderSequenceError(KafkalogError, ValueError):
    """An idempotent producer's sequence number does not follow its last one."""


class LowerVersionError(KafkalogError, ValueError):
    """A write's version is below the last committed version of its transactional id."""


class CommitConflictError(KafkalogError, RuntimeError):
    """Another writer committed first; refresh and retry."""


class CommitStateUnknownError(KafkalogError, RuntimeError):
    """Publishing failed in a way that leaves unknown whether the commit was made."""


class InvalidAclError(KafkalogError, ValueError):
    """An access control entry, or a principal, that Kafka does not allow."""


class AuthorizationError(KafkalogError, PermissionError):
    """The principal lacks a permission (Kafka: TopicAuthorizationException, GroupAuthorizationException, ...)."""


class InvalidCredentialError(KafkalogError, ValueError):
    """A SCRAM credential that Kafka does not allow (Kafka: UnacceptableCredentialException)."""


class UnsupportedMechanismError(InvalidCredentialError):
    """A SASL mechanism that does not exist, or is not enabled (Kafka: UnsupportedSaslMechanismException)."""


class DuplicateCredentialError(InvalidCredentialError):
    """A request changes the credentials of a user twice (Kafka: DuplicateResourceException)."""


class UnknownCredentialError(InvalidCredentialError, LookupError):
    """The user has no such credential (Kafka: ResourceNotFoundException)."""


class AuthenticationError(KafkalogError, PermissionError):
    """A client has not shown who it is (Kafka: SaslAuthenticationException)."""


class ReadOnlyLogDirError(KafkalogError, PermissionError):
    """The operation would write to a broker's directory, which is read-only."""


class FollowingRootError(ReadOnlyLogDirError):
    """The root follows a leader, so only its follower may write to it until it is promoted."""


class FollowingEndedError(KafkalogError, RuntimeError):
    """The root no longer follows, or follows another leader: it was promoted, or another follower has taken over."""


class LogDirError(KafkalogError, OSError):
    """The path is not a log directory, or cannot be opened."""

    def __str__(self) -> str:
        """What failed and the path, without the number of the system's error."""
        return super().__str__() if self.filename is None else f"{self.strerror}: {self.filename!r}"


class MissingPackageError(KafkalogError, ImportError):
    """An optional package is needed and not installed."""


#: The extra that installs a package, by the name under which Python imports the package. Plain installs lack them, so
#: modules that a program without them may import use them inside of functions only.
OPTIONAL_PACKAGES: Final[Mapping[str, str]] = {
    "pyspark": "spark",
    "delta": "delta",
    "obstore": "object-store",
    "cryptography": "object-store",
    "re2": "server",
    "rich": "cli",
}


def missing_package(name: str, need: str) -> MissingPackageError:
    """The error if a package of OPTIONAL_PACKAGES is not installed. `need` begins it: "encrypted segments need"."""
    return MissingPackageError(
        f"{need} {name}, which is not installed: run pip install 'pyspark_kafkalog[{OPTIONAL_PACKAGES[name]}]'"
    )
