"""The report as one HTML file that contains its style, script and data, and loads nothing.

    assets/page.html   the frame, with {{names}} to fill in
    assets/page.css    all style
    assets/*.js        all script, in the order of _SCRIPTS
    <script type="application/json">   the data, drawn by the script as text and never as markup

Title, heading and findings are markup: they can be read where scripts do not run. The script draws all other sections.
`sections` of the data names them in order, without those that would be empty; `absent` says why a section is missing.

The data are the facts (facts.py) in columns instead of rows, and bounded: tables are objects of lists of equal length,
so that column names appear once; rows that do not fit are omitted, small and sound ones first, and counted in
`left_out`; topics are referred to by their number in the table of topics. Partitions are sorted: those with errors,
then by size, then the empty ones, which the page shows on request.

Names, keys and configuration values are untrusted. Markup contains them escaped. In the data `<`, `>` and `&` are
written as JSON escapes, so that no value can end the script element. The content security policy of the page allows
only this style and this script, by their hashes, and no requests.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import date, datetime, timezone
from importlib import resources
from typing import Any, Final

from pyspark_kafkalog.maintenance.jobs.sinks import PARTITION_METRICS, ROOT_METRICS
from pyspark_kafkalog.report.facts import (
    FINDING_SEVERITIES,
    KEY_RECORDS_MIN,
    KEY_SHARE_MIN,
    KEY_TIMES_OTHERS,
    Advice,
    CommitFacts,
    KeySample,
    PartitionFacts,
    RootFacts,
    TopicFacts,
    WriteHistory,
)
from pyspark_kafkalog.report.findings import all_well, minute_utc
from pyspark_kafkalog.units import plural, printable

_KEY_CHARS_MAX: Final = 96
_TEXT_CHARS_MAX: Final = 400
_CONFIGS_MAX: Final = 40

#: Columns of the table of runs that the page omits: the root, and its metrics at the time.
_TOLD_ELSEWHERE: Final = frozenset({"root", *PARTITION_METRICS, *ROOT_METRICS})


@dataclass(frozen=True, slots=True)
class Limits:
    """The most rows of each kind on the page."""

    topics: int = 5_000
    partitions: int = 20_000
    runs: int = 40_000
    groups: int = 10_000
    commits: int = 300
    maintenance_rows: int = 1_000
    key_topics: int = 200
    findings: int = 500

    def halved(self) -> Limits:
        """Half of each, at least 1."""
        return Limits(*(max(getattr(self, name) // 2, 1) for name in self.__slots__))


def page_data(root: RootFacts, limits: Limits) -> dict[str, Any]:
    """The data of the page. Numbers are ints and floats; all other values are text and may be untrusted."""
    topics = _largest(root.topics, limits.topics)
    numbers = {topic.name: number for number, topic in enumerate(topics)}
    everything = [each for topic in root.topics for each in topic.partitions]
    partitions = _largest([each for each in everything if each.topic_partition.topic in numbers], limits.partitions)
    partitions.sort(key=lambda each: (each.error is None, each.is_empty, -each.size_bytes))
    data = {
        "root": {"foreign": root.is_foreign, "now": root.now_ms},
        "totals": _totals(root, everything) if root.topics else None,
        "topics": _topics(topics),
        "partitions": _partitions(partitions, numbers),
        "filled": sum(not each.is_empty for each in partitions),
        "runs": _runs(partitions, limits.runs),
        "sizes": _sizes(everything),
        "history": None if root.history is None else _history(root.history, limits),
        "groups": _groups(root, limits.groups),
        "last_cleaning": None if root.last_cleaning is None else asdict(root.last_cleaning),
        "maintenance": _maintenance(root.runs[: limits.maintenance_rows]),
        "keys": _keys([each for each in root.keys if each.topic in numbers][: limits.key_topics], numbers),
        "key_rule": _KEY_RULE,
        "notes": list(root.notes),
        "left_out": {
            "topics": len(root.topics) - len(topics),
            "partitions": len(everything) - len(partitions),
            "groups": max(len(root.groups) - limits.groups, 0),
        },
    }
    return data | _sections(root, data)


_KEY_RULE: Final = (
    f"A key stands out if it has {100 * KEY_SHARE_MIN:.0f} % or more of the records or bytes of a topic's sample, and "
    f"at least {KEY_TIMES_OTHERS} times as much as the other keys on average. Samples of under {KEY_RECORDS_MIN} "
    "records are not judged."
)


def _sections(root: RootFacts, data: Mapping[str, Any]) -> dict[str, list[str]]:
    """`sections`: the names of those with something to show. `absent`: why others are missing, if that is not plain."""
    is_stored = any(each.size_bytes for each in root.topics)
    history, topics = data["history"], data["topics"]
    is_maintained = bool(data["last_cleaning"] or data["maintenance"] or (history and history["maintenance"]["offset"]))
    is_maintained |= any(topics["due"]) or any(each is not None for each in topics["dirty"])
    no_key = (
        f"No key stands out in the newest records of {plural(len(root.keys), 'topic')}. {_KEY_RULE}"
        if root.keys
        else "No records were sampled for the largest keys."
    )
    found = (
        ("topics", bool(root.topics), "There are no topics."),
        ("timeline", is_stored, "No partition holds records." if root.topics else ""),
        ("partitions", bool(data["partitions"]["topic"]), ""),
        ("sizes", any(bits for bits, _, _ in data["sizes"]), ""),
        (
            "history",
            bool(history and history["newest"]["offset"]),
            "A broker's directory does not record who wrote what, and when." if root.is_foreign else "",
        ),
        ("groups", bool(root.groups), "No consumer group has committed offsets."),
        ("maintenance", is_maintained, "No topic is compacted, and no work of retention is due or recorded."),
        ("keys", bool(data["keys"]["key"]), no_key if is_stored else ""),
    )
    return {
        "sections": [name for name, is_there, _ in found if is_there],
        "absent": [why for _, is_there, why in found if why and not is_there] if root.is_opened else [],
    }


def _largest(those: Sequence[Any], count: int) -> list[Any]:
    """The `count` largest items in their original order, those with an error before others; all if there are fewer."""
    if len(those) <= count:
        return list(those)
    ranks = sorted(range(len(those)), key=lambda at: (getattr(those[at], "error", None) is None, -those[at].size_bytes))
    return [those[at] for at in sorted(ranks[:count])]


def _totals(root: RootFacts, partitions: Sequence[PartitionFacts]) -> dict[str, Any]:
    firsts = [each.first_ms for each in partitions if each.first_ms >= 0]
    return {
        "topics": len(root.topics),
        "partitions": len(partitions),
        "offsets": sum(each.offsets_count for each in partitions),
        "bytes": sum(each.size_bytes for each in partitions),
        "segments": sum(each.segments for each in partitions),
        "first": min(firsts, default=-1),
        "last": max((each.last_ms for each in partitions), default=-1),
        "groups": len({each.group for each in root.groups}),
        "lag": sum(max(each.lag or 0, 0) for each in root.groups),
    }


def _topics(topics: Sequence[TopicFacts]) -> dict[str, list[Any]]:
    return {
        "name": [each.name for each in topics],
        "id": [each.topic_id for each in topics],
        "policy": [", ".join(each.cleanup_policy) for each in topics],
        "configs": [
            {name: _cut(value, _TEXT_CHARS_MAX) for name, value in sorted(each.configs.items())[:_CONFIGS_MAX]}
            for each in topics
        ],
        "partitions": [len(each.partitions) for each in topics],
        "offsets": [sum(part.offsets_count for part in each.partitions) for each in topics],
        "bytes": [each.size_bytes for each in topics],
        "segments": [sum(part.segments for part in each.partitions) for each in topics],
        "first": [
            min((part.first_ms for part in each.partitions if part.first_ms >= 0), default=-1) for each in topics
        ],
        "last": [max((part.last_ms for part in each.partitions), default=-1) for each in topics],
        "skew": [_skew(each) for each in topics],
        "dirty": [_dirty_percent(each.partitions) for each in topics],
        "due": [sum(part.due_bytes for part in each.partitions) for each in topics],
    }


def _skew(topic: TopicFacts) -> float | None:
    """The largest partition's bytes divided by the mean; None for a single or an empty partition."""
    if len(topic.partitions) < 2 or not topic.size_bytes:
        return None
    return round(max(each.size_bytes for each in topic.partitions) * len(topic.partitions) / topic.size_bytes, 2)


