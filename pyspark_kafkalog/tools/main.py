"""The `kafkalog` command: selects the subcommand and imports only its module, so that `--help` is fast."""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, NoReturn

from pyspark_kafkalog.errors import KafkalogError
from pyspark_kafkalog.tools.command import UsageError, one_line
from pyspark_kafkalog.version import __version__

_TOOLS: Final = "pyspark_kafkalog.tools."
#: Commands by group, each with its module and its purpose.
COMMANDS: Final[dict[str, dict[str, tuple[str, str]]]] = {
    "topics and records": {
        "acls": ("acls", "list, add and remove access control entries"),
        "topics": ("topics", "create, list, describe, alter and delete topics"),
        "configs": ("configs", "describe and change configurations of topics and brokers"),
        "console-consumer": ("console_consumer", "print the records of topics as they come"),
        "console-producer": ("console_producer", "write lines of text to a topic"),
        "get-offsets": ("get_offsets", "print offsets of partitions, at their ends or at a time"),
        "perf-test": ("perf_test", "measure writing and reading, with percentiles"),
        "transactions": ("transactions", "look at transactions and producers, abort what was left open"),
    },
    "groups": {
        "consumer-groups": ("consumer_groups", "list, describe and delete consumer groups, reset their offsets"),
    },
    "maintenance": {
        "adopt": ("adopt", "make a Kafka broker's log directory ours, in place"),
        "export": ("export", "make partitions ready for a Kafka broker to mount, or copy them"),
        "delete-records": ("delete_records", "delete the records of partitions below given offsets"),
        "log-cleaner": ("log_cleaner", "clean compacted topics: the last record of each key stays"),
        "merge-segments": ("merge_segments", "join small closed segments into full ones"),
        "reindex": ("reindex", "make indexes and producer snapshots anew where they are missing or wrong"),
        "report": ("report", "make one HTML page that tells all of a log directory"),
        "retention": ("retention", "drop old segments by time and size, as topics' configurations say"),
        "verify": ("verify", "check every batch, index entry and checkpoint; repair what can be"),
    },
    "Delta tables": {
        "delta-to-topic": ("delta_to_topic", "write a Delta table's changes to a topic"),
        "topic-to-delta": ("topic_to_delta", "write a topic into a Delta table"),
    },
    "inside files": {
        "du": ("du", "add up what takes room, by topic, partition, segment or kind of file"),
        "dump-log": ("dump_log", "show what is in log, index and snapshot files"),
        "history": ("history", "list the commits: who wrote what, and when"),
        "log-dirs": ("log_dirs", "tell the sizes of partitions in Kafka's JSON"),
        "metadata-quorum": ("metadata_quorum", "tell the state of the metadata log"),
        "metrics": ("metrics", "serve metrics under Kafka's names, for Prometheus"),
    },
    "set-up": {
        "completion": ("completion", "print what makes bash, zsh or fish complete kafkalog's lines"),
        "warm-up": ("warm_up", "compile the record kernels ahead of the first task"),
    },
}
_MODULES: Final = {name: module for group in COMMANDS.values() for name, (module, _) in group.items()}
_EXAMPLES: Final = "\nexamples:\n"
#: Set by a shell that requests completions of a line (tools/completion.py).
_COMPLETING: Final = "_ARGCOMPLETE"


