"""Values of arguments are checked where they enter: a wrong one ends in one sentence that says what is expected."""

from __future__ import annotations

import inspect
import re
import typing
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from pyspark_kafkalog import LogDir
from pyspark_kafkalog.config.definitions import LowerVersion
from pyspark_kafkalog.delta.topic_to_delta import BadRecords, TopicToDelta
from pyspark_kafkalog.errors import InvalidOptionError, KafkalogError
from pyspark_kafkalog.groups.group import Group
from pyspark_kafkalog.notebook.logs import PartitionLog
from pyspark_kafkalog.root.snapshot import IsolationLevel
from pyspark_kafkalog.root.writes import WriteTransaction
from pyspark_kafkalog.storage.filesystem import FlushMode

ROWS = pa.table({"key": ["a", "b"], "value": ["1", "2"]})
WORDS = {"IsolationLevel": IsolationLevel, "FlushMode": FlushMode, "LowerVersion": LowerVersion}


@pytest.fixture(scope="module")
def log_dir(tmp_path_factory: pytest.TempPathFactory) -> LogDir:
    log_dir = LogDir.create(tmp_path_factory.mktemp("arguments") / "log")
    log_dir.create_topic("t", partitions=2)
    log_dir.append("t", ROWS, flush="os")
    log_dir.refresh()
    return log_dir


def calls(log_dir: LogDir) -> dict[tuple[str, str], Callable[[Any], object]]:
    """A call for each argument of the public methods that takes one of some words."""
    group = log_dir.group("g")
    log = log_dir["t", 0]
    return {
        ("read", "isolation"): lambda word: log_dir.read("t", isolation=word),
        ("append", "flush"): lambda word: log_dir.append("t", ROWS, flush=word),
        ("append", "lower_version"): lambda word: log_dir.append(
            "t", ROWS, transactional_id="x", transaction_version=1, lower_version=word
        ),
        ("commit_staged", "flush"): lambda word: log_dir.commit_staged((), flush=word),
        ("commit", "flush"): lambda word: group.commit({("t", 0): 1}, flush=word),
        ("reset", "target"): group.reset,
        ("PartitionLog", "isolation"): lambda word: PartitionLog(log.root, "t", 0, isolation=word).count(),
        ("WriteTransaction", "lower_version"): lambda word: WriteTransaction("x", 1, "one", word),
        ("BadRecords", "policy"): BadRecords,
    }


def test_each_argument_that_takes_one_of_some_words_refuses_others_and_guesses(log_dir: LogDir) -> None:
    known = calls(log_dir)
    for owner in (LogDir, Group):
        for name, method in inspect.getmembers(owner, inspect.isfunction):
            for parameter in inspect.signature(method).parameters.values():
                text = str(parameter.annotation)
                if not name.startswith("_") and (text in WORDS or "Literal[" in text):
                    assert (name, parameter.name) in known, "add a call, and a check in the method"
    for (name, argument), call in known.items():
        for word in ("nonsense", 1.5, True, b"fsync", ("fsync",)):
            with pytest.raises(InvalidOptionError, match="expected"):
                call(word)
        assert argument, name


@pytest.mark.parametrize(
    ("annotation", "wrong", "meant"),
    [(IsolationLevel, "committed", "read_committed"), (FlushMode, "fsycn", "fsync"), (LowerVersion, "Skip", "skip")],
)
def test_guess_comes_first_and_the_list_last(log_dir: LogDir, annotation: Any, wrong: str, meant: str) -> None:
    argument = {IsolationLevel: ("read", "isolation"), FlushMode: ("append", "flush")}.get(
        annotation, ("append", "lower_version")
    )
    words = ", ".join(typing.get_args(annotation))
    with pytest.raises(InvalidOptionError, match=rf"is '{wrong}': did you mean '{meant}'\? expected one of {words}$"):
        calls(log_dir)[argument](wrong)