def _dirty_percent(partitions: Iterable[PartitionFacts]) -> float | None:
    """Cleanable bytes in percent of all bytes that the cleaner considers; None for a topic that is not compacted."""
    cleaners = [each.cleaner for each in partitions if each.cleaner is not None]
    if not cleaners:
        return None
    cleanable = sum(each.cleanable_bytes for each in cleaners)
    total = cleanable + sum(each.clean_bytes for each in cleaners)
    return round(100 * cleanable / total, 1) if total else 0.0


def _partitions(partitions: Sequence[PartitionFacts], numbers: Mapping[str, int]) -> dict[str, list[Any]]:
    return {
        "topic": [numbers[each.topic_partition.topic] for each in partitions],
        "partition": [each.topic_partition.partition for each in partitions],
        "epoch": [each.leader_epoch for each in partitions],
        "start": [each.log_start_offset for each in partitions],
        "stable": [each.last_stable_offset for each in partitions],
        "end": [each.high_watermark for each in partitions],
        "bytes": [each.size_bytes for each in partitions],
        "segments": [each.segments for each in partitions],
        "first": [each.first_ms for each in partitions],
        "last": [each.last_ms for each in partitions],
        "dirty": [None if each.cleaner is None else round(each.cleaner.dirty_percent, 1) for each in partitions],
        "clean_to": [None if each.cleaner is None else each.cleaner.first_dirty_offset for each in partitions],
        "error": [None if each.error is None else _cut(each.error, _TEXT_CHARS_MAX) for each in partitions],
    }


