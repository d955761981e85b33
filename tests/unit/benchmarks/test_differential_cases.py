"""The tables of the differential test: enough cases with unique names; every known difference has a case."""

from __future__ import annotations

import sys

import pytest
from repository import REPOSITORY

sys.path.insert(0, str(REPOSITORY / "benchmarks"))

from differential.batch_cases import batch_cases
from differential.known_differences import KNOWN, LATE_ERRORS, Difference
from differential.outcomes import Failure, Outcome
from differential.repeated_queries import repeated_queries
from differential.report import Compared, Tally, summary
from differential.sink_cases import sink_cases
from differential.stream_scripts import stream_scripts

NAMES = {
    "batch": [case.name for case in batch_cases()],
    "repeat": [case.name for case in repeated_queries()],
    "stream": [f"{script.name}: {step.name}" for script in stream_scripts() for step in script.steps],
    "sink": [case.name for case in sink_cases()],
}


@pytest.mark.parametrize(("part", "count_min"), [("batch", 250), ("repeat", 1), ("stream", 60), ("sink", 60)])
def test_each_part_has_enough_cases_with_unique_names(part: str, count_min: int) -> None:
    assert len(NAMES[part]) >= count_min
    assert len(set(NAMES[part])) == len(NAMES[part])


def test_batch_cases_differ_in_more_than_their_names() -> None:
    cases = [(sorted(case.options.items()), case.query, case.columns, case.load_schema) for case in batch_cases()]
    alike = [name for at, name in enumerate(NAMES["batch"]) if cases[at] in cases[:at]]
    assert len(cases) - len(alike) >= 250, alike


@pytest.mark.parametrize("difference", KNOWN, ids=lambda each: each.name)
def test_each_known_difference_has_reason_and_cases(difference: Difference) -> None:
    assert difference.reason
    named = [(part, name) for part, names in NAMES.items() for name in names]
    for pattern in difference.cases:
        alone = Difference(name="", documented="", reason="", cases=(pattern,))
        assert any(alone.covers(part, name) for part, name in named), f"no case is named {pattern}"


def test_no_case_shows_two_known_differences() -> None:
    for part, names in NAMES.items():
        for name in names:
            assert sum(each.covers(part, name) for each in KNOWN) <= 1, name


@pytest.mark.parametrize("difference", [*KNOWN, LATE_ERRORS], ids=lambda each: each.name)
def test_each_known_difference_is_in_migration_guide(difference: Difference) -> None:
    guide = (REPOSITORY / "docs" / "MIGRATING.md").read_text()
    section = guide.split("What differs:")[1].split("\n## ")[0]
    assert difference.documented in section


def test_run_fails_at_unlisted_difference_and_at_vanished_listed_one() -> None:
    listed = "no subscription"
    one, two = Outcome({("t", 0): [(1,)]}), Outcome(failure=Failure("query", "option", "bad"))
    as_listed, unlisted, gone = Tally("batch"), Tally("batch"), Tally("batch")
    as_listed.add(Compared(listed, two, one))
    unlisted.add(Compared("subscribe plain", one, two))
    gone.add(Compared(listed, one, one))
    assert [each.failed for each in (as_listed, unlisted, gone)] == [False, True, True]
    text = "\n".join(summary([as_listed, unlisted, gone]))
    assert "UNLISTED  batch: subscribe plain" in text
    assert "VANISHED  batch: no subscription" in text


@pytest.mark.parametrize(
    ("kafka", "kafkalog", "is_same"),
    [
        (Outcome({("t", 0): [(1,), (2,)]}), Outcome({("t", 0): [(1,), (2,)]}), True),
        (Outcome({("t", 0): [(1,), (2,)]}), Outcome({("t", 0): [(2,), (1,)]}), False),
        (Outcome(failure=Failure("load", "option", "a")), Outcome(failure=Failure("query", "option", "b")), True),
        (Outcome(failure=Failure("query", "topic", "a")), Outcome(failure=Failure("query", "option", "a")), False),
        (Outcome([1], Failure("query", "topic", "a")), Outcome([], Failure("query", "topic", "a")), False),
        (Outcome(None), Outcome(failure=Failure("query", "option", "a")), False),
    ],
)
def test_outcomes_are_same_only_with_equal_rows_in_order_and_errors_of_one_kind(
    kafka: Outcome, kafkalog: Outcome, is_same: bool
) -> None:
    assert (kafka.difference(kafkalog) is None) == is_same
