"""The log of a command on standard error: lines of text, or one JSON object a line.

A message holds names that clients have chosen. So it is one line, and the lines of a traceback are indented.
"""

from __future__ import annotations

import argparse
import json
import logging
from datetime import datetime, timezone
from typing import Any, Final

from pyspark_kafkalog.units import printable

_INDENT: Final = "    "


def add_log_format(parser: argparse.ArgumentParser) -> None:
    """`--log-format`, for `set_up_log`."""
    parser.add_argument("--log-format", choices=("text", "json"), default="text", help="of the log (default: text)")


class _TextFormatter(logging.Formatter):
    """One line for each message; the lines of a traceback, which may end with a name, begin with spaces."""

    def formatMessage(self, record: logging.LogRecord) -> str:
        return printable(super().formatMessage(record))

    def formatException(self, ei: Any) -> str:
        lines = super().formatException(ei).splitlines()
        return "\n".join(_INDENT + printable(each) for each in lines)


class _JsonFormatter(logging.Formatter):
    """One object a line: time in ISO 8601, level, logger, message, and the traceback if there is one."""

    def format(self, record: logging.LogRecord) -> str:
        moment = datetime.fromtimestamp(record.created, timezone.utc).isoformat(timespec="milliseconds")
        fields = {
            "time": moment,
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            fields["traceback"] = self.formatException(record.exc_info)
        return json.dumps(fields)


def set_up_log(form: str) -> None:
    """Log to sys.stderr from the level INFO on, as "text" or "json"."""
    handler = logging.StreamHandler()
    handler.setFormatter(_JsonFormatter() if form == "json" else text_formatter("%(name)s: "))
    logging.basicConfig(handlers=[handler], level=logging.INFO)


def text_formatter(place: str = "") -> logging.Formatter:
    """Time, level and message; `place` is a format of what comes before the message."""
    return _TextFormatter(f"%(asctime)s %(levelname)s {place}%(message)s")