class _Parser(argparse.ArgumentParser):
    """argparse, with errors in one line and exit code 1, as in Kafka's tools, or the module's USAGE_EXIT_CODE."""

    usage_exit_code = 1
    #: A required option that argparse does not check itself, because it may be in either of two places.
    required_path: str | None = None

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:
        options = super().parse_args(args, namespace)
        if self.required_path is not None and options.path is None:
            self.error(f"the following arguments are required: {self.required_path}")
        return options

    def error(self, message: str) -> NoReturn:
        self.exit(self.usage_exit_code, f"{self.prog}: {message}\n")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line `arguments` (default: sys.argv). Returns the exit code."""
    if _COMPLETING in os.environ:
        from pyspark_kafkalog.tools.completion import complete

        complete(_top_level_parser(), command_parser)
    arguments = sys.argv[1:] if arguments is None else list(arguments)
    if not arguments or arguments[0] not in _MODULES:
        return _top_level(arguments)
    command = arguments[0]
    module = importlib.import_module(_TOOLS + _MODULES[command])
    parser = command_parser(command)
    for stream in (sys.stdout, sys.stderr):
        # File names may contain bytes that are not text; the output is UTF-8 in every locale.
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(encoding="utf-8", errors="surrogateescape")
    _advise(parser, command, arguments)
    try:
        exit_code = int(module.run(parser.parse_args(arguments[1:])))
        sys.stdout.flush()
    except BrokenPipeError:  # the reader (head, less) has closed the pipe: not an error
        _give_up_stdout()
        return 1
    except (KafkalogError, OSError) as error:
        return _fail(command, error, parser.usage_exit_code if isinstance(error, UsageError) else 1)
    except KeyboardInterrupt:
        return 130
    return exit_code


def command_parser(command: str) -> _Parser:
    """The parser of one command: its docstring is the description, with the examples after the options."""
    module = importlib.import_module(_TOOLS + _MODULES[command])
    description, heading, examples = (module.__doc__ or "").partition(_EXAMPLES)
    parser = _Parser(
        prog=f"kafkalog {command}",
        description=description.strip(),
        epilog=(heading + examples).strip(),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.usage_exit_code = getattr(module, "USAGE_EXIT_CODE", 1)
    module.add_arguments(parser)
    _let_path_follow(parser)
    return parser


def _advise(parser: _Parser, command: str, arguments: Sequence[str]) -> None:
    """Refuse options of Kafka's tools that do not exist here, and state the alternative."""
    given = {argument.partition("=")[0] for argument in arguments if argument.startswith("--")}
    unknown = sorted(given - parser._option_string_actions.keys())
    if unknown:
        from pyspark_kafkalog.tools.kafka_tools import option_advice

        for option in unknown:
            said = option_advice(command, option)
            if said is not None:
                parser.error(said)


def _let_path_follow(parser: _Parser) -> None:
    """Accept --path also after a command's own subcommand: `transactions list --path ROOT`."""
    (subcommands,) = [each for each in parser._actions if isinstance(each, argparse._SubParsersAction)] or (None,)
    if subcommands is None:
        return
    (path,) = [each for each in parser._actions if each.dest == "path"]
    parser.required_path, path.required = path.option_strings[0], False
    for subcommand in subcommands.choices.values():
        subcommand.add_argument("--path", default=argparse.SUPPRESS, type=Path, help=argparse.SUPPRESS)


def _fail(command: str, error: Exception, exit_code: int) -> int:
    try:
        sys.stdout.flush()
    except OSError:
        _give_up_stdout()
    sys.stderr.write(f"kafkalog {command}: {one_line(error)}\n")
    return exit_code


def _give_up_stdout() -> None:
    """Discard buffered output, so that it does not fail again at interpreter shutdown."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _top_level(arguments: Sequence[str]) -> int:
    parser = _top_level_parser()
    if not arguments:
        parser.print_usage(sys.stderr)
        return 1
    if not arguments[0].startswith("-"):
        from pyspark_kafkalog.tools.kafka_tools import advice

        parser.error(advice(arguments[0], _MODULES))
    parser.parse_args(arguments)
    return 0


def _top_level_parser() -> _Parser:
    lines = []
    for group, commands in COMMANDS.items():
        lines += ["", f"{group}:"] if commands else []
        lines += [f"  {name:<18}{summary}" for name, (_, summary) in commands.items()]
    parser = _Parser(
        prog="kafkalog",
        usage="kafkalog [-h] [--version] COMMAND ...",
        description="Work with Kafka's log in files, without a broker.\n" + "\n".join(lines),
        epilog="kafkalog COMMAND --help tells what a command takes, with examples. What bin/kafka-topics.sh does is\n"
        "kafkalog topics, and so on; kafkalog kafka-NAME.sh tells where a tool is that has another name here.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"kafkalog {__version__}")
    parser.add_argument("command", metavar="COMMAND", choices=tuple(_MODULES), help=argparse.SUPPRESS)
    return parser


if __name__ == "__main__":
    sys.exit(main())
