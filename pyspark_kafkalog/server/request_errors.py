"""How the server tells a client, and its log, what went wrong: codes and texts of Kafka's protocol, and a bounded log.

An error of the package has one code where Kafka has one; the most specific class decides. A RequestError carries its
code. OSError, errors of object stores and damaged files are KAFKA_STORAGE_ERROR, which clients retry; anything else is
UNKNOWN_SERVER_ERROR. Only a batch that the client itself has sent is a CORRUPT_MESSAGE.

An error about the request has its own text. Errors about files, stores and leaders name paths and addresses of the
server: the log has those, and a client gets the text of the code. `ApiError` has the code and the text of a part of a
response, such as that of one topic.

Strangers, or all clients at once, can cause errors at will: a `BoundedLog` writes a bounded number of lines a second,
and counts in the next line what it left out, so that the disk does not fill up.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from pyspark_kafkalog import errors
from pyspark_kafkalog.object_store.store import ObjectStoreError
from pyspark_kafkalog.protocol.error_codes import ErrorCode
from pyspark_kafkalog.server.event_loop import monotonic_ms
from pyspark_kafkalog.storage.log.leader_append import REQUEST
from pyspark_kafkalog.units import SECOND_MS

_LINES_A_SECOND: Final = 20


class BoundedLog:
    """Writes at most so many lines a second to `log`. Used in one thread."""

    def __init__(
        self, log: logging.Logger, monotonic_ms: Callable[[], int], *, lines_a_second: int = _LINES_A_SECOND
    ) -> None:
        self._log = log
        self._monotonic_ms = monotonic_ms
        self._lines_a_second = lines_a_second
        self._second = -1
        self._written = 0
        self._left_out = 0

    def info(self, message: str, *values: object) -> None:
        """Log the message, unless there were too many in this second."""
        self._write(logging.INFO, message, values)

    def warning(self, message: str, *values: object) -> None:
        """The same, as a warning."""
        self._write(logging.WARNING, message, values)

    def _write(self, level: int, message: str, values: tuple[object, ...]) -> None:
        second = self._monotonic_ms() // SECOND_MS
        if second != self._second:
            self._second, self._written = second, 0
        if self._written >= self._lines_a_second:
            self._left_out += 1
            return
        self._written += 1
        if self._left_out:
            message += f" ({self._left_out} lines before this one were left out)"
            self._left_out = 0
        self._log.log(level, message, *values)


_CODES: Final[Mapping[type[BaseException], ErrorCode]] = {
    errors.AuthorizationError: ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
    errors.CommitConflictError: ErrorCode.REQUEST_TIMED_OUT,
    errors.CommitStateUnknownError: ErrorCode.REQUEST_TIMED_OUT,
    errors.CoordinatorFencedError: ErrorCode.TRANSACTION_COORDINATOR_FENCED,
    errors.CorruptRecordError: ErrorCode.CORRUPT_MESSAGE,
    errors.DiskFormatError: ErrorCode.KAFKA_STORAGE_ERROR,
    errors.InvalidAclError: ErrorCode.INVALID_REQUEST,
    errors.InvalidConfigError: ErrorCode.INVALID_CONFIG,
    errors.InvalidGroupError: ErrorCode.INVALID_GROUP_ID,
    errors.InvalidPartitionsError: ErrorCode.INVALID_PARTITIONS,
    errors.InvalidRecordError: ErrorCode.INVALID_RECORD,
    errors.InvalidTimestampError: ErrorCode.INVALID_TIMESTAMP,
    errors.InvalidTopicError: ErrorCode.INVALID_TOPIC_EXCEPTION,
    errors.InvalidTransactionStateError: ErrorCode.INVALID_TXN_STATE,
    errors.OffsetOutOfRangeError: ErrorCode.OFFSET_OUT_OF_RANGE,
    errors.OutOfOrderSequenceError: ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
    errors.PolicyViolationError: ErrorCode.POLICY_VIOLATION,
    errors.ProducerFencedError: ErrorCode.INVALID_PRODUCER_EPOCH,
    errors.ReadOnlyLogDirError: ErrorCode.POLICY_VIOLATION,
    errors.RecordBatchTooLargeError: ErrorCode.RECORD_LIST_TOO_LARGE,
    errors.RecordTooLargeError: ErrorCode.MESSAGE_TOO_LARGE,
    errors.TopicDeletionDisabledError: ErrorCode.TOPIC_DELETION_DISABLED,
    errors.TopicExistsError: ErrorCode.TOPIC_ALREADY_EXISTS,
    errors.UnknownGroupError: ErrorCode.GROUP_ID_NOT_FOUND,
    errors.UnknownTopicError: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    errors.UnsupportedCompressionError: ErrorCode.UNSUPPORTED_COMPRESSION_TYPE,
    errors.UnsupportedFormatError: ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT,
    ObjectStoreError: ErrorCode.KAFKA_STORAGE_ERROR,
    OSError: ErrorCode.KAFKA_STORAGE_ERROR,
}


#: Errors about what the client has asked for, whose texts name nothing of the server.
_ABOUT_REQUEST: Final = (
    errors.InvalidAclError,
    errors.InvalidConfigError,
    errors.InvalidCredentialError,
    errors.InvalidGroupError,
    errors.InvalidRecordError,
    errors.InvalidTopicError,
    errors.OffsetOutOfRangeError,
    errors.OutOfOrderSequenceError,
    errors.PolicyViolationError,
    errors.ProducerFencedError,
    errors.TopicExistsError,
    errors.UnknownGroupError,
)
_WITHHELD: Final = BoundedLog(logging.getLogger(__name__), monotonic_ms)
_FOLLOWS: Final = "the log directory follows another one, and only its follower may write to it"
_READ_ONLY: Final = "the log directory is served for reading only"


class RequestError(errors.KafkalogError):
    """Refuses a request, a part of it, or a unit of a commit with `code`. The message defaults to that of the code."""

    def __init__(self, code: ErrorCode, message: str | None = None) -> None:
        super().__init__(message or code.message)
        self.code = code


def error_code_of(error: BaseException) -> ErrorCode:
    """The code for `error`: its own, that of its class, else of the nearest base class that has one."""
    if isinstance(error, RequestError):
        return error.code
    if isinstance(error, errors.DiskFormatError) and not is_of_request(error):
        return ErrorCode.KAFKA_STORAGE_ERROR
    for each in type(error).__mro__:
        code = _CODES.get(each)
        if code is not None:
            return code
    return ErrorCode.UNKNOWN_SERVER_ERROR


def is_of_request(error: errors.DiskFormatError) -> bool:
    """Whether the damaged bytes came with a request, and not from a file or store."""
    return error.file == REQUEST


def text_for_client(error: BaseException, *, is_logged: bool = False) -> str:
    """What went wrong, without names of the server's files, stores and leaders.

    Unless the caller has logged the error, the log has the details that the client does not get.
    """
    if isinstance(error, errors.FollowingRootError):
        return _FOLLOWS
    if isinstance(error, errors.ReadOnlyLogDirError):
        return _READ_ONLY
    if isinstance(error, (RequestError, *_ABOUT_REQUEST)) or (
        isinstance(error, errors.DiskFormatError) and is_of_request(error)
    ):
        return str(error)
    if not is_logged and not isinstance(error, errors.UnknownTopicError):
        _WITHHELD.warning("a part of a request failed: %s", error)
    return error_code_of(error).message


@dataclass(frozen=True, slots=True)
class ApiError:
    """The error fields of a part of a response."""

    code: ErrorCode
    message: str | None

    @classmethod
    def of(cls, error: BaseException | None) -> ApiError:
        """The fields for an error; None stands for success."""
        if error is None:
            return SUCCESS
        return cls(error_code_of(error), text_for_client(error))


SUCCESS: Final = ApiError(ErrorCode.NONE, None)
