"""Runs the blocks of a page as a reader does who works it through: in order, in one place, with what came before.

Absolute paths of the page are below a directory of the test, and addresses are those of servers that it started. What
a page assumes (topics with records, a broker's disk) is in `prepared_home`: topics of four partitions, with records of
many shapes.
"""

from __future__ import annotations

import ast
import contextlib
import io
import logging
import re
import shlex
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pytest
from builders.tiered_fixtures import TieredFixture
from documented import PAGES, RUNNABLE, Block, blocks
from kafka_processes.server_processes import serving
from repository import DATA, REPOSITORY

from pyspark_kafkalog import LogDir
from pyspark_kafkalog.tools.main import main

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

PARTITIONS: Final = 4
#: Pages that write to Delta tables. Delta's catalog does not know tables of Python data sources, which others create.
_WITH_DELTA: Final = ("DELTA.md", "STREAMING.md")
_DISKS: Final = DATA / "broker-disks"
_PATHS: Final = re.compile(r"(?<![\w/.:>])/(?=(?:tmp|data|var|etc|backup|copies|mnt|opt|srv)/)")
#: Commands that run until they are stopped, and the option with which they end by themselves.
_ENDED_BY: Final = {"follow": "--once", "metrics": "--once"}
#: What differs from run to run, in the order in which it is replaced.
_CHANGING: Final = (
    (r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?Z", "<time>"),
    (r"\b[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}\b|\b[0-9a-f]{32}\b", "<uuid>"),
    # With a digit, or as no name is written: names of 22 letters are activeFirstTimestampMs and PARTITION_STATE_RECORD.
    (r"(?<![\w-])(?=[\w-]*(?:\d|[A-Z]{2}[\w-]*[a-z]|[a-z][\w-]*[A-Z]{2}))[\w-]{22}(?![\w-])", "<id>"),
    (r"-\d{13}\.log", "-<ms>.log"),
    (r"\b\d+\.\d+ s\b", "<seconds>"),
    (r"\(\d+ \w+ ago\)", "<ago>"),
    (r"[ \t]+", " "),
)


def prepared_home(home: Path, *, json_only: bool = False) -> Path:
    """What the pages assume: `/data/log` with topics, a broker's disk, and the disks of three brokers.

    `json_only`: all values are JSON, and all keys numbers.
    """
    log_dir = LogDir.create(home / "data" / "log")
    for topic in ("orders", "copies", "customers", "payments", "left", "right"):
        log_dir.create_topic(topic, partitions=PARTITIONS)
    log_dir.create_topic("users", partitions=PARTITIONS, configs={"cleanup.policy": "compact"})
    for topic in ("orders", "customers", "payments", "users"):
        for partition in range(PARTITIONS):
            log_dir.append(topic, _records(topic, partition, json_only=json_only), partition=partition)
    log_dir.create_topic("topic1", partitions=2)
    log_dir.append("topic1", pa.table({"key": ["a"] * 30, "value": ["1"] * 30}), partition=0)
    log_dir.group("billing").commit({("orders", 0): 3, ("orders", 2): 1})
    shutil.copytree(_DISKS / "cluster" / "2", home / "var" / "lib" / "kafka" / "data")
    for node in ("1", "2", "3"):
        shutil.copytree(_DISKS / "cluster" / node, home / "copies" / f"broker{node}")
    (home / "etc" / "kafka").mkdir(parents=True)
    (home / "etc" / "kafka" / "server.properties").write_text("log.retention.hours=48\n")
    (home / "offsets.json").write_text(
        '{"partitions": [{"topic": "orders", "partition": 0, "offset": 2}], "version": 1}'
    )
    return home


def _records(topic: str, partition: int, *, json_only: bool) -> pa.Table:
    """Records with JSON, without key or value, empty, not text, with headers, and of different times."""
    values: list[bytes | None] = [f'{{"id": {n}, "name": "{topic} {n}", "amount": {n}.5}}'.encode() for n in range(8)]
    keys: list[bytes | None] = [f"{'' if json_only else 'customer-'}{partition * 8 + n}".encode() for n in range(8)]
    if topic == "orders" and not json_only:
        values[1:4] = [None, b"", b"\xff\xfe"]
        keys[4] = None
    times = [1_767_225_600_000 + 3_600_000 * n - 1000 * partition for n in range(8)]
    headers = [[("from", b"a")] if n % 2 else None for n in range(8)]
    header_type = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    return pa.table(
        {
            "key": pa.array(keys, pa.binary()),
            "value": pa.array(values, pa.binary()),
            "timestamp": pa.array(times, pa.timestamp("ms")),
            "headers": pa.array(
                [None if each is None else [{"key": k, "value": v} for k, v in each] for each in headers], header_type
            ),
        }
    )


def pages_to_run(*, delta: bool) -> list[str]:
    """The names of the pages with blocks to run, in a session with Delta's catalog or in one without."""
    found = [page for page in PAGES if any(b.language in RUNNABLE and b.not_run is None for b in blocks(page))]
    return [page.name for page in found if (page.name in _WITH_DELTA) == delta]


@dataclass
class Reader:
    """Works one page through. `session` gives the Spark session, which is started by the first block that needs it."""

    home: Path
    capsys: pytest.CaptureFixture[str]
    session: Callable[[], SparkSession]
    #: Texts of the page, such as addresses, and what stands for them here.
    places: dict[str, str] = field(default_factory=dict)
    names: dict[str, Any] = field(default_factory=dict)
    #: What the blocks of Python printed.
    printed: list[str] = field(default_factory=list)
    _servers: ExitStack = field(default_factory=ExitStack)
    _environment: pytest.MonkeyPatch = field(default_factory=pytest.MonkeyPatch)

    def work_through(self, name: str) -> None:
        """Run all blocks of a page that have no reason not to."""
        (page,) = (page for page in PAGES if page.name == name)
        with pytest.MonkeyPatch.context() as patch:
            patch.chdir(self.home)
            # A command is a process without a session.
            patch.setattr("pyspark_kafkalog.tools.maintenance.jobs.has_session", lambda: False)
            for block in blocks(page):
                if block.not_run is None:
                    self.run(block)

    def close(self) -> None:
        """End servers and queries, and drop what the page has left in the session."""
        self._servers.close()
        self._environment.undo()
        spark = self.names.get("spark")
        if spark is None:
            return
        for query in spark.streams.active:
            query.stop()
        for name in {table.name for table in spark.catalog.listTables()}:
            spark.catalog.dropTempView(name)
            spark.sql(f"DROP TABLE IF EXISTS {name}")
        spark.conf.unset("spark.sql.python.filterPushdown.enabled")

    def run(self, block: Block) -> None:
        """Run one block. A failure names its page and line."""
        runs: dict[str, Callable[[Block], None]] = {
            "python": self._run_python,
            "diff": self._run_python,
            "sql": self._run_sql,
            "sh": self._run_commands,
            "console": self._run_commands,
        }
        if block.language not in runs:
            return
        for line, happen in MEANWHILE.items():
            if block.text.startswith(line):
                happen(self)
        try:
            runs[block.language](block)
        except (Exception, SystemExit) as error:
            raise AssertionError(f"{block}: {type(error).__name__}: {error}") from error

    def kafkalog(self, *arguments: str) -> None:
        """Run a command with paths of the pages."""
        self._run_kafkalog([self.here(each) for each in arguments])

    def here(self, text: str) -> str:
        """`text` with this test's places, and without a wait for records that never come."""
        for name, place in self.places.items():
            text = text.replace(name, place)
        text = _PATHS.sub(f"{self.home}/", text)
        return text.replace("timeout_seconds=60", "timeout_seconds=0")

    def _run_python(self, block: Block) -> None:
        code = block.python()
        if re.search(r"\bspark\b", code) and "spark" not in self.names:
            self.names["spark"] = self.session()
        before = dict(self.names)
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            for statement in ast.parse(self.here(code), str(block)).body:
                if isinstance(statement, ast.Expr):
                    expression = compile(ast.Expression(statement.value), str(block), "eval")
                    self._use(eval(expression, self.names))
                else:
                    exec(compile(ast.Module([statement], []), str(block), "exec"), self.names)
        self.printed.append(printed.getvalue())
        for name, value in self.names.items():
            if before.get(name) is value:
                continue
            if not hasattr(value, "isStreaming") or ".load(" in code:
                self._use(value)
            if getattr(value, "isStreaming", False) and "writeStream" not in code:
                self._use(value.writeStream.format("noop").trigger(availableNow=True).start())

    def _use(self, value: object) -> None:
        """Do with a value of a block what its reader does next: read the rows, let the query reach the end."""
        if hasattr(value, "processAllAvailable"):
            if value.isActive:
                value.processAllAvailable()
                value.stop()
            assert value.exception() is None
        elif hasattr(value, "isStreaming") and not value.isStreaming:
            _read(value)

    def _run_sql(self, block: Block) -> None:
        for statement in filter(str.strip, self.here(block.text).split(";")):
            self.session().sql(statement).collect()

    def _run_commands(self, block: Block) -> None:
        for line, shown in block.commands():
            (output, errors) = self._run_line(self.here(line))
            if block.language == "console":
                expected = [re.escape(each).replace(r"\.\.\.", ".*") for each in self._comparable(shown)]
                printed = [self._comparable(output + errors), self._comparable(errors + output)]
                are_equal = any(re.fullmatch("\n".join(expected), "\n".join(each)) for each in printed)
                assert are_equal, f"$ {line}\nshown: {expected}\nprinted: {printed[0]}"

    def _run_line(self, line: str) -> tuple[str, str]:
        """Run a command line; returns what it prints and what it says on standard error."""
        (line, *pipe) = re.split(r" \| (?=\w)", line, maxsplit=1)
        words = shlex.split(line, comments=True)
        target = None
        if ">" in words:
            at = words.index(">")
            (words, target) = (words[:at], words[at + 1])
        with pytest.MonkeyPatch.context() as patch:
            while re.match(r"[A-Z_]+=", words[0]):
                patch.setenv(*words.pop(0).split("=", 1))
            (output, errors) = self._run_program(words)
        if pipe and shutil.which(shlex.split(pipe[0])[0]):
            done = subprocess.run(["sh", "-c", pipe[0]], input=output, capture_output=True, text=True, check=True)
            output = done.stdout
        if target is not None:
            Path(target).write_text(output, encoding="utf-8")
            output = ""
        return output, errors

    def _run_program(self, words: list[str]) -> tuple[str, str]:
        (program, *arguments) = words
        if program == "kafkalog" and arguments[0] == "serve":
            self._serve(arguments[1:])
            return "", ""
        if program == "kafkalog":
            return self._run_kafkalog(arguments)
        if program.startswith("bin/"):
            done = subprocess.run(words, capture_output=True, text=True, cwd=self.home, check=True)
            return done.stdout, done.stderr
        if program == "spark-submit":
            job = next(at for at, word in enumerate(arguments) if word.startswith("jobs/"))
            source = (REPOSITORY / arguments[job]).read_text(encoding="utf-8")
            (command,) = re.findall(r'main\(\["([\w-]+)"', source)
            return self._run_kafkalog([command, *arguments[job + 1 :]])
        if program == "python":
            return self.printed[0], ""  # the file that the page has the reader save: its first block
        if program == "export":
            for name, _, value in (each.partition("=") for each in arguments):
                self._environment.setenv(name, value)
            return "", ""
        if program == "xxd":
            return _hex_dump(Path(arguments[0]).read_bytes()), ""
        raise AssertionError(f"{program} is not run here: say so before the block, <!-- not run: ... -->")

    def _run_kafkalog(self, arguments: list[str]) -> tuple[str, str]:
        ended_by = _ENDED_BY.get(arguments[0])
        if arguments[0] == "metrics" and "--metrics-listen" in arguments:
            del arguments[(at := arguments.index("--metrics-listen")) : at + 2]
        if ended_by is not None and ended_by not in arguments:
            arguments = [*arguments, ended_by]
        self.capsys.readouterr()
        with _logging_of_a_process():
            exit_code = main(arguments)
        printed = self.capsys.readouterr()
        assert exit_code == 0, f"kafkalog {shlex.join(arguments)}: exit code {exit_code}\n{printed.out}{printed.err}"
        return printed.out, printed.err

    def _serve(self, arguments: list[str]) -> None:
        """Start a server in place of the one before it, as long as the page lasts."""
        self._servers.close()
        listen = arguments.index("--listen")
        address = arguments[listen + 1]
        self._servers.enter_context(serving(None, *arguments[:listen], *arguments[listen + 2 :], listen=address))

    def _comparable(self, text: str) -> list[str]:
        """The lines of an output, without what differs from run to run."""
        text = text.replace(f"{self.home}/", "/")
        for pattern, name in _CHANGING:
            text = re.sub(pattern, name, text)
        return [line.strip() for line in text.splitlines() if line.strip()]


def _follow_once(reader: Reader) -> None:
    reader.kafkalog("follow", "--from", "/data/log", "--path", "/backup/log", "--once")


def _fill_to_100(reader: Reader) -> None:
    _append(reader, "data", 100 - LogDir.open(reader.home / "data" / "log").partition("orders", 0).high_watermark)


def _let_both_take_writes(reader: Reader) -> None:
    _append(reader, "data", 2)
    _append(reader, "backup", 10)


def _batch_of_rows(reader: Reader) -> None:
    reader.names["df"] = reader.names["spark"].range(5).selectExpr("CAST(id AS STRING) key", "CAST(id AS STRING) value")


def _find_an_old_disk(reader: Reader) -> None:
    shutil.copytree(TieredFixture("tiered").log_dir, reader.home / "mnt" / "old-disk")
    shutil.copytree(TieredFixture("tiered").remote, reader.home / "mnt" / "tier")
    reader.places["s3://bucket/tiered"] = "/mnt/tier"


def _append(reader: Reader, place: str, count: int) -> None:
    table = pa.table({"value": [f"{place[0]}{n:02}" for n in range(count)]})
    LogDir.open(reader.home / place / "log").append("orders", table, partition=0)


#: What happens before a block that begins with this line, which its page tells of or takes for granted.
MEANWHILE: Final[dict[str, Callable[[Reader], None]]] = {
    "kafkalog promote --path /backup/log": _follow_once,
    "kafkalog follow --from /data/log --path /backup/log --once": _fill_to_100,
    "$ kafkalog follow --from /backup/log --path /data/log --demote": _let_both_take_writes,
    "kafkalog export --path /mnt/old-disk": _find_an_old_disk,
    ' (df.selectExpr("CAST(key AS STRING)"': _batch_of_rows,
}


@contextlib.contextmanager
def _logging_of_a_process() -> Iterator[None]:
    """Log to nowhere, until the command sets its log up. Other tests log as before."""
    root, package = logging.getLogger(), logging.getLogger("pyspark_kafkalog")
    handlers, levels = root.handlers, (root.level, package.level)
    root.handlers = []
    try:
        yield
    finally:
        root.handlers = handlers
        for logger, level in zip((root, package), levels, strict=True):
            logger.setLevel(level)


def _read(frame: DataFrame) -> None:
    frame.write.format("noop").mode("overwrite").save()


def _hex_dump(data: bytes) -> str:
    """What xxd prints."""
    lines = []
    for at in range(0, len(data), 16):
        row = data[at : at + 16]
        pairs = " ".join(row[n : n + 2].hex() for n in range(0, len(row), 2))
        lines.append(f"{at:08x}: {pairs:<39}  {''.join(chr(each) if 32 <= each < 127 else '.' for each in row)}")
    return "\n".join(lines) + "\n"
