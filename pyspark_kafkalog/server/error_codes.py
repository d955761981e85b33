"""Which error code of Kafka's protocol tells a client what went wrong here.

A class of errors.py has one code where Kafka has one; the most specific class decides. A RefusedError carries its code.
OSError and errors of object stores are KAFKA_STORAGE_ERROR, which clients retry; anything else is UNKNOWN_SERVER_ERROR.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from pyspark_kafkalog import errors
from pyspark_kafkalog.object_store.store import ObjectStoreError
from pyspark_kafkalog.protocol.error_codes import ErrorCode

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


class RefusedError(errors.KafkalogError):
    """A request, or a unit of a commit, that is refused with this code."""

    def __init__(self, error_code: ErrorCode) -> None:
        super().__init__(error_code.message)
        self.error_code = error_code


def error_code_of(error: BaseException) -> ErrorCode:
    """The code for `error`: its own, that of its class, else of the nearest base class that has one."""
    if isinstance(error, RefusedError):
        return error.error_code
    for each in type(error).__mro__:
        code = _CODES.get(each)
        if code is not None:
            return code
    return ErrorCode.UNKNOWN_SERVER_ERROR
