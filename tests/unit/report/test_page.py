"""The page as text: bounded, self-contained, and without text that a browser could take for markup."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from builders.report_roots import HOSTILE, hostile_facts, many_partitions
from hypothesis import given
from hypothesis import strategies as st

from pyspark_kafkalog.report.facts import Advice, HeavyKey, KeySample, RootFacts
from pyspark_kafkalog.report.page import PAGE_BYTES_MAX, Limits, json_for_script, key_text, render
from pyspark_kafkalog.units import printable

_DATA = re.compile(r'<script type="application/json" id="data">(.*?)</script>', re.DOTALL)


def data_of(page: str) -> dict[str, Any]:
    found = _DATA.search(page)
    assert found is not None
    tree: dict[str, Any] = json.loads(found[1])
    return tree


def test_hostile_texts_end_no_element_and_turn_no_direction() -> None:
    page = render(hostile_facts())

    assert page.count("</script") == 2
    assert "<img" not in page
    assert data_of(page)["topics"]["name"] == [printable(HOSTILE)]


def test_path_with_undecodable_bytes_is_rendered() -> None:
    page = render(replace(hostile_facts(), path=Path("/data/l\udcffog")))

    assert "<title>1 finding · /data/l\\udcffog</title>" in page
    assert page.encode()


@given(
    st.recursive(
        st.text() | st.none() | st.integers(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)
    )
)
def test_data_round_trips_and_never_ends_its_element(tree: Any) -> None:
    text = json_for_script(tree)

    assert json.loads(text) == tree
    assert text.isascii()
    assert not set("<>&") & set(text)


def test_content_policy_allows_only_style_and_script_of_page() -> None:
    page = render(many_partitions(1, 1))
    policy = re.search(r'http-equiv="Content-Security-Policy" content="([^"]*)"', page)
    assert policy is not None

    assert "default-src 'none'" in policy[1]
    assert "unsafe" not in policy[1]
    for kind in ("style", "script"):
        inline = re.search(rf"<{kind}>(.*?)</{kind}>", page, re.DOTALL)
        assert inline is not None
        digest = base64.b64encode(hashlib.sha256(inline[1].encode()).digest()).decode()
        assert f"{kind}-src 'sha256-{digest}'" in policy[1]


def test_page_refers_to_nothing_outside() -> None:
    page = render(many_partitions(1, 1))

    assert set(re.findall(r"https?://[^\"'\s]+", page)) == {"http://www.w3.org/2000/svg"}  # a name, never asked for
    assert not re.search(r"<(link|iframe|object|embed|base|img)\b|@import|url\(", page)


def test_10000_partitions_fit_with_every_row() -> None:
    page = render(many_partitions(200, 50))

    assert len(page.encode()) < PAGE_BYTES_MAX
    data = data_of(page)
    assert len(data["partitions"]["topic"]) == 10_000
    assert not any(data["left_out"].values())


def test_rows_beyond_size_limit_are_left_out_and_counted() -> None:
    root = many_partitions(3, 400)
    page = render(root, bytes_max=120_000)
    data = data_of(page)

    assert len(page.encode()) <= 120_000
    shown = len(data["partitions"]["topic"])
    assert 0 < shown < 1200
    assert data["left_out"]["partitions"] == 1200 - shown
    assert data["totals"]["partitions"] == 1200


def test_partition_with_error_is_not_left_out() -> None:
    root = many_partitions(1, 400)
    topic = root.topics[0]
    broken = replace(topic.partitions[7], error="damaged", runs=())
    partitions = (*topic.partitions[:7], broken, *topic.partitions[8:])

    data = data_of(render(replace(root, topics=(replace(topic, partitions=partitions),)), bytes_max=70_000))

    assert len(data["partitions"]["partition"]) < 400
    assert 7 in data["partitions"]["partition"]


def test_long_finding_is_cut() -> None:
    page = render(with_findings(Advice("note", "Long", "x" * 10_000)))

    assert len(re.findall("x{300,}", page)[0]) == 399


def with_findings(*findings: Advice) -> RootFacts:
    return replace(many_partitions(1, 1), findings=findings)


@pytest.mark.parametrize(("count", "words"), [(0, "No findings"), (1, "1 finding"), (3, "3 findings")])
def test_title_and_heading_count_findings(count: int, words: str) -> None:
    page = render(with_findings(*[Advice("note", "Lag", f"case {each}") for each in range(count)]))

    assert f"<title>{words} · /data/log</title>" in page
    assert f'<h2 id="findings-title">{words}</h2>' in page


def test_findings_are_markup_before_all_else_and_coloured_by_severity() -> None:
    found = [Advice("problem", "Torn", "a"), Advice("warning", "Skew", "b", "t"), Advice("note", "Lag", "c")]
    page = render(with_findings(*found, Advice("note", "Due", "run kafkalog report --verify.")))

    main = page[page.index('<main id="main">') :]
    assert main.split("\n")[1].startswith('<section id="findings"')
    assert re.findall('<li class="finding (.*?)">', page) == ["problem", "warning", "note", "note"]
    assert re.findall('<li class="(?:problem|warning|note)">(.*?)</li>', page) == ["1 problem", "1 warning", "2 notes"]
    assert "run <code>kafkalog report --verify</code>." in page


def test_findings_of_one_kind_are_together_and_folded_from_four_on() -> None:
    few, many = ([Advice("note", "Lag", f"case {each}") for each in range(count)] for count in (3, 4))

    assert (render(with_findings(*few)).count("<details>"), render(with_findings(*many)).count("<details>")) == (0, 1)
    assert render(with_findings(*many)).count('<li class="finding') == 1


def test_findings_beyond_limit_are_counted_in_title_and_kind() -> None:
    page = render(with_findings(*[Advice("note", "Lag", f"case {each}") for each in range(Limits().findings + 20)]))

    assert "<title>520 findings" in page
    assert "<strong>Lag</strong> in 520 cases" in page
    assert "20 more are left out." in page


def test_files_in_findings_are_named_from_the_root() -> None:
    page = render(
        with_findings(Advice("problem", "Torn batch", "/data/log/orders-0/00.log: expected a batch", "orders"))
    )

    assert "<p>orders-0/<wbr>00.log: expected a batch</p>" in page


def test_sections_are_in_order_and_absent_ones_have_a_reason() -> None:
    empty = data_of(render(many_partitions(0, 0)))
    unwritten = data_of(render(many_partitions(1, 3, runs=0)))
    full = data_of(render(hostile_facts()))

    assert (empty["sections"], empty["totals"], empty["absent"][0]) == ([], None, "There are no topics.")
    assert unwritten["sections"] == ["topics", "partitions"]
    assert "No partition holds records." in unwritten["absent"]
    assert full["sections"] == ["topics", "timeline", "partitions", "history", "groups", "maintenance", "keys"]
    assert full["absent"] == []


def test_broker_directory_has_no_history_and_page_says_why() -> None:
    data = data_of(render(replace(many_partitions(1, 1), is_foreign=True)))

    assert "history" not in data["sections"]
    assert any("does not record who wrote" in each for each in data["absent"])


def test_writes_are_charted_only_where_records_were_written() -> None:
    root = hostile_facts()
    assert root.history is not None
    assert root.history.series is not None
    silent = replace(root.history.series, records=((0,),), bytes=((0,),))
    counted = replace(root.history.series, bytes=((0,),))

    series = [
        data_of(render(replace(root, history=replace(root.history, series=each))))["history"]["series"]
        for each in (root.history.series, counted, silent)
    ]

    assert [each and each["measures"] for each in series] == [
        ["records", "bytes", "commits"],
        ["records", "commits"],
        None,
    ]


def test_partitions_are_sorted_by_size_and_empty_ones_are_last() -> None:
    root = many_partitions(1, 6)
    topic = root.topics[0]
    small, large, broken, empty, other, trimmed = topic.partitions
    run = replace(large.runs[0], size_bytes=9 << 20)
    partitions = (
        small,
        replace(large, runs=(run, *large.runs)),
        replace(broken, error="damaged", runs=()),
        replace(empty, runs=(), high_watermark=0),
        other,
        replace(trimmed, runs=(), high_watermark=50, log_start_offset=50),
    )

    data = data_of(render(replace(root, topics=(replace(topic, partitions=partitions),))))

    assert data["partitions"]["partition"] == [2, 1, 0, 4, 3, 5]
    assert data["filled"] == 4


@pytest.mark.parametrize(
    ("records", "distinct", "heaviest", "stands_out"),
    [
        (1000, 500, HeavyKey(b"k", 100, 10), True),
        (1000, 500, HeavyKey(b"k", 99, 99), False),
        (1000, 500, HeavyKey(b"k", 10, 100), True),
        (1000, 4, HeavyKey(b"k", 250, 250), False),
        (1000, 1, HeavyKey(b"k", 1000, 1000), False),
        (99, 50, HeavyKey(b"k", 90, 90), False),
        (1000, 500, HeavyKey(None, 900, 900), False),
    ],
    ids=["by records", "below a tenth", "by bytes", "of few equal keys", "only key", "small sample", "without a key"],
)
def test_key_stands_out_by_share_and_beside_others(
    records: int, distinct: int, heaviest: HeavyKey, stands_out: bool
) -> None:
    sample = KeySample(
        topic="events.0000",
        partitions=1,
        records=records,
        bytes=records,
        distinct_keys=distinct,
        error_records=0,
        by_records=(heaviest,),
        by_bytes=(heaviest,),
    )

    data = data_of(render(replace(many_partitions(1, 1), keys=(sample,))))

    assert (data["keys"]["key"], "keys" in data["sections"]) == (["k"] * stands_out, stands_out)
    assert any(each.startswith("No key stands out") for each in data["absent"]) is not stands_out


_TEXT_ON = {
    "card": ("ink", "muted", "accent"),
    "paper": ("ink", "muted", "accent"),
    "soft": ("ink", "muted", "accent"),
    "accent-soft": ("ink",),
    "problem-soft": ("ink", "problem"),
    "warning-soft": ("ink", "warning"),
    "note-soft": ("ink", "note"),
    "well-soft": ("ink",),
}
_MARKS = (
    "closed",
    "active",
    "clean",
    "dirty",
    "c0",
    "c1",
    "c2",
    "c3",
    "c4",
    "c5",
    "problem",
    "warning",
    "note",
    "well",
)


def test_text_and_marks_have_contrast_in_light_and_dark() -> None:
    css = re.search(r"<style>(.*?)</style>", render(many_partitions(1, 1)), re.DOTALL)
    assert css is not None
    light, dark, chosen = (
        dict(re.findall(r"--([\w-]+): (#\w{6})", block)) for block in re.findall(r":root[^{]*\{([^}]*)\}", css[1])[:3]
    )

    assert dark == chosen
    for theme in (light, dark):
        pairs = [(text, ground) for ground, texts in _TEXT_ON.items() for text in texts]
        assert [pair for pair in pairs if contrast(theme[pair[0]], theme[pair[1]]) < 4.5] == []
        assert [mark for mark in _MARKS if contrast(theme[mark], theme["card"]) < 3] == []


def contrast(one: str, other: str) -> float:
    """The contrast ratio of two colours as WCAG defines it."""
    dark, light = sorted((luminance(one), luminance(other)))
    return (light + 0.05) / (dark + 0.05)


def luminance(colour: str) -> float:
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    red, green, blue = (each / 12.92 if each <= 0.04045 else ((each + 0.055) / 1.055) ** 2.4 for each in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


@pytest.mark.parametrize(
    ("key", "text"),
    [
        (b"customer-1", "customer-1"),
        ("größe".encode(), "größe"),
        (b"", ""),
        (b"\x00\x01\xff", "0x0001ff"),
        (b"line\nbreak", "0x6c696e650a627265616b"),
        (b"a" * 1000, "a" * 95 + "…"),
        (("é" * 500).encode(), "é" * 95 + "…"),
        (b"\x00" * 1000, "0x" + "00" * 48 + "…"),
    ],
)
def test_keys_are_shown_as_text_or_hexadecimal(key: bytes, text: str) -> None:
    assert key_text(key) == text
