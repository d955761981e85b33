"""The command line as a whole: help, suggestions, completion and version, with few modules loaded."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest

from pyspark_kafkalog.log_dir import LogDir
from pyspark_kafkalog.tools.main import COMMANDS, command_parser, main
from pyspark_kafkalog.version import __version__

NAMES = [name for group in COMMANDS.values() for name in group]
#: Each takes longer to load than the start of everything else together.
HEAVY = ("numba", "pandas", "pyarrow", "pyspark", "llvmlite", "rich")
#: Takes a third of the start of everything else: for commands that read many records or change some.
NUMPY = "numpy"
_SHOW_LOADED = (
    "import sys\n"
    "from pyspark_kafkalog.tools.main import main\n"
    "try:\n"
    "    code = main(sys.argv[1:])\n"
    "except SystemExit as exited:\n"
    "    code = exited.code\n"
    "assert not code, code\n"
    "print('\\n' + ' '.join(sys.modules))\n"
)
#: Prints the modules with a class that `dataclasses` itself has made, and the number of methods that were compiled.
_SHOW_COMPILED = (
    "import dataclasses\n"
    "at_once, late = set(), []\n"
    "usual = dataclasses.dataclass\n"
    "def counted(cls=None, /, **options):\n"
    "    if cls is None:\n"
    "        return lambda cls: counted(cls, **options)\n"
    "    at_once.update({cls.__module__} if 'init' not in options else ())\n"
    "    return usual(cls, **options)\n"
    "dataclasses.dataclass = counted\n"
    "from pyspark_kafkalog import values\n"
    "compiled = values._compiled\n"
    "values._compiled = lambda *method: late.append(method) or compiled(*method)\n"
    f"{_SHOW_LOADED}"
    "print(*at_once, len(late))\n"
)


def loaded(*arguments: str) -> set[str]:
    done = subprocess.run([sys.executable, "-c", _SHOW_LOADED, *arguments], capture_output=True, text=True, check=True)
    return {name.partition(".")[0] for name in done.stdout.splitlines()[-1].split()}


@pytest.mark.parametrize("name", NAMES)
def test_help_has_example_and_short_lines(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    parser = command_parser(name)
    assert re.search(rf"  kafkalog {name}( |$)", parser.format_help().replace('eval "$(', "  "), re.MULTILINE)
    assert all(len(line) <= 120 for line in (parser.description or "").splitlines())


def test_help_of_each_command_loads_no_heavy_modules() -> None:
    script = (
        "import sys\nfrom pyspark_kafkalog.tools.main import COMMANDS, command_parser\n"
        "for group in COMMANDS.values():\n    for name in group:\n        command_parser(name).format_help()\n"
        "print(*sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert not {name.partition(".")[0] for name in done.stdout.split()} & {*HEAVY, "argcomplete"}


@pytest.mark.slow
def test_quick_commands_load_no_heavy_modules(tmp_path: Path) -> None:
    log_dir = LogDir.create(tmp_path / "root")
    log_dir.append("t", pa.table({"value": ["x"]}))
    log_dir.group("g").commit({("t", 0): 1})
    path = ("--path", str(tmp_path / "root"))
    assert not loaded("--help") & {*HEAVY, NUMPY, "concurrent"}  # threads: of file systems, not of texts
    for arguments in (
        ("topics", *path, "--list"),
        ("topics", *path, "--describe"),
        ("configs", *path, "--describe", "--topic", "t"),
        ("get-offsets", *path, "--time", "0"),
        ("acls", *path, "--list"),
        ("metadata-quorum", *path, "describe", "--status"),
        ("history", *path),
        ("consumer-groups", *path, "--list"),
        ("consumer-groups", *path, "--describe", "--group", "g"),
        ("log-dirs", *path, "--describe"),
        ("du", *path),
        ("transactions", *path, "list"),
    ):
        assert not loaded(*arguments) & {*HEAVY, NUMPY}, arguments


@pytest.mark.parametrize(
    ("arguments", "modules_max", "compiled_max"),
    [(["--help"], 25, 1), (["topics", "--list"], 100, 40), (["get-offsets"], 100, 40)],
)
def test_short_command_compiles_few_methods_of_few_modules(
    arguments: list[str], modules_max: int, compiled_max: int, tmp_path: Path
) -> None:
    LogDir.create(tmp_path / "root").create_topic("t")
    environment = {**os.environ, "KAFKALOG_PATH": str(tmp_path / "root")}
    command = [sys.executable, "-c", _SHOW_COMPILED, *arguments]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    *_, modules, counts = done.stdout.splitlines()
    *at_once, compiled = counts.split()
    assert [name for name in at_once if name.startswith("pyspark_kafkalog.")] == ["pyspark_kafkalog.version"]
    assert sum(name.startswith("pyspark_kafkalog") for name in modules.split()) <= modules_max
    assert int(compiled) <= compiled_max


def test_help_lists_all_commands_in_groups(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exited:
        main(["--help"])
    assert exited.value.code == 0
    lines = capsys.readouterr().out.splitlines()
    for group, commands in COMMANDS.items():
        at = lines.index(f"{group}:")
        assert [line.split()[0] for line in lines[at + 1 : at + 1 + len(commands)]] == list(commands)


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("topic", "topics"),
        ("dus", "du"),
        ("acl", "acls"),
        ("vrfy", "verify"),
        ("offsets", "get-offsets"),
        ("clean", "log-cleaner"),
        ("produce", "console-producer"),
    ],
)
def test_mistyped_command_is_answered_with_suggestion(
    typed: str, meant: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as exited:
        main([typed])
    assert exited.value.code == 2
    assert f"did you mean {meant}?" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("topics --pth x --list", "kafkalog topics: unknown option --pth: did you mean --path?"),
        ("topics --tpic=t --crate", "kafkalog topics: unknown option --tpic: did you mean --topic?"),
        ("topics --path x -list", "kafkalog topics: unknown option -list: did you mean --list?"),
        ("transactions lst --topc t", "kafkalog transactions: unknown option --topc: did you mean --topic?"),
        ("topics --xyzzy", "kafkalog topics: unknown option --xyzzy: kafkalog topics --help lists all"),
        ("transactions lst", "kafkalog transactions: argument COMMAND: invalid choice: 'lst': did you mean list? ("),
        ("du --by patition", "kafkalog du: argument --by: invalid choice: 'patition': did you mean partition? ("),
        ("--vrsion", "kafkalog: unknown option --vrsion: did you mean --version?"),
        ("--path x topics", "kafkalog: unknown option --path: options follow the name of a command, "),
    ],
)
def test_mistake_is_named_with_guess_before_anything_that_is_missing(
    line: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as exited:
        main(line.split())
    captured = capsys.readouterr()
    assert (exited.value.code, captured.out) == (2, "")
    assert captured.err.startswith(said)
    assert captured.err.count("\n") == 1


def test_value_of_short_option_and_text_after_two_dashes_are_no_options(tmp_path: Path) -> None:
    LogDir.create(tmp_path / "root")
    assert main(["report", f"-o{tmp_path / 'page.html'}", "--", str(tmp_path / "root")]) == 0
    assert (tmp_path / "page.html").exists()


@pytest.mark.parametrize("name", NAMES)
def test_wrong_option_of_every_command_exits_with_2(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exited:
        main([name, "--no-such-option"])
    assert exited.value.code == 2


@pytest.mark.parametrize(
    "line",
    [
        "topics --path ROOT --delete",
        "serve --path ROOT --listen nowhere",
        "metadata-quorum --path ROOT describe",
        "get-offsets --path ROOT --time never",
        "dump-log",
    ],
)
def test_options_that_a_command_refuses_exit_with_2_and_a_missing_topic_with_1(
    line: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    LogDir.create(tmp_path / "root")
    assert main(line.replace("ROOT", str(tmp_path / "root")).split()) == 2
    assert main(["topics", "--path", str(tmp_path / "root"), "--describe", "--topic", "t"]) == 1


def test_topic_is_a_name_or_a_pattern_in_every_command_that_selects_topics(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log_dir = LogDir.create(tmp_path / "root")
    for name in ("a.b", "axb", "other"):
        log_dir.create_topic(name, partitions=1)
        log_dir.append(name, pa.table({"value": [name]}))
        log_dir.group("g").commit({(name, 0): 1})

    def printed(line: str) -> str:
        command, *arguments = line.split()
        assert main([command, "--path", str(tmp_path / "root"), *arguments]) == 0, capsys.readouterr().err
        return capsys.readouterr().out

    for line in (
        "console-consumer --from-beginning --timeout-ms 0 --topic",
        "consumer-groups --reset-offsets --group g --to-earliest --export --topic",
        "verify --local --output json --topic",
        "merge-segments --local --output json --topic",
        "history --topic",
        "topics --list --topic",
    ):
        for text, selected in (("a.b", {"a.b"}), ("a.b|ot.*", {"a.b", "axb", "other"}), ("a.b,axb", {"a.b", "axb"})):
            assert {name for name in ("a.b", "axb", "other") if name in printed(f"{line} {text}")} == selected, line


def test_command_line_without_command_prints_help_and_exits_with_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    captured = capsys.readouterr()
    assert captured.out.startswith("usage: kafkalog")
    assert "consumer-groups" in captured.out
    assert captured.err == ""


def test_variable_stands_for_path_that_is_not_given(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("one", "other"):
        LogDir.create(tmp_path / name).create_topic(name, partitions=1)
    monkeypatch.setenv("KAFKALOG_PATH", str(tmp_path / "one"))
    for line in ("topics --list", "get-offsets", f"topics --list --path {tmp_path / 'other'}", "transactions list"):
        assert main(line.split()) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[:3] == ["one", "one:0:0", "other"]
    assert main(["report", str(tmp_path / "other"), "-o", str(tmp_path / "page.html")]) == 0
    assert main(["dump-log", "--files", str(tmp_path / "none.log")]) == 1  # and no word of --path
    assert "none.log" in capsys.readouterr().err
    assert "(default: $KAFKALOG_PATH)" in command_parser("topics").format_help()
    monkeypatch.setenv("KAFKALOG_PATH", "")
    with pytest.raises(SystemExit):
        main(["topics", "--list"])
    assert "are required: --path" in capsys.readouterr().err


def test_path_may_precede_or_follow_subcommand(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    LogDir.create(tmp_path / "root")
    for arguments in (("--path", str(tmp_path / "root"), "list"), ("list", "--path", str(tmp_path / "root"))):
        assert main(["transactions", *arguments]) == 0
    with pytest.raises(SystemExit) as exited:
        main(["transactions", "list"])
    assert exited.value.code == 2
    assert capsys.readouterr().err == "kafkalog transactions: the following arguments are required: --path\n"


def complete(line: str, tmp_path: Path) -> list[str]:
    """What a shell would be offered at the end of `line`."""
    answer = tmp_path / "answer"
    answer.write_text("")
    asked = {"_ARGCOMPLETE": "1", "_ARGCOMPLETE_IFS": "\n", "COMP_LINE": line, "COMP_POINT": str(len(line))}
    environment = {**os.environ, **asked, "_ARGCOMPLETE_STDOUT_FILENAME": str(answer)}
    subprocess.run([sys.executable, "-m", "pyspark_kafkalog"], env=environment, check=True)
    return [each.strip() for each in answer.read_text().splitlines()]


def test_completion_offers_topics_of_the_directory_in_the_variable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    LogDir.create(tmp_path / "root").create_topic("orders", partitions=1)
    monkeypatch.setenv("KAFKALOG_PATH", str(tmp_path / "root"))
    assert complete("kafkalog topics --topic ord", tmp_path) == ["orders"]
    assert complete("kafkalog serve --sta", tmp_path) == []  # earlier names are not offered


def test_completion_offers_commands_options_and_topics(tmp_path: Path) -> None:
    log_dir = LogDir.create(tmp_path / "root")
    for name in ("orders", "orders.eu", "returns"):
        log_dir.create_topic(name, partitions=1)
    root = tmp_path / "root"
    assert complete("kafkalog console-", tmp_path) == ["console-consumer", "console-producer"]
    assert complete("kafkalog topics --part", tmp_path) == ["--partitions"]
    assert complete(f"kafkalog topics --path {root} --topic ord", tmp_path) == ["orders", "orders.eu"]
    assert complete(f"kafkalog transactions --path {root} abort --topic r", tmp_path) == ["returns"]
    assert complete(f"kafkalog topics --path {root / 'nope'} --topic r", tmp_path) == []
    assert complete("kafkalog nope --", tmp_path) == []
    assert complete("kafkalog du --by s", tmp_path) == ["segment"]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_code_is_valid_in_shell(shell: str, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["completion", shell]) == 0
    code = capsys.readouterr().out
    assert "kafkalog" in code
    if shutil.which(shell) is not None:
        (tmp_path / "code").write_text(code)
        subprocess.run([shell, "-n", str(tmp_path / "code")], check=True)


def test_version_option_prints_package_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        main(["--version"])
    assert capsys.readouterr().out == f"kafkalog {__version__}\n"


@pytest.mark.parametrize("url", ["hdfs://node/log", "s3:/bucket/log", "https://host/log", "file://host/log"])
def test_path_of_another_scheme_is_refused_and_no_directory_gets_its_name(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit):
        main(["topics", "--path", url, "--create", "--topic", "t"])
    assert "argument --path: expected" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_path_may_be_a_file_url(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["topics", "--path", (tmp_path / "root").as_uri(), "--create", "--topic", "t"]) == 0
    assert LogDir.open(tmp_path / "root").topics() == ("t",)


def test_export_to_an_object_store_is_refused_before_anything_is_read(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["export", "--path", "missing", "--to", "s3://bucket/log"])
    assert "argument --to: expected a path on a file system, found s3://bucket/log" in capsys.readouterr().err
