"""The `kafkalog` command: picks the subcommand and loads its module only then, so that `--help` stays fast."""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Sequence
from typing import Final, NoReturn

_COMMANDS: Final = {
    "adopt": ("pyspark_kafkalog.tools.adopt", "make a Kafka broker's log directory ours, in place"),
    "configs": (
        "pyspark_kafkalog.tools.configs",
        "describe and change configurations of topics and brokers",
    ),
    "dump-log": ("pyspark_kafkalog.tools.dump_log", "show what is in log, index and snapshot files"),
    "history": ("pyspark_kafkalog.tools.history", "list the commits: who wrote what, and when"),
    "topics": ("pyspark_kafkalog.tools.topics", "create, list, describe, alter and delete topics"),
}


class _Parser(argparse.ArgumentParser):
    """argparse, with errors in one line and exit code 1, as Kafka's tools exit."""

    def error(self, message: str) -> NoReturn:
        self.exit(1, f"{self.prog}: {message}\n")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line `arguments` (default: sys.argv). Returns the exit code."""
    arguments = sys.argv[1:] if arguments is None else list(arguments)
    if not arguments or arguments[0] not in _COMMANDS:
        return _top_level(arguments)
    command = arguments[0]
    module = importlib.import_module(_COMMANDS[command][0])
    parser = _Parser(prog=f"kafkalog {command}", description=module.__doc__, allow_abbrev=False)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    module.add_arguments(parser)
    for stream in (sys.stdout, sys.stderr):
        # File names may hold bytes that are no text; what is dumped is UTF-8 whatever the locale says.
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(encoding="utf-8", errors="surrogateescape")
    try:
        exit_code = int(module.run(parser.parse_args(arguments[1:])))
        sys.stdout.flush()
    except OSError as error:
        if not isinstance(error, BrokenPipeError):  # that one is a reader (head, less) gone away: nothing to say
            sys.stderr.write(f"kafkalog {command}: {error}\n")
        # What is still buffered for stdout must not fail once more at interpreter shutdown.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except KeyboardInterrupt:
        return 130
    return exit_code


def _top_level(arguments: Sequence[str]) -> int:
    parser = _Parser(prog="kafkalog", description="Work with the files of Kafka's log, without a broker.")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND")
    for name, (_, summary) in _COMMANDS.items():
        commands.add_parser(name, help=summary, add_help=False)
    if not arguments:
        parser.print_usage(sys.stderr)
        return 1
    parser.parse_args(arguments)
    return 0


if __name__ == "__main__":
    sys.exit(main())
