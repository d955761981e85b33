"""What a group's coordinator refuses a request with."""

from __future__ import annotations

from pyspark_kafkalog.errors import KafkalogError
from pyspark_kafkalog.protocol.error_codes import ErrorCode


class GroupRequestError(KafkalogError):
    """The request is answered with `code`, and where the response has room for it, with the message."""

    def __init__(self, code: ErrorCode, message: str = "") -> None:
        self.code = code
        super().__init__(message or code.message)
