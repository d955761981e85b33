"""`kafkalog consumer-groups --reset-offsets`: the choice of partitions and new offsets, and the table or CSV of them.

CSV has a line for each partition, `topic,partition,offset`, preceded by the group if several groups are given.
--from-file reads the output of --export. Names are quoted as by Kafka's tool, and only a terminal gets escapes, which
would name another group in a file. Kafka's own tool reads no name with a line feed.

Source of the rules: org.apache.kafka.tools.consumer.group.ConsumerGroupCommand.
"""

from __future__ import annotations

import argparse
import csv
import re
import sys
from collections.abc import Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Final

from pyspark_kafkalog.errors import DiskFormatError, UnknownGroupError, UnknownTopicError
from pyspark_kafkalog.groups.guarded_group import AnyGroup
from pyspark_kafkalog.groups.resets import (
    ResetTarget,
    ShiftBy,
    ToCurrent,
    ToEarliest,
    ToLatest,
    ToOffset,
    ToOffsets,
    ToTimestamp,
)
from pyspark_kafkalog.log_dir import LogDir
from pyspark_kafkalog.storage.filesystem import time_ms
from pyspark_kafkalog.storage.names import TopicPartition
from pyspark_kafkalog.tools.command import Failures, UsageError, epoch_seconds, topic_partitions
from pyspark_kafkalog.tools.output import notice, output_of
from pyspark_kafkalog.units import INT64_MAX, printable

_Offsets = Mapping[TopicPartition, int]

_ZONE_HOURS_MAX: Final = 23
_DATETIME = re.compile(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)\.(\d{3})(Z|[+-]\d\d(?::?\d\d)?)?")
_DURATION = re.compile(
    r"([+-]?)P(?:([+-]?\d+)D)?(?:T(?=[+-]?\d|[+-]?\.\d)(?:([+-]?\d+)H)?(?:([+-]?\d+)M)?(?:([+-]?\d*\.?\d*)S)?)?",
    re.IGNORECASE,
)
_NUMBER = re.compile(r"[0-9]{1,19}")
_MAX_FILE_BYTES: Final = 64 << 20
#: The CSV writer of Kafka's tool quotes texts that are longer than this, or contain a character below this one.
_UNQUOTED_MAX_CHARS: Final = 24
_UNQUOTED_FROM: Final = "-"
#: The least width of the columns of groups and topics (OffsetsUtils.printOffsetsToReset of Kafka 4.3).
_COLUMN_MIN: Final = 15


def reset(log_dir: LogDir, names: Sequence[str], options: argparse.Namespace, failures: Failures) -> int:
    """Plan for all groups, commit with --execute, and print the new offsets.

    A wrong option or name ends the command before its first commit. A group whose commit fails is named, and the
    printed table has the groups that were reset.
    """
    if options.execute and options.dry_run:
        raise UsageError("--reset-offsets only accepts one of --execute and --dry-run")
    if not options.execute and not options.dry_run:
        sys.stderr.write("WARN: No action will be performed as the --execute option is missing.\n")
    plans = _read_plans(options.from_file, names) if options.from_file is not None else None
    if plans is None and not options.all_topics and not options.topic:
        raise UsageError("one of the scopes --all-topics and --topic is needed")
    target = None if plans is not None else _target(options)
    results: dict[str, _Offsets] = {}
    planned: dict[str, ResetTarget] = {}
    is_complete = True
    scope = _scope(log_dir, options)
    for group in [log_dir.group(name) for name in names]:
        name = group.group_id
        of_group = target if plans is None else _plan_of(plans, name)
        results[name] = {}
        if of_group is None or not _is_inactive(group):
            is_complete = False
            continue
        try:
            results[name] = group.reset(of_group, scope, dry_run=True, notify=_warn)
            planned[name] = of_group
        except DiskFormatError as error:
            failures.add(error, f"group {name}")
    for name, of_group in planned.items() if options.execute else ():
        results[name] = {}
        with failures.kept(f"group {name}"):
            results[name] = log_dir.group(name).reset(of_group, scope, notify=_ignore)
    _print(results, options)
    return failures.exit_code if is_complete else 1


def _scope(log_dir: LogDir, options: argparse.Namespace) -> list[TopicPartition] | None:
    """The partitions that --topic names; None for those with offsets in the group or the file."""
    if options.from_file is not None or options.all_topics:
        return None
    partitions, unknown = topic_partitions(log_dir, options.topic)
    for topic in unknown:
        raise UnknownTopicError(f"there is no topic {topic!r} in {log_dir.path}")
    return partitions


def _is_inactive(group: AnyGroup) -> bool:
    try:
        state = group.describe().state
    except UnknownGroupError:
        return True  # the reset creates it
    if state == "Empty":
        return True
    sys.stdout.write(
        f"\nError: Assignments can only be reset if the group '{printable(group.group_id)}' is inactive, "
        f"but the current state is {state}.\n"
    )
    return False


