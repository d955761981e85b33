"""How an error becomes the code and the message of a part of a response, such as that for one topic."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from pyspark_kafkalog.errors import ReadOnlyLogDirError
from pyspark_kafkalog.protocol.error_codes import ErrorCode
from pyspark_kafkalog.server.context import ServerContext
from pyspark_kafkalog.server.error_codes import error_code_of, text_for_client


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


def why_read_only(context: ServerContext) -> ReadOnlyLogDirError | None:
    """Why this root takes no changes; None if it does."""
    if context.native is not None:
        return None
    try:
        context.root.check_writable()
    except ReadOnlyLogDirError as error:
        return error
    return ReadOnlyLogDirError(f"{context.root.path} is served for reading only")
