"""The `kafkalog` command: selects the subcommand and imports only its module, so that `--help` is fast.

The names of Kafka's scripts and options that differ here are answered with advice: `kafka-topics.sh` is `topics`.
"""

from __future__ import annotations

import argparse
import importlib
import os
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NoReturn

from pyspark_kafkalog.errors import OPTIONAL_PACKAGES, KafkalogError, missing_package
from pyspark_kafkalog.tools.command import (
    PATH_VARIABLE,
    USAGE_EXIT_CODE,
    Command,
    exit_code_of,
    one_line,
    path_of_environment,
    path_or_url,
    without_collections,
)
from pyspark_kafkalog.tools.set_up import complete
from pyspark_kafkalog.version import __version__

_TOOLS: Final = "pyspark_kafkalog.tools."

#: Commands by group, each with its module and its purpose.
COMMANDS: Final[dict[str, dict[str, tuple[str, str]]]] = {
    "topics and records": {
        "acls": ("acls", "list, add and remove access control entries"),
        "topics": ("topics", "create, list, describe, alter and delete topics"),
        "configs": ("configs", "describe and change configurations of topics and brokers"),
        "console-consumer": ("records.commands", "print the records of topics as they arrive"),
        "console-producer": ("records.commands", "write lines of text to a topic"),
        "get-offsets": ("get_offsets", "print start or end offsets of partitions, or offsets at a time"),
        "perf-test": ("records.commands", "measure writing and reading, with percentiles"),
        "transactions": ("transactions", "list transactions and producers, abort or complete open transactions"),
    },
    "groups": {
        "consumer-groups": ("consumer_groups", "list, describe and delete consumer groups, reset their offsets")
    },
    "maintenance": {
        "adopt": ("maintenance.commands", "convert a Kafka broker's log directory in place into a native one"),
        "export": ("maintenance.commands", "prepare partitions for a Kafka broker to mount, or copy them"),
        "delete-records": ("maintenance.commands", "delete the records of partitions below given offsets"),
        "log-cleaner": ("maintenance.commands", "compact topics: keep the last record of each key"),
        "merge-segments": ("maintenance.commands", "merge small closed segments into larger ones"),
        "reindex": ("maintenance.commands", "rebuild missing or wrong indexes and producer snapshots"),
        "report": ("maintenance.commands", "write a report on a log directory as one HTML page"),
        "retention": ("maintenance.commands", "delete old segments by time and size, as configured"),
        "tier": ("maintenance.commands", "copy closed segments of tiered topics to remote storage"),
        "verify": ("maintenance.commands", "check all batches, indexes and checkpoints; repair what can be rebuilt"),
    },
    "Delta tables": {
        "delta-to-topic": ("maintenance.delta", "write a Delta table's changes to a topic"),
        "topic-to-delta": ("maintenance.delta", "write a topic into a Delta table"),
    },
    "inspection": {
        "du": ("disk_usage", "show disk usage by topic, partition, segment or kind of file"),
        "dump-log": ("dump.log", "print the contents of log, index and snapshot files"),
        "features": ("metadata_log", "show or raise the format version of a log directory"),
        "history": ("metadata_log", "list the commits: time, operation, writer, partitions"),
        "log-dirs": ("disk_usage", "print the sizes of partitions in Kafka's JSON"),
        "metadata-quorum": ("metadata_log", "show the state of the metadata log"),
        "metrics": ("processes.commands", "serve metrics under Kafka's names, for Prometheus"),
    },
    "following": {
        "follow": ("processes.commands", "keep a log directory as a replica of a Kafka cluster or of another one"),
        "promote": ("processes.commands", "let a log directory that follows a leader take writes"),
    },
    "Kafka clients": {"serve": ("processes.commands", "let Kafka clients read and write a log directory")},
    "set-up": {
        "completion": ("set_up", "print code that completes command lines in bash, zsh or fish"),
        "warm-up": ("set_up", "compile the record kernels ahead of the first task"),
    },
}
_MODULES: Final = {name: module for group in COMMANDS.values() for name, (module, _) in group.items()}
_EXAMPLES: Final = "\nexamples:\n"
#: Options that replace --path where it is not required: with one of them KAFKALOG_PATH is not applied.
_INSTEAD_OF_PATH: Final = ("files", "remote_storage", "root")
#: What can only be meant as an option; of a value that begins with a minus sign argparse expects `--option=-value`.
_LIKE_AN_OPTION: Final = re.compile(r"--?[A-Za-z][\w.-]*")