def _target(options: argparse.Namespace) -> ResetTarget:
    if options.to_offset is not None:
        return ToOffset(options.to_offset)
    if options.to_earliest:
        return ToEarliest()
    if options.to_latest:
        return ToLatest()
    if options.shift_by is not None:
        return ShiftBy(options.shift_by)
    if options.to_datetime is not None:
        return ToTimestamp(parse_datetime_ms(options.to_datetime))
    if options.by_duration is not None:
        return ToTimestamp(time_ms() - parse_duration_ms(options.by_duration))
    if options.to_current:
        return ToCurrent()
    raise UsageError(
        "--reset-offsets needs one of --to-earliest, --to-latest, --to-current, --to-offset, --shift-by, "
        "--to-datetime, --by-duration and --from-file"
    )


def parse_datetime_ms(text: str) -> int:
    """`2026-01-31T13:45:00.000`, in UTC or with a zone (`Z`, `+02`, `+02:00`), as ms. Raises UsageError."""
    match = _DATETIME.fullmatch(text)
    try:
        if match is None:
            raise ValueError(text)
        seconds = epoch_seconds(match[1], match[3] or "Z", zone_hours_max=_ZONE_HOURS_MAX)
    except (ValueError, OverflowError):
        raise UsageError(
            f"{text} is not a time: expected 2026-01-31T13:45:00.000, optionally with Z or +02:00"
        ) from None
    return seconds * 1000 + int(match[2])


def parse_duration_ms(text: str) -> int:
    """An ISO 8601 duration of days and shorter units (`P7D`, `PT2H30M`, `PT1.5S`) as ms. Raises UsageError."""
    match = _DURATION.fullmatch(text)
    parts = () if match is None else match.groups()[1:]
    if match is None or all(part is None for part in parts):
        raise UsageError(f"{text} is not a duration: expected the form of P7D, PT2H30M or P1DT12H")
    try:
        days, hours, minutes = (int(part or 0) for part in parts[:3])
        seconds = float(parts[3] or 0)
        whole = timedelta(days=days, hours=hours, minutes=minutes, seconds=seconds)
    except (ValueError, OverflowError):
        raise UsageError(f"{text} is too long a duration") from None
    return (-1 if match[1] == "-" else 1) * (whole // timedelta(milliseconds=1))


def _read_plans(path: Path, names: Sequence[str]) -> dict[str, dict[TopicPartition, int]]:
    """Offsets by group from a CSV file; lines without a group apply to the one group given."""
    if path.stat().st_size > _MAX_FILE_BYTES:
        raise UsageError(f"{path} has more than {_MAX_FILE_BYTES} bytes: expected a file of offsets")
    plans: dict[str, dict[TopicPartition, int]] = {}
    with path.open(encoding="utf-8", newline="") as file:
        reader = csv.reader(file)
        try:
            for row in filter(None, reader):
                in_group = [names[0], *row] if len(row) == 3 and len(names) == 1 else row
                group, topic, partition, offset = in_group
                plans.setdefault(group, {})[TopicPartition(topic, _number(partition))] = _number(offset)
        except (ValueError, csv.Error):  # wrong number of cells, not a number, or not text
            expected = "topic,partition,offset" if len(names) == 1 else "group,topic,partition,offset"
            raise UsageError(f"{path}, line {max(reader.line_num, 1)}: expected {expected}") from None
    return plans


def _number(text: str) -> int:
    if not _NUMBER.fullmatch(text.strip()):
        raise ValueError(text)
    return min(int(text), INT64_MAX)


def _plan_of(plans: Mapping[str, Mapping[TopicPartition, int]], name: str) -> ToOffsets | None:
    if name not in plans:
        sys.stdout.write(f"\nError: No reset plan for group {printable(name)} found\n")
        return None
    return ToOffsets(plans[name])


def _ignore(_: str) -> None:
    """Drop a warning that the plan has printed already."""


def _warn(text: str) -> None:
    notice(f"WARN: {text}")


def _print(results: Mapping[str, _Offsets], options: argparse.Namespace) -> None:
    rows = [(name, each, offset) for name, offsets in results.items() for each, offset in offsets.items()]
    output = output_of(options)
    for name, each, offset in rows:
        output.data(
            {
                "group": name,
                "topic": each.topic,
                "partition": each.partition,
                "newOffset": offset,
                "executed": options.execute,
            }
        )
    if options.export:
        for name, each, offset in rows:
            group = [] if len(options.group) == 1 else [_csv_text(name)]
            output.file_text(",".join([*group, _csv_text(each.topic), str(each.partition), str(offset)]) + "\n")
    elif results:
        lines = [("GROUP", "TOPIC", "PARTITION", "NEW-OFFSET")]
        lines += [(printable(name), each.topic, str(each.partition), str(offset)) for name, each, offset in rows]
        groups, topics = (max(_COLUMN_MIN, *(len(line[at]) for line in lines)) for at in (0, 1))
        for group_id, topic, partition, new_offset in lines:
            output.text(f"\n{group_id:<{groups}} {topic:<{topics}} {partition:<10} {new_offset}")
    output.text("\n")


def _csv_text(text: str) -> str:
    if len(text) <= _UNQUOTED_MAX_CHARS and all(char >= _UNQUOTED_FROM for char in text):
        return text
    return '"' + text.replace('"', '""') + '"'
