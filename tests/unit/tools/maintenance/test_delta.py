"""Invalid options of the Delta jobs, and the one line that is kept of Spark's errors."""

from __future__ import annotations

import pytest

from pyspark_kafkalog.delta.topic_to_delta import BadRecords
from pyspark_kafkalog.errors import InvalidOptionError
from pyspark_kafkalog.tools.maintenance.delta import changes_text, error_text, named_values, offsets_text


def test_settings_without_name_or_value_are_refused() -> None:
    assert named_values("--x", ["a=1", "b = c=d "]) == {"a": "1", "b": "c=d"}
    for setting in ("a", "=1", " =1"):
        with pytest.raises(InvalidOptionError, match=r"--x .*expected NAME=VALUE"):
            named_values("--x", [setting])


def test_offsets_of_run_are_shown_by_partition_without_those_that_stayed() -> None:
    first = {"t": {"0": 5, "2": 7}, "kafkalog:root:a": {}}
    last = {"t": {"0": 9, "10": 3, "2": 7, "3": 0}, "kafkalog:root:a": {}}
    assert offsets_text("t", first, last) == "t-0: offsets 5 to 8\nt-10: up to offset 2\n"
    assert offsets_text("t", {}, {}) == "t: no new records\n"


def test_version_up_to_which_a_table_was_read_is_the_one_before_if_its_files_are_not_begun() -> None:
    assert changes_text({"reservoirVersion": 7, "index": -1}) == "changes up to version 6"
    assert changes_text({"reservoirVersion": 7, "index": 3}) == "changes up to version 7"
    assert changes_text({}) == "no changes read"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "[STREAM_FAILED] Query failed: Job aborted. [USER_RAISED_EXCEPTION] bad record in t-1 at offset 7: "
            "its value is no JSON; --bad-records skip SQLSTATE: P0001\n\tat x",
            "bad record in t-1 at offset 7: its value is no JSON; --bad-records skip",
        ),
        ("[PATH_NOT_FOUND] There is no /x. SQLSTATE: 42K03;\n'Scan", "There is no /x. SQLSTATE: 42K03;"),
        ("\n\tat only.a.trace\n", "Exception"),
    ],
)
def test_message_of_spark_error_is_kept_without_trace(text: str, expected: str) -> None:
    assert error_text(Exception(text)) == expected


@pytest.mark.parametrize(("policy", "table"), [("quarantine", None), ("skip", "x"), ("fail", "x")])
def test_quarantine_without_table_or_table_without_quarantine_is_refused(policy: str, table: str | None) -> None:
    with pytest.raises(InvalidOptionError, match="need a table"):
        BadRecords(policy, table)  # type: ignore[arg-type]
