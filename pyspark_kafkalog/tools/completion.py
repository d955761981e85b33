"""`kafkalog completion`: print shell code that completes kafkalog's commands, options and topic names.

examples:
  eval "$(kafkalog completion bash)"                                        # in ~/.bashrc
  eval "$(kafkalog completion zsh)"                                         # in ~/.zshrc, after compinit
  kafkalog completion fish > ~/.config/fish/completions/kafkalog.fish
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final

from pyspark_kafkalog.errors import LogDirError

_SHELLS: Final = ("bash", "zsh", "fish")
_LINE: Final = "COMP_LINE"
_CURSOR: Final = "COMP_POINT"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The shell."""
    parser.add_argument("shell", choices=_SHELLS, help="the shell to print for")


def run(options: argparse.Namespace) -> int:
    """Print the shell's code to sys.stdout."""
    from argcomplete.shell_integration import shellcode

    sys.stdout.write(shellcode(["kafkalog"], shell=options.shell) + "\n")
    return 0


def complete(top_level: argparse.ArgumentParser, command_parser: Callable[[str], argparse.ArgumentParser]) -> None:
    """Answer the shell's completion request, which is in environment variables, and end the process.

    If the line names a command, only the parser of that command is created. It completes the line as if the command
    were the program.
    """
    import argcomplete

    parser = top_level
    line, cursor = os.environ.get(_LINE, ""), int(os.environ.get(_CURSOR, "0"))
    words = line.encode()[:cursor].decode("utf-8", "ignore").split(maxsplit=2)
    if len(words) > 1 and (len(words) > 2 or line[:cursor].endswith(" ")):
        start = line.index(words[1], len(words[0]))
        try:
            parser = command_parser(words[1])
        except KeyError:
            sys.exit(0)  # the command does not exist, so there are no completions
        os.environ[_LINE], os.environ[_CURSOR] = line[start:], str(cursor - start)
        _complete_topics(parser)
    argcomplete.autocomplete(parser, always_complete_options=False)


def _complete_topics(parser: argparse.ArgumentParser) -> None:
    """Complete the names of topics in options that take one, through argcomplete's attribute."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for command in action.choices.values():
                _complete_topics(command)
        elif action.metavar in ("TOPIC", "NAME") and action.dest == "topic":
            action.completer = _topics  # type: ignore[attr-defined]


def _topics(prefix: str, parsed_args: argparse.Namespace, **_: object) -> list[str]:
    """Topics of the log directory in the line's --path, from the names of its partition directories."""
    from pyspark_kafkalog.storage.artefacts.partition_listing import list_partitions

    root: Path | None = getattr(parsed_args, "path", None)
    try:
        partitions = [] if root is None else list_partitions(root)
    except LogDirError:
        return []
    return sorted({each.topic for each in partitions if each.topic.startswith(prefix)})
