"""The log of a long-running command on standard error: lines of text, or one JSON object a line."""

from __future__ import annotations

import argparse
import json
import logging
from datetime import datetime, timezone


def add_log_format(parser: argparse.ArgumentParser) -> None:
    """`--log-format`, for `set_up_log`."""
    parser.add_argument("--log-format", choices=("text", "json"), default="text", help="of the log (default: text)")


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
    text = logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s")
    handler.setFormatter(_JsonFormatter() if form == "json" else text)
    logging.basicConfig(handlers=[handler], level=logging.INFO)