#: Set by a shell that requests completions of a line (set_up.complete).
_COMPLETING: Final = "_ARGCOMPLETE"


class _Parser(argparse.ArgumentParser):
    """argparse, with errors in one line and guesses for mistyped values, and with KAFKALOG_PATH for `--path`."""

    #: A required option that argparse does not check itself, because it may be in either of two places.
    required_path: str | None = None

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:
        options = super().parse_args(args, namespace)
        if getattr(options, "path", "") is None:
            if not any(getattr(options, each, None) for each in _INSTEAD_OF_PATH):
                place = path_of_environment()
                options.path = None if place is None else path_or_url(place)
            if options.path is None and self.required_path is not None:
                self.error(f"the following arguments are required: {self.required_path}")
        return options

    def error(self, message: str) -> NoReturn:
        self.exit(USAGE_EXIT_CODE, f"{self.prog}: {message}\n")

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        try:
            super()._check_value(action, value)
        except argparse.ArgumentError as error:
            near = _nearest(str(value), list(map(str, action.choices or ())))
            if near:
                error.message = error.message.replace(" (", f": did you mean {near}? (", 1)
            raise


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line `arguments` (default: sys.argv). Returns the exit code."""
    if _COMPLETING in os.environ:
        complete(_top_level_parser(), command_parser)
    is_process = arguments is None
    if is_process:
        _open_standard_streams()
    arguments = sys.argv[1:] if arguments is None else list(arguments)
    if not arguments or arguments[0] not in _MODULES:
        return _top_level(arguments)
    if is_process:
        from pyspark_kafkalog.storage.filesystem import raise_descriptor_limit
        from pyspark_kafkalog.threads import bound_address_space

        raise_descriptor_limit()
        bound_address_space()
    command = arguments[0]
    with without_collections():
        parser = command_parser(command)
    for stream in (sys.stdout, sys.stderr):
        # File names may contain bytes that are not text; the output is UTF-8 in every locale.
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(encoding="utf-8", errors="surrogateescape")
    _refuse_unknown_options(parser, command, arguments[1:])
    try:
        exit_code = load_command(command).run(parser.parse_args(arguments[1:]))
        sys.stdout.flush()
    except BrokenPipeError:  # the reader (head, less) has closed the pipe: not an error
        _give_up_stdout()
        return 1
    except (KafkalogError, OSError) as error:
        return _fail(command, error, exit_code_of(error))
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in OPTIONAL_PACKAGES:
            raise
        return _fail(command, missing_package(package, "this command, with these options, needs"), 1)
    except KeyboardInterrupt:
        return 130
    return exit_code


def _open_standard_streams() -> None:
    """Open /dev/null in place of standard streams that are closed.

    Otherwise the next file that is opened gets the number of one, and takes what is printed.
    """
    for fd, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(fd)
        except OSError:
            opened = os.open(os.devnull, os.O_RDWR)
            assert opened == fd, "lower numbers are open by now"
            os.set_inheritable(fd, True)
            setattr(sys, name, os.fdopen(fd, "r" if fd == 0 else "w", closefd=False))


def load_command(name: str) -> Command:
    """The command, from its module's table COMMANDS, or from the module itself. Raises KeyError."""
    module = importlib.import_module(_TOOLS + _MODULES[name])
    if hasattr(module, "COMMANDS"):
        loaded: Command = module.COMMANDS[name]
        return loaded
    return Command(module.__doc__ or "", module.add_arguments, module.run)