def _runs(partitions: Sequence[PartitionFacts], count: int) -> list[list[int]]:
    """For each partition base offset, segments, bytes, first and last time of each run, one after the other.

    With more than `count` runs in all, the partitions beyond have none.
    """
    runs: list[list[int]] = []
    for partition in partitions:
        count -= len(partition.runs)
        fields = [
            [each.base_offset, each.segments, each.size_bytes, each.first_ms, each.last_ms] for each in partition.runs
        ]
        runs.append([number for run in fields for number in run] if count >= 0 else [])
    return runs


def _sizes(partitions: Iterable[PartitionFacts]) -> list[list[int]]:
    """[bits, segments, bytes]: segments smaller than 2^bits bytes and at least half of that."""
    bins: dict[int, list[int]] = {}
    for partition in partitions:
        for bits, (count, size_bytes) in partition.size_bins.items():
            found = bins.setdefault(bits, [0, 0])
            found[0] += count
            found[1] += size_bytes
    return [[bits, *bins[bits]] for bits in sorted(bins)]


#: Measures of writes; without any of them the page has no chart of the history.
_MEASURES: Final = ("records", "bytes")


def _history(history: WriteHistory, limits: Limits) -> dict[str, Any]:
    series = history.series
    measures = [] if series is None else [each for each in _MEASURES if any(map(any, getattr(series, each)))]
    return {
        "whole": history.is_whole,
        "commits": history.commits_read,
        "series": None
        if series is None or not measures
        else {
            "measures": [*measures, "commits"],
            "start": series.start_ms,
            "width": series.bucket_ms,
            "buckets": series.buckets,
            "commits": series.commits,
            "topics": series.topics,
            "records": series.records,
            "bytes": series.bytes,
        },
        "newest": _commits(history.newest[: limits.commits]),
        "maintenance": _commits(history.maintenance[: limits.commits]),
    }


def _commits(commits: Sequence[CommitFacts]) -> dict[str, list[Any]]:
    return {
        "offset": [each.offset for each in commits],
        "time": [each.timestamp_ms for each in commits],
        "operation": [each.operation for each in commits],
        "id": [None if each.transactional_id is None else _cut(each.transactional_id, 200) for each in commits],
        "version": [each.version for each in commits],
        "topics": [_names(each.topics) for each in commits],
        "records": [each.records for each in commits],
        "bytes": [each.bytes for each in commits],
    }


def _names(topics: Sequence[str]) -> str:
    more = f" and {len(topics) - 3:,} more" if len(topics) > 3 else ""
    return ", ".join(topics[:3]) + more


def _groups(root: RootFacts, count: int) -> dict[str, list[Any]]:
    rows = sorted(root.groups, key=lambda each: -(each.lag or 0))[:count]
    return {
        "group": [_cut(each.group, 200) for each in rows],
        "topic": [each.topic_partition.topic for each in rows],
        "partition": [each.topic_partition.partition for each in rows],
        "committed": [each.committed_offset for each in rows],
        "end": [each.log_end_offset for each in rows],
        "lag": [each.lag for each in rows],
        "time": [each.commit_ms for each in rows],
    }


def _maintenance(runs: Sequence[Mapping[str, object]]) -> dict[str, list[Any]]:
    """Columns of the table of runs that have values and are not shown elsewhere on the page."""
    found = (name for row in runs for name, value in row.items() if value is not None and value != 0)
    names = [name for name in dict.fromkeys(found) if name not in _TOLD_ELSEWHERE]
    return {name: [_plain(row.get(name)) for row in runs] for name in names}


