"""Expressions for topic names match the same names as the real java.util.regex."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from java_patterns import Patterns, draw_name
from java_regex import java_answers

from pyspark_kafkalog.java_regex.topic_pattern import TopicPattern, compile_topic_pattern

PATTERNS = 4000
NAMES = 40


def compiled_or_error(pattern: str) -> TopicPattern | str:
    try:
        return compile_topic_pattern(pattern)
    except ValueError as error:
        return str(error)


def outcome(pattern: TopicPattern, name: str) -> str:
    is_found, matches = pattern.is_found_in(name), pattern.matches(name)
    return {(True, True): "m", (True, False): "f", (False, False): "-"}.get((is_found, matches), "!")


@pytest.mark.full
def test_random_expressions_match_names_that_java_matches_or_are_refused(tmp_path: Path) -> None:
    seed = random.SystemRandom().randrange(2**32)
    print(f"seed {seed}")
    source = random.Random(seed)
    drawn = Patterns(source)
    patterns = [drawn.draw() for _ in range(PATTERNS)]
    names = sorted({draw_name(source) for _ in range(NAMES)})
    counts = {"same": 0, "telling": 0, "refused": 0}
    for pattern, java in zip(patterns, java_answers(patterns, names, tmp_path), strict=True):
        where = f"seed {seed}, {pattern!r}: Java says {java!r}"
        compiled = compiled_or_error(pattern)
        if isinstance(compiled, str):
            if not java.startswith("invalid"):
                assert "is not supported: " in compiled, f"{where}, here {compiled}"
                counts["refused"] += 1
            continue
        ours = "".join(outcome(compiled, name) for name in names)
        assert ours == java, f"{where}, here {ours!r} for {names}"
        counts["same"] += 1
        counts["telling"] += len(set(ours)) > 1
    assert counts["same"] > PATTERNS / 4, counts
    assert counts["telling"] > PATTERNS / 10, counts
    assert counts["refused"] < counts["same"] / 4, counts