def command_parser(command: str) -> _Parser:
    """The parser of one command; its description has the examples after the options."""
    loaded = load_command(command)
    description, heading, examples = loaded.description.partition(_EXAMPLES)
    parser = _Parser(
        prog=f"kafkalog {command}",
        description=description.strip(),
        epilog=(heading + examples).strip(),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    loaded.add_arguments(parser)
    _let_path_follow(parser)
    return parser


def _refuse_unknown_options(parser: _Parser, command: str, arguments: Sequence[str]) -> None:
    """Name an option that does not exist before anything else that is wrong, with advice or a guess."""
    known = dict(parser._option_string_actions)
    for each in parser._actions:
        if isinstance(each, argparse._SubParsersAction):
            for subcommand in each.choices.values():
                known |= subcommand._option_string_actions
    options = arguments[: arguments.index("--")] if "--" in arguments else arguments
    for option in (argument.partition("=")[0] for argument in options):
        # A short option may have its value without a blank: -ofile.
        is_known = option in known or (option[:2] != "--" and option[:2] in known)
        if _LIKE_AN_OPTION.fullmatch(option) and not is_known:
            parser.error(option_advice(command, option) or _unknown_option(option, known, f"kafkalog {command}"))


def _unknown_option(option: str, known: Mapping[str, argparse.Action], command: str) -> str:
    shown = [name for name, action in known.items() if action.help is not argparse.SUPPRESS and name[:2] == "--"]
    near = _nearest(f"--{option.lstrip('-')}", shown)
    return f"unknown option {option}: " + (f"did you mean {near}?" if near else f"{command} --help lists all")


def _let_path_follow(parser: _Parser) -> None:
    """Accept --path also after a command's own subcommand: `transactions list --path ROOT`."""
    (subcommands,) = [each for each in parser._actions if isinstance(each, argparse._SubParsersAction)] or (None,)
    if subcommands is None:
        return
    (path,) = [each for each in parser._actions if each.dest == "path"]
    parser.required_path, path.required = path.option_strings[0], False
    for subcommand in subcommands.choices.values():
        subcommand.add_argument("--path", default=argparse.SUPPRESS, type=path_or_url, help=argparse.SUPPRESS)


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
        parser.print_help()
        return USAGE_EXIT_CODE
    first = arguments[0].partition("=")[0]
    if not first.startswith("-"):
        parser.error(advice(first, _MODULES))
    if first not in parser._option_string_actions:
        near = _nearest(first, list(parser._option_string_actions))
        guess = f"did you mean {near}?" if near else "options follow the name of a command, kafkalog COMMAND"
        parser.error(f"unknown option {first}: {guess}{'' if near else f' {first} ...'}")
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
        epilog="kafkalog COMMAND --help describes a command's options, with examples. The environment variable\n"
        f"{PATH_VARIABLE} stands for --path, the log directory of all commands. Commands have the names of\n"
        "Kafka's tools: kafkalog topics is bin/kafka-topics.sh; kafkalog kafka-NAME.sh prints a counterpart.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"kafkalog {__version__}")
    parser.add_argument("command", metavar="COMMAND", choices=tuple(_MODULES), help=argparse.SUPPRESS)
    return parser


# The names of Kafka's tools and of their options

_NO_MEMBERS: Final = "groups have no members here; kafkalog consumer-groups has their offsets"
_NO_BROKER: Final = "no broker runs here"

#: The command that corresponds to a script of Kafka.
COUNTERPARTS: Final[dict[str, str]] = {
    "kafka-acls": "acls",
    "kafka-configs": "configs",
    "kafka-console-consumer": "console-consumer",
    "kafka-console-producer": "console-producer",
    "kafka-consumer-groups": "consumer-groups",
    "kafka-consumer-perf-test": "perf-test consumer",
    "kafka-delete-records": "delete-records",
    "kafka-dump-log": "dump-log",
    "kafka-features": "features",
    "kafka-get-offsets": "get-offsets",
    "kafka-groups": "consumer-groups --list",
    "kafka-jmx": "metrics",
    "kafka-log-dirs": "log-dirs",
    "kafka-metadata-quorum": "metadata-quorum",
    "kafka-producer-perf-test": "perf-test producer",
    "kafka-topics": "topics",
    "kafka-transactions": "transactions",
}

#: The reason why a script of Kafka has no corresponding command.
NOT_HERE: Final[dict[str, str]] = {
    "kafka-broker-api-versions": _NO_BROKER,
    "kafka-client-metrics": _NO_BROKER,
    "kafka-cluster": "the cluster's id is in meta.properties of the log directory",
    "kafka-console-share-consumer": _NO_MEMBERS,
    "kafka-delegation-tokens": "there is no authentication here: file permissions decide",
    "kafka-e2e-latency": "kafkalog perf-test measures latencies",
    "kafka-leader-election": "a partition has one replica here",
    "kafka-metadata-shell": "kafkalog dump-log --cluster-metadata-decoder shows the metadata log",
    "kafka-reassign-partitions": "a partition has one replica here; kafkalog export copies partitions elsewhere",
    "kafka-replica-verification": "a partition has one replica here; kafkalog verify checks it",
    "kafka-run-class": "no JVM runs here",
    "kafka-server-start": _NO_BROKER,
    "kafka-server-stop": _NO_BROKER,
    "kafka-share-groups": _NO_MEMBERS,
    "kafka-storage": "a log directory needs no formatting: the first kafkalog topics --create, or write, creates it",
    "kafka-streams-application-reset": "kafkalog consumer-groups --reset-offsets and topics --delete replace it",
    "kafka-streams-groups": _NO_MEMBERS,
    "kafka-verifiable-consumer": "a tool of Kafka's own tests",
    "kafka-verifiable-producer": "a tool of Kafka's own tests",
}

_ONE_REPLICA: Final = "a partition has one replica here, and it is in sync"
_NO_QUOTAS: Final = "no broker runs here that could keep to quotas"
_NO_CLIENT: Final = "there is no network client to configure: omit it"
_PATH_INSTEAD: Final = "there is no broker to connect to: use --path ROOT, the log directory"
_START_OFFSET: Final = "--start-offset identifies the transaction"

#: Advice for options of Kafka's tools that no command here has.
_OPTIONS_NOT_HERE: Final[dict[str, str]] = {
    "--bootstrap-server": _PATH_INSTEAD,
    "--bootstrap-controller": _PATH_INSTEAD,
    "--command-config": _NO_CLIENT,
    "--version": "kafkalog --version prints it",
}

#: Advice for options that a command has only in Kafka.
_OPTIONS_NOT_OF: Final[dict[str, dict[str, str]]] = {
    "configs": dict.fromkeys(("--broker-logger", "--client-metrics"), _NO_BROKER),
    "consumer-groups": {"--validate-regex": _NO_MEMBERS},
    "dump-log": {"--remote-log-metadata-decoder": "kafkalog verify --remote-storage shows what they say"},
    "features": dict.fromkeys(("--feature", "--metadata", "--release-version"), "upgrade raises the format version"),
    "topics": {
        "--at-min-isr-partitions": _ONE_REPLICA,
        "--partition-size-limit-per-response": _NO_CLIENT,
        "--replica-assignment": f"{_ONE_REPLICA}; --partitions sets their number",
        "--topic-id": "topics are selected by name, with --topic",
        "--topics-with-overrides": "kafkalog configs --entity-type topics --describe lists what topics set",
        "--unavailable-partitions": _ONE_REPLICA,
        "--under-min-isr-partitions": _ONE_REPLICA,
        "--under-replicated-partitions": _ONE_REPLICA,
    },
    "transactions": dict.fromkeys(("--coordinator-epoch", "--producer-epoch", "--producer-id"), _START_OFFSET),
}


def option_advice(command: str, option: str) -> str | None:
    """The advice for a user who passed that option of Kafka's tool to the command; None without advice."""
    why = _OPTIONS_NOT_HERE.get(option) or _OPTIONS_NOT_OF.get(command, {}).get(option)
    return None if why is None else f"{option}: {why}"


def advice(name: str, commands: Iterable[str]) -> str:
    """The advice for a user who entered `name`, which is not one of the commands."""
    script = name.removesuffix(".sh").removesuffix(".bat")
    script = script if script.startswith("kafka-") else f"kafka-{script}"
    if script in COUNTERPARTS:
        return f"Kafka's {script} is kafkalog {COUNTERPARTS[script]}"
    if script in NOT_HERE:
        return f"Kafka's {script} has no counterpart: {NOT_HERE[script]}"
    near = _nearest(name, list(commands))
    guess = f"did you mean {near}? " if near else ""
    return f"unknown command {name!r}: {guess}kafkalog --help lists all"


def _nearest(name: str, commands: Sequence[str]) -> str | None:
    """The command that was probably meant: one with this prefix, a similar one, or one with this part."""
    import difflib  # for mistakes only

    begun = [command for command in commands if command.startswith(name)]
    if begun:
        return min(begun, key=len)
    near = difflib.get_close_matches(name, commands, n=1)
    if near:
        return near[0]
    by_part = {part: command for command in commands for part in command.split("-")}
    near_parts = difflib.get_close_matches(name, by_part, n=1)
    return by_part[near_parts[0]] if near_parts else None
