"""Runs a `kafkalog` command in this process and catches what it prints."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pyspark_kafkalog.object_store.location import RootPath
from pyspark_kafkalog.tools.main import main


class Command:
    """`kafkalog NAME --path ROOT ...`: `command("--list")` gives what it printed, if nothing went wrong."""

    def __init__(self, name: str, root: RootPath, capsys: pytest.CaptureFixture[str]) -> None:
        self.name = name
        self.root = root
        self._capsys = capsys

    def other(self, name: str) -> Command:
        """Another command, on the same root."""
        return Command(name, self.root, self._capsys)

    def __call__(self, *arguments: str) -> str:
        exit_code, out, err = self.try_to(*arguments)
        assert (exit_code, err) == (0, "")
        return out

    def json(self, *arguments: str) -> list[Any]:
        """The objects that it prints with `--output json`, one a line."""
        return [json.loads(line) for line in self(*arguments, "--output", "json").splitlines()]

    def try_to(self, *arguments: str) -> tuple[int, str, str]:
        """Exit code, stdout and stderr."""
        self._capsys.readouterr()
        try:
            exit_code = main([self.name, "--path", str(self.root), *arguments])
        except SystemExit as exited:
            exit_code = int(str(exited.code))
        captured = self._capsys.readouterr()
        return exit_code, captured.out, captured.err

    def read(self, stdin: Path, *arguments: str) -> tuple[int, str, str]:
        """`try_to` with a file as standard input."""
        with pytest.MonkeyPatch.context() as patch, stdin.open() as text:
            patch.setattr("sys.stdin", text)
            return self.try_to(*arguments)

    def fails(self, *arguments: str) -> str:
        """What it says, in one line, when it refuses and prints nothing else; wrong options exit with 2."""
        exit_code, out, err = self.try_to(*arguments)
        assert exit_code in (1, 2)
        assert out == ""
        assert err.startswith(f"kafkalog {self.name}: ")
        assert err.count("\n") == 1
        return err
