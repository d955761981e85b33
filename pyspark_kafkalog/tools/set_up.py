"""Commands that set up a machine: completion of command lines in a shell, and compilation of the record kernels."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from pyspark_kafkalog.errors import LogDirError
from pyspark_kafkalog.tools.command import Command
from pyspark_kafkalog.tools.output import Tree, add_output, output_of

_COMPLETION_HELP: Final = """\
`kafkalog completion`: print shell code that completes kafkalog's commands, options and topic names.

examples:
  eval "$(kafkalog completion bash)"                                        # in ~/.bashrc
  eval "$(kafkalog completion zsh)"                                         # in ~/.zshrc, after compinit
  kafkalog completion fish > ~/.config/fish/completions/kafkalog.fish
"""


_WARM_UP_HELP: Final = """\
`kafkalog warm-up`: compile the record kernels before the first task, when an image or a machine is set up.

Tasks then load the machine code instead of compiling it. It is stored beside the installed package, else in the user's
cache directory, or in NUMBA_CACHE_DIR if that is set; the directory may be read-only afterwards. It is valid for the
Python, the packages and the kind of processor that it was compiled on. If an image runs on several kinds of processor,
set NUMBA_CPU_NAME=generic for this command and for the executors.

examples:
  kafkalog warm-up
  NUMBA_CACHE_DIR=/opt/kafkalog/kernels kafkalog warm-up
"""


_SHELLS: Final = ("bash", "zsh", "fish")
_LINE: Final = "COMP_LINE"
_CURSOR: Final = "COMP_POINT"


def _add_completion(parser: argparse.ArgumentParser) -> None:
    """The shell."""
    parser.add_argument("shell", choices=_SHELLS, help="the shell to print for")


def _print_completion(options: argparse.Namespace) -> int:
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


def _add_warm_up(parser: argparse.ArgumentParser) -> None:
    """The form of the output."""
    add_output(parser, "one object")


def _warm_up(options: argparse.Namespace) -> int:
    """Compile the kernels that are not cached yet."""
    began = time.monotonic()
    from tqdm import tqdm

    from pyspark_kafkalog.record.kernels.cache import cache_directories, load_all_kernels

    with tqdm(desc="compiling kernels", unit="kernel", file=sys.stderr, disable=None, leave=False) as bar:
        for bar.n, bar.total in load_all_kernels():
            bar.refresh()
    kept_in = [str(directory) for directory in cache_directories() if any(directory.glob("*.nbi"))]
    seconds = time.monotonic() - began
    tree = {"kernels": bar.total, "directories": kept_in, "seconds": round(seconds, 1)}
    output_of(options).show(tree, lambda each: each, _warm_up_text)
    return 0 if kept_in else 1


def _warm_up_text(tree: Tree) -> str:
    kernels, seconds = tree["kernels"], tree["seconds"]
    if not tree["directories"]:
        return (
            f"compiled {kernels} kernels in {seconds:.1f} s, but found no writable directory to store "
            "them in: set NUMBA_CACHE_DIR to one\n"
        )
    return f"{kernels} kernels are ready in {', '.join(tree['directories'])} ({seconds:.1f} s)\n"


COMMANDS: Final = {
    "completion": Command(_COMPLETION_HELP, _add_completion, _print_completion),
    "warm-up": Command(_WARM_UP_HELP, _add_warm_up, _warm_up),
}
