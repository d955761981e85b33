"""What mypy, and so an editor, knows about a program of a user: its mistakes, and the types of results."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from repository import REPOSITORY

#: Stand in for the types of these packages, which take as long to check as this one.
STUBS = {
    "pyarrow": "from typing import Any\nclass Table: ...\nclass RecordBatch: ...\nclass RecordBatchReader: ...\n"
    "def __getattr__(name: str) -> Any: ...\n",
    "pandas": "class DataFrame:\n    def __arrow_c_stream__(self, requested_schema: object = None) -> object: ...\n",
    "polars": "class DataFrame: ...\n",
    "duckdb": "class DuckDBPyRelation: ...\nclass DuckDBPyConnection: ...\n",
    "matplotlib.axes": "class Axes: ...\n",
}
PROGRAM = """
import pandas as pd
import pyarrow as pa
from pyspark_kafkalog import LogDir, errors, serve

log_dir = LogDir.open("/data/log")
log = log_dir["orders", 0]
reveal_type(log_dir.read("orders"))
reveal_type(log_dir["orders"].to_arrow(["key"], text=True))
reveal_type(log[-10:].to_pandas(text=True))
reveal_type(log["2026-01-15":].to_polars())
reveal_type(log.to_duckdb())
reveal_type([batch for batch in log.to_batches()])
reveal_type([record for record in log])
reveal_type([each for each in log_dir["orders"]])
reveal_type(log[5])
reveal_type(log_dir.append("orders", pd.DataFrame()).partitions[0].records)
reveal_type(log_dir.append("orders", [{"key": "ann", "value": b"1"}]).is_duplicate)
reveal_type(log_dir.retain("orders", now="2026-01-15")[0].bytes_dropped)
reveal_type(log_dir.verify().findings)
reveal_type(log_dir.export("/backup/log")[0].high_watermark)
reveal_type(log_dir.report().html)
reveal_type(log_dir.plot("orders", of="bytes"))
reveal_type(serve("/data/log").bootstrap)
"""
TYPES = [
    "pyarrow.Table",
    "pyarrow.Table",
    "pandas.DataFrame",
    "polars.DataFrame",
    "duckdb.DuckDBPyRelation",
    "list[pyarrow.RecordBatch]",
    "list[dict[str, Any]]",
    "list[pyspark_kafkalog.notebook.logs.PartitionLog]",
    "dict[str, Any]",
    "int",
    "bool",
    "int",
    "typing.Sequence[pyspark_kafkalog.maintenance.verify.findings.Finding]",
    "int",
    "str",
    "matplotlib.axes.Axes",
    "str",
]
MISTAKES = {
    'log_dir.append("orders", 5)': 'Argument 2 to "append" of "LogDir" has incompatible type "int"',
    'log_dir.append("orders", [5])': 'List item 0 has incompatible type "int"',
    'log_dir.read("orders", isolation="read")': 'Argument "isolation" to "read" of "LogDir"',
    'LogDir.open("/data/log", clock=None)': 'Unexpected keyword argument "clock" for "open" of "LogDir"',
    'LogDir.create("/data/log", fs=None)': 'Unexpected keyword argument "fs" for "create" of "LogDir"',
    'log_dir.plot(of="offsets")': 'Argument "of" to "plot" of "LogDir"',
}


@pytest.mark.slow
def test_program_of_a_user_is_checked_against_the_types_of_the_package(tmp_path: Path) -> None:
    for name, text in STUBS.items():
        stub = tmp_path / "stubs" / name.replace(".", "/") / "__init__.pyi"
        stub.parent.mkdir(parents=True)
        stub.write_text(text)
        (stub.parents[1] / "__init__.pyi").touch()
    (tmp_path / "program.py").write_text(PROGRAM + "\n".join(MISTAKES))
    mypy = [sys.executable, "-m", "mypy", "--strict", "--config-file=", "--no-site-packages", "--follow-imports=silent"]
    done = subprocess.run(
        [*mypy, "--cache-dir=cache", "program.py"],
        cwd=tmp_path,
        env={"MYPYPATH": f"{tmp_path / 'stubs'}:{REPOSITORY}"},
        capture_output=True,
        text=True,
    )
    assert re.findall(r'Revealed type is "(.*)"', done.stdout.replace("builtins.", "")) == TYPES
    errors = re.findall(r": error: (.*)", done.stdout)
    assert len(errors) == len(MISTAKES), done.stdout
    for message, expected in zip(errors, MISTAKES.values(), strict=True):
        assert message.startswith(expected)


def test_package_says_that_it_has_types() -> None:
    assert (REPOSITORY / "pyspark_kafkalog" / "py.typed").exists()