def _plain(value: object) -> int | float | str | None:
    if value is None or (isinstance(value, int | float) and not isinstance(value, bool)):
        return value if value == value else None  # JSON has no NaN
    if isinstance(value, datetime):
        zoned = value if value.tzinfo is not None else value.replace(tzinfo=timezone.utc)
        return zoned.astimezone(timezone.utc).strftime("%Y-%m-%d %H:%M:%S")
    return _cut(value.isoformat() if isinstance(value, date) else str(value), 200)


def _keys(samples: Sequence[KeySample], numbers: Mapping[str, int]) -> dict[str, list[Any]]:
    """The keys that stand out, with percentages of their topic's sample."""
    rows = [(sample, key) for sample in samples for key in sample.outstanding()]
    return {
        "topic": [numbers[sample.topic] for sample, _ in rows],
        "key": [key_text(each.key or b"") or "(empty)" for _, each in rows],
        "records": [each.records for _, each in rows],
        "records_percent": [round(100 * each.records / sample.records, 1) for sample, each in rows],
        "bytes": [each.bytes for _, each in rows],
        "bytes_percent": [round(100 * each.bytes / max(sample.bytes, 1), 1) for sample, each in rows],
        "sample": [sample.records for sample, _ in rows],
        "error": [sample.error_records for sample, _ in rows],
    }


