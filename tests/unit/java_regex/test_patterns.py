"""Java regular expressions of topic names: matches where Python's `re` differs, and refused expressions."""

from __future__ import annotations

import re

import pytest
from counted_steps import counted_steps

from pyspark_kafkalog.java_regex.patterns import compile_topic_pattern

NAMES = ("orders", "payments", "Orders", "a.b", "axb", "orders-eu-1", "_schemas", "t1", "11", "aa")


def matched(pattern: str) -> set[str]:
    compiled = compile_topic_pattern(pattern)
    return {name for name in NAMES if compiled.matches(name)}


@pytest.mark.parametrize(
    ("pattern", "names"),
    [
        ("[a-z&&[^t]]+", {"orders", "axb", "aa"}),
        ("[a-z[1]&&[a1]]+", {"11", "aa"}),
        ("[^a-z&&[^O]]+", {"11"}),
        (r"\p{Alpha}+", {"orders", "payments", "Orders", "axb", "aa"}),
        (r"\p{javaLowerCase}+", {"orders", "payments", "axb", "aa"}),
        (r"\p{Lu}\p{Ll}+", {"Orders"}),
        (r"\P{L}+", {"11"}),
        (r"\Qa.b\E", {"a.b"}),
        (r"[\Q.-x\E]", set()),
        (r"a[\Q.-\E]b", {"a.b"}),
        ("a*+a", set()),
        ("(?>a|aa)", set()),
        ("(?:a|ax){2}+b", set()),
        (r"(?<letter>a)\k<letter>", {"aa"}),
        (r"(1)\1", {"11"}),
        ("(?i)orders", {"orders", "Orders"}),
        ("(?i:O)rders", {"orders", "Orders"}),
        (r"(?i)\p{Lower}rders", {"orders", "Orders"}),
        ("o(?i)RDERS", {"orders"}),
        (r"\x61\x{2e}\u0062", {"a.b"}),
        (r"\0141a", {"aa"}),
        (r".+(?<=eu-\d|xb)", {"orders-eu-1", "axb"}),
        ("(?!_|o).*", {"payments", "Orders", "a.b", "axb", "t1", "11", "aa"}),
        (r"\Gorders\z", {"orders"}),
        (r"orders\Z", {"orders"}),
        ("orders$", {"orders"}),
        (r"\h*aa\v*\R?", {"aa"}),
        (r"\Xa", {"aa"}),
        ("(?d)(?s)(?m)^aa$", {"aa"}),
        ("a{2,1000}", {"aa"}),
        ("a]|aa", {"aa"}),
        ("(?iu)order\u017f", {"orders", "Orders"}),
    ],
)
def test_expression_matches_same_names_as_in_java(pattern: str, names: set[str]) -> None:
    assert matched(pattern) == names


@pytest.mark.parametrize(
    ("pattern", "says"),
    [
        (r"orders\b{g}", "boundaries of grapheme clusters, at position 6"),
        ("(?x)orders # all", "the flag x, at position 2"),
        ("(?<=a{1,3})b", "in a lookbehind, a repetition other than a character a fixed number of times"),
        (r"(a\1)", "a reference to a group that does not end before it"),
        (r"(a)+\1", "or that is repeated"),
        (r"\p{IsGreek}+", "the property 'IsGreek' of characters is not known, at position 0"),
        (r"\N{DIGIT ONE}", "a character by its Unicode name"),
        ("[a&&]", "&& with nothing on its right, at position 2"),
        ("a{500}", "more than 249 repetitions"),
        ("a{2}{3}", "a repetition of nothing"),
        ("(" * 60 + ")" * 60, "groups nested more than 50 deep"),
    ],
)
def test_untranslatable_expression_is_refused_by_name(pattern: str, says: str) -> None:
    with pytest.raises(ValueError, match=re.escape(says)) as refused:
        compile_topic_pattern(pattern)
    assert "is not supported: " in str(refused.value)


@pytest.mark.parametrize(
    ("pattern", "says"),
    [
        ("orders[", "a character class is not closed, at position 6 ('[')"),
        ("(orders", "a group is not closed, at position 0 ('(orders')"),
        ("orders)", "a closing parenthesis without an opening one, at position 6 (')')"),
        ("*", "* with nothing to repeat, at position 0 ('*')"),
        ("a**", "* with nothing to repeat, at position 2 ('*')"),
        ("a{", "a repetition needs numbers"),
        (r"\y", r"\y means nothing here, at position 0"),
        ("orders\\", "what follows the backslash is missing at its end"),
        ("(?P<name>a)", "unknown flags of a group, at position 0"),
        ("[z-a]", "a range in a character class does not end at a later character"),
        (r"\k<name>", "there is no group name before this reference"),
    ],
)
def test_invalid_java_expression_is_refused_with_position(pattern: str, says: str) -> None:
    with pytest.raises(ValueError, match=re.escape(says)) as invalid:
        compile_topic_pattern(pattern)
    assert "is not a Java regular expression: " in str(invalid.value)


def test_expression_is_found_in_part_but_does_not_match_whole_name() -> None:
    pattern = compile_topic_pattern("order")
    assert pattern.is_found_in("orders")
    assert not pattern.matches("orders")


@pytest.mark.slow
def test_thousands_of_alternatives_and_deep_counts_compile_in_linear_time() -> None:
    def steps(pattern: str, name: str) -> int:
        with counted_steps() as counted:
            assert compile_topic_pattern(pattern).matches(name)
        return counted.count

    few, many = ("|".join(f"topic-{each}" for each in range(count)) for count in (500, 5000))
    assert steps(many, "topic-4999") < 15 * steps(few, "topic-499")
    assert steps("((a?){200}){200}", "a") < 2 * steps("((a?){2}){2}", "a")
