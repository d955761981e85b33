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

from pyspark_kafkalog.report.facts import Advice
from pyspark_kafkalog.report.page import PAGE_BYTES_MAX, json_for_script, key_text, render
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

    assert "<title>/data/l\\udcffog" in page
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
    root = replace(many_partitions(1, 1), findings=(Advice("note", "Long", "x" * 10_000),))

    assert len(data_of(render(root))["findings"][0][2]) == 400


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
