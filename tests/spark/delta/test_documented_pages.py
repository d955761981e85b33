"""The blocks of the pages that write to Delta tables run in their order, in a session with Delta's catalog."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from documented_runs import Reader, pages_to_run, prepared_home
from pyspark.sql import SparkSession

from pyspark_kafkalog import LogDir

#: Each page runs many queries.
pytestmark = [pytest.mark.spark, pytest.mark.all_cases, pytest.mark.full]


@pytest.mark.parametrize("name", pages_to_run(delta=True))
def test_blocks_of_page_run_in_order(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], spark: SparkSession
) -> None:
    reader = Reader(prepared_home(tmp_path, json_only=name == "DELTA.md"), capsys, lambda: spark)
    reader.work_through(name)
    reader.close()
    if name == "STREAMING.md":
        ids = {str(commit.transactional_id) for commit in LogDir.open(tmp_path / "data" / "log").history()}
        topics = [found[1] for found in map(re.compile(r"[0-9a-f-]{36} to (left|right)").fullmatch, ids) if found]
        assert sorted(topics) == ["left", "left", "right"], "writes of threads have the query's id too"