def key_text(key: bytes) -> str:
    """The key as text if it is printable UTF-8, else in hexadecimal; shortened if it is long."""
    head = key[: 4 * _KEY_CHARS_MAX]
    # The end of the head may cut a character in two.
    text = head.decode("utf-8", "ignore" if len(key) > len(head) else "replace")
    if not text.isprintable() or "\ufffd" in text:
        text = "0x" + key[: _KEY_CHARS_MAX // 2].hex()
        return text if len(key) <= _KEY_CHARS_MAX // 2 else text + "…"
    return _cut(text, _KEY_CHARS_MAX)


def _cut(text: str, chars_max: int) -> str:
    return text if len(text) <= chars_max else text[: chars_max - 1] + "…"


#: The largest size of a page in bytes; tables are shortened until it fits.
PAGE_BYTES_MAX: Final = 5_000_000
_SCRIPTS: Final = ("base.js", "tables.js", "charts.js", "timeline.js", "sections.js")
_PACKAGE: Final = "pyspark_kafkalog.report"
_HOLE = re.compile(r"\{\{(\w+)\}\}")


def render(root: RootFacts, *, bytes_max: int = PAGE_BYTES_MAX) -> str:
    """The page of `root`, of about `bytes_max` bytes at most."""
    limits = Limits()
    while True:
        page = _page(root, limits)
        if len(page.encode()) <= bytes_max or limits.partitions == 1:
            return page
        limits = limits.halved()


def _page(root: RootFacts, limits: Limits) -> str:
    style = _asset("page.css")
    script = '"use strict";\n(() => {\n' + "\n".join(map(_asset, _SCRIPTS)) + "})();\n"
    found = plural(len(root.findings), "finding") if root.findings else "No findings"
    holes = {
        "title": _escaped(f"{found} · {root.path}"),
        "kicker": "A Kafka broker's log directory" if root.is_foreign else "Log directory",
        "path": _breakable(str(root.path)),
        "facts": _facts_line(root),
        "findings": _findings_section(root, found, limits.findings),
        "policy": f"default-src 'none'; style-src '{_hash(style)}'; script-src '{_hash(script)}'; base-uri 'none'",
        "style": style,
        "script": script,
        "data": json_for_script(_shown(page_data(root, limits))),
    }
    return _HOLE.sub(lambda hole: holes[hole[1]], _asset("page.html"))


#: Places to break a name: after its separators, so that lines do not end within a word.
_BREAK = re.compile(r"(?<=[._/-])(?=[^._/-])")
#: Commands in the text of a finding.
_COMMAND = re.compile(r"\bkafkalog (?:transactions find-hanging|[a-z][a-z-]*)(?: --[a-z]+)*")
#: Findings of one kind, from which on their texts are folded.
_FOLDED_MIN: Final = 4


def _escaped(text: str) -> str:
    return html.escape(printable(text))


def _breakable(name: str) -> str:
    return _BREAK.sub("<wbr>", _escaped(name))


def _facts_line(root: RootFacts) -> str:
    facts = [f"as of {minute_utc(root.now_ms)}"]
    facts += [] if root.cluster_id is None else [f"cluster {root.cluster_id}"]
    facts += [] if root.node_id is None else [f"node {root.node_id}"]
    facts += [] if root.following is None else [_cut(root.following, _TEXT_CHARS_MAX)]
    return " · ".join(f"<span>{_escaped(each)}</span>" for each in facts)


def _findings_section(root: RootFacts, title: str, findings_max: int) -> str:
    """The findings by kind, or that there are none, and what was read to find them."""
    kinds: dict[tuple[str, str], list[Advice]] = {}
    for each in root.findings[:findings_max]:
        kinds.setdefault((each.severity, each.title), []).append(each)
    total = Counter((each.severity, each.title) for each in root.findings)
    counts = [(name, sum(each.severity == name for each in root.findings)) for name in FINDING_SEVERITIES]
    chips = "".join(f'<li class="{name}">{plural(count, name)}</li>' for name, count in counts if count)
    items = "".join(_finding(root, found, total[kind]) for kind, found in kinds.items())
    well = (
        f'<p class="all-well{" checked" if root.coverage.are_batches_checked else ""}">{_escaped(all_well(root))}</p>'
    )
    omitted = len(root.findings) - findings_max
    read = [(name, each) for name, each in (("Read", root.coverage.read), ("Not read", root.coverage.unread)) if each]
    return (
        '<section id="findings" aria-labelledby="findings-title">'
        + f'<div class="head"><h2 id="findings-title">{title}</h2>'
        + (f'<ul class="counts">{chips}</ul></div><ul class="findings">{items}</ul>' if items else f"</div>{well}")
        + (f'<p class="hint">{omitted:,} more are left out.</p>' if omitted > 0 else "")
        + '<dl class="coverage">'
        + "".join(f"<div><dt>{name}</dt><dd>{_prose(_sentence(those))}</dd></div>" for name, those in read)
        + "</dl></section>"
    )


def _sentence(parts: Sequence[str]) -> str:
    text = "; ".join(parts)
    return f"{text[0].upper()}{text[1:]}."


def _finding(root: RootFacts, found: Sequence[Advice], total: int) -> str:
    """The findings of one severity and title, `found` of `total`."""
    severity, first = found[0].severity, found[0]
    about = f" in {total:,} cases" if total > 1 else f" in {_topic(first.topic)}" if first.topic else ""
    head = f"<strong>{_escaped(first.title)}</strong>{about}"
    texts = [_prose(_cut(_below(each.text, str(root.path)), _TEXT_CHARS_MAX)) for each in found]
    if len(found) > 1:
        names = [f"{_topic(each.topic)}: " if each.topic else "" for each in found]
        texts = [name + text for name, text in zip(names, texts, strict=True)]
    body = "".join(f"<p>{each}</p>" for each in texts)
    is_folded = len(found) >= _FOLDED_MIN
    return (
        f'<li class="finding {severity}"><span class="severity">{severity.capitalize()}</span>'
        + (f"<details><summary>{head}</summary>{body}</details>" if is_folded else f"<div>{head}{body}</div>")
        + "</li>"
    )


def _topic(name: str) -> str:
    return f'<span class="topic-name">{_breakable(name)}</span>'


def _below(text: str, path: str) -> str:
    """The text with files named from the root, whose path is in the page's heading."""
    return text.replace(path.rstrip("/") + "/", "")


def _prose(text: str) -> str:
    """The text with its commands set apart, and with places to break the paths of files."""
    marked = _COMMAND.sub(lambda command: f"<code>{command[0]}</code>", _escaped(text))
    return re.sub(r"(?<=\w/)(?=\w)", "<wbr>", marked)


def _shown(tree: Any) -> Any:
    """`tree` with visible escapes for what would change how a text is shown, such as its direction."""
    if isinstance(tree, str):
        return printable(tree, kept="\n")
    if isinstance(tree, dict):
        return {_shown(name): _shown(value) for name, value in tree.items()}
    if isinstance(tree, (list, tuple)):
        return [_shown(each) for each in tree]
    return tree


def json_for_script(tree: Any) -> str:
    """JSON that is safe inside a script element, whatever strings it contains."""
    text = json.dumps(tree, ensure_ascii=True, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _asset(name: str) -> str:
    return (resources.files(_PACKAGE) / "assets" / name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    """The source expression that allows exactly this inline text."""
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