WRONG: dict[str, Callable[[LogDir], object]] = {
    "read of an unknown column": lambda own: own.read("t", columns=["valu"]),
    "columns that are a text": lambda own: own.read("t", columns="value"),
    "columns that are numbers": lambda own: own.read("t", columns=[1]),  # type: ignore[list-item]
    "read of a partition as text": lambda own: own.read("t", partition="0"),  # type: ignore[arg-type]
    "read of partition True": lambda own: own.read("t", partition=True),
    "read of partition -1": lambda own: own.read("t", partition=-1),
    "read from -1": lambda own: own.read("t", partition=0, start_offset=-1),
    "read to -5": lambda own: own.read("t", partition=0, end_offset=-5),
    "read to 1.5": lambda own: own.read("t", partition=0, end_offset=1.5),  # type: ignore[arg-type]
    "read of a list of topics": lambda own: own.read(["t"]),  # type: ignore[arg-type]
    "append of a number": lambda own: own.append("t", [{"value": 1}]),
    "append of columns": lambda own: own.append("t", {"value": ["1"]}),  # type: ignore[arg-type]
    "append of a frame with numbers": lambda own: own.append("t", ROWS.to_pandas().assign(value=1)),
    "append of nothing": lambda own: own.append("t", None),  # type: ignore[arg-type]
    "append with an unknown codec": lambda own: own.append("t", ROWS, compression_type="zstdd"),
    "append to partition -1": lambda own: own.append("t", ROWS, partition=-1),
    "append to a partition as text": lambda own: own.append("t", ROWS, partition="0"),  # type: ignore[arg-type]
    "version as text": lambda own: own.append(
        "t",
        ROWS,
        transactional_id="x",
        transaction_version="1",  # type: ignore[arg-type]
    ),
    "topic that is a number": lambda own: own.append(5, ROWS),  # type: ignore[arg-type]
    "partitions as text": lambda own: own.create_topic("n", partitions="4"),  # type: ignore[arg-type]
    "partitions of 1.5": lambda own: own.create_topic("n", partitions=1.5),  # type: ignore[arg-type]
    "configuration that is a number": lambda own: own.create_topic(
        "n",
        configs={"segment.bytes": 1 << 20},  # type: ignore[dict-item]
    ),
    "configurations that are a list": lambda own: own.create_topic("n", configs=["a=b"]),  # type: ignore[arg-type]
    "change to a boolean": lambda own: own.alter_topic("t", add={"preallocate": True}),  # type: ignore[dict-item]
    "delete of a text": lambda own: own.alter_topic("t", delete="segment.bytes"),
    "broker-level number": lambda own: own.alter_broker_configs(add={"num.partitions": 3}),  # type: ignore[dict-item]
    "total as text": lambda own: own.add_partitions("t", "5"),  # type: ignore[arg-type]
    "three in brackets": lambda own: own["t", 0, 1],  # type: ignore[index]
    "point in time that is a number": lambda own: own["t", 0].offset_at(5),  # type: ignore[arg-type]
    "slice between texts": lambda own: own["t", 0].between("a", "b"),  # type: ignore[arg-type]
    "history of -1 commits": lambda own: own.history(limit=-1),
    "group that is a number": lambda own: own.group(5),  # type: ignore[arg-type]
    "committed text": lambda own: own.group("g").commit({("t", 0): "5"}),  # type: ignore[dict-item]
    "committed topic": lambda own: own.group("g").commit({"t": 5}),  # type: ignore[dict-item]
    "committed list": lambda own: own.group("g").commit([1]),  # type: ignore[arg-type]
    "committed -1": lambda own: own.group("g").commit({("t", 0): -1}),
    "reset to 1.5": lambda own: own.group("g").reset(1.5),  # type: ignore[arg-type]
    "offsets of a text": lambda own: own.group("g").fetch("t"),
    "lag of a text": lambda own: own.group("g").lag("t"),
    "principal that is a number": lambda own: LogDir.open(own.path, principal=5),  # type: ignore[arg-type]
    "store options that are a list": lambda own: LogDir.open(own.path, store_options=["a"]),  # type: ignore[arg-type]
}


@pytest.mark.parametrize("call", WRONG.values(), ids=WRONG)
def test_wrong_value_is_an_error_of_this_package_in_one_sentence(
    log_dir: LogDir, call: Callable[[LogDir], object]
) -> None:
    before = log_dir.version
    with pytest.raises(KafkalogError) as raised:
        call(log_dir)
    assert len(str(raised.value).splitlines()) == 1
    assert not re.search(r"Traceback|object has no attribute", str(raised.value))
    log_dir.refresh()
    assert log_dir.version == before


def test_unknown_mode_of_a_table_is_refused(tmp_path: Path) -> None:
    query = TopicToDelta(path="x", topic="t", table="y", checkpoint="z", mode="upsrt")  # type: ignore[arg-type]
    with pytest.raises(InvalidOptionError, match="did you mean 'upsert'"):
        query.start(None)  # type: ignore[arg-type]
