"""Writes docs/OPTIONS.md from the tables that the code uses.

    python scripts/make_options_reference.py [--check]

With --check nothing is written; exit code 1 means that the file differs from the tables.
"""

from __future__ import annotations

import sys
import textwrap
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path

from pyspark_kafkalog.config.broker import BROKER_CONFIGS
from pyspark_kafkalog.config.definitions import ConfigDefinition
from pyspark_kafkalog.config.topic import TOPIC_CONFIGS
from pyspark_kafkalog.spark.options.table import EVERYWHERE, IGNORED_OPTIONS, OPTIONS, READ, Direction, Option

OPTIONS_FILE = Path(__file__).resolve().parents[1] / "docs" / "OPTIONS.md"

_HEAD = """# Options and configurations

Generated from the code by `scripts/make_options_reference.py`: change the tables in the code, not this file.

- [Options of the data source](#options-of-the-data-source): `.option(name, value)` of `format("kafkalog")`, by purpose.
  Case does not matter. An unknown or misspelt option raises an error that lists the allowed names.
- [Accepted without effect](#accepted-without-effect): settings of Spark's Kafka source and of Kafka's clients that
  existing jobs may keep.
- [Topic configurations](#topic-configurations): `kafkalog configs --topic`, `LogDir.create_topic(configs=...)`,
  `LogDir.alter_topic`.
- [Broker-level configurations](#broker-level-configurations): `kafkalog configs --broker-defaults`,
  `conf/server.properties`.
"""
_DIRECTIONS: dict[Direction, str] = {"read": "batch reads", "stream": "streaming reads", "write": "writes"}

#: The options of the data source by what they are set for; a name that ends with * stands for all that begin so.
_PURPOSES = {
    "The log directory": ("path", "principal"),
    "What to read": ("subscribe", "subscribePattern", "assign", "includeHeaders"),
    "Where a read starts and ends": (
        *("startingOffsets", "startingTimestamp", "startingOffsetsByTimestamp", "startingOffsetsByTimestampStrategy"),
        *("endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp"),
    ),
    "Consumer groups": ("kafka.group.id", "commitOffsets", "auto.offset.reset", "kafka.auto.offset.reset"),
    "How much a task reads": ("minPartitions", "maxRecordsPerPartition", "maxBytesPerPartition"),
    "How much a micro-batch reads": (
        *("maxOffsetsPerTrigger", "maxBytesPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay"),
    ),
    "Isolation, missing records and filters": (
        *("isolationLevel", "kafka.isolation.level", "failOnDataLoss", "filterPushdown"),
    ),
    "A broker's directory and its remote storage": ("readToLogEnd", "remoteStorage*"),
    "How to write": (
        *("topic", "partitioner", "compression.type", "kafka.compression.type", "batch.size", "kafka.batch.size"),
    ),
    "Idempotent and durable writes": ("txnAppId", "txnVersion", "txnLowerVersion", "flush"),
    "Access to an object store": ("store*",),
}


def reference() -> str:
    """The text of the file."""
    return "\n".join([_HEAD, *_source_options(), "", *_ignored(), "", *_topic_configs(), "", *_broker_configs(), ""])


def _source_options() -> list[str]:
    """A table for each purpose. What most of its options apply to stands before it, exceptions in their rows."""
    lines = ["## Options of the data source"]
    for purpose, options in _by_purpose().items():
        usual, _ = Counter(each.applies_to for each in options).most_common(1)[0]
        others = ", except where a row names others" if any(each.applies_to != usual for each in options) else ""
        rows = [
            (
                f"`{each.name}`",
                _text(each.default),
                ("" if each.applies_to == usual else f"*{_where(each.applies_to).capitalize()}.* ") + _text(each.doc),
            )
            for each in options
        ]
        lines += ["", f"### {purpose}", "", f"For {_where(usual)}{others}:", ""]
        lines += _table(("option", "default", "meaning"), rows)
    return lines


def _by_purpose() -> Mapping[str, Sequence[Option]]:
    """The options of each purpose. Raises ValueError unless each option has just one."""
    found = {purpose: [each for name in names for each in _matching(name)] for purpose, names in _PURPOSES.items()}
    counts = Counter(each.name for options in found.values() for each in options)
    wrong = [each.name for each in OPTIONS if counts[each.name] != 1]
    if wrong:
        raise ValueError(f"_PURPOSES must have each option once: {', '.join(wrong)}")
    return found


def _matching(name: str) -> Sequence[Option]:
    found = [each for each in OPTIONS if fnmatchcase(each.name, name)]
    if not found:
        raise ValueError(f"_PURPOSES names no option: {name}")
    return found


def _ignored() -> list[str]:
    """Each reason once, with the options that it is the reason for."""
    grouped: dict[str, dict[str, list[str]]] = {}
    for each in IGNORED_OPTIONS:
        grouped.setdefault(_text(each.doc), {}).setdefault(_where(each.applies_to), []).append(f"`{each.name}`")
    lines = []
    for why, names in grouped.items():
        listed = "; ".join(f"{where}: {', '.join(of_where)}" for where, of_where in names.items())
        lines += textwrap.wrap(f"- *{why}* {listed[0].upper()}{listed[1:]}.", 120, subsequent_indent="  ")
    return ["## Accepted without effect", "", *lines]


def _topic_configs() -> list[str]:
    rows = [
        (
            f"`{name}`",
            _default(config.definition),
            _text(config.definition.allowed_text),
            ", ".join(f"`{synonym.definition.name}`" for synonym in config.synonyms),
            _text(config.definition.doc),
        )
        for name, config in sorted(TOPIC_CONFIGS.items())
    ]
    return [
        "## Topic configurations",
        "",
        "A topic's own value takes precedence, then the first of the broker-level names that is set, then the default.",
        "",
        *_table(("configuration", "default", "values", "broker-level names", "meaning"), rows),
    ]


def _broker_configs() -> list[str]:
    of_topics = {synonym.definition.name for config in TOPIC_CONFIGS.values() for synonym in config.synonyms}
    rows = [
        (f"`{name}`", _default(definition), _text(definition.allowed_text), _text(definition.doc))
        for name, definition in sorted(BROKER_CONFIGS.items())
        if name not in of_topics
    ]
    return [
        "## Broker-level configurations",
        "",
        "These apply to a whole log directory, in addition to the broker-level names in the table above.",
        "",
        *_table(("configuration", "default", "values", "meaning"), rows),
    ]


def _table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    return [_row(header), _row(["---"] * len(header)), *map(_row, rows)]


def _row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def _text(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;")


def _default(definition: ConfigDefinition) -> str:
    return f"`{definition.default_text}`" if definition.default_text else ""


def _where(directions: Sequence[Direction]) -> str:
    texts = {EVERYWHERE: "reads and writes", READ: "batch and streaming reads"}
    return texts.get(tuple(directions), ", ".join(_DIRECTIONS[each] for each in directions))


def main(arguments: Sequence[str]) -> int:
    text = reference()
    if arguments == ["--check"]:
        return 0 if OPTIONS_FILE.exists() and OPTIONS_FILE.read_text() == text else 1
    OPTIONS_FILE.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
