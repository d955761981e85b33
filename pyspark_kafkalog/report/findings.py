"""Findings that may need an operator's action: the most severe first, one for each topic and kind."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from pyspark_kafkalog.maintenance.verify.findings import UNREADABLE, Finding, Severity
from pyspark_kafkalog.report.facts import (
    FINDING_SEVERITIES,
    RETENTION,
    Advice,
    GroupLag,
    PartitionFacts,
    RootFacts,
    TopicFacts,
)
from pyspark_kafkalog.root.snapshot import reason_and_advice
from pyspark_kafkalog.storage.artefacts.marker_files import BrokerProcess, broker_process
from pyspark_kafkalog.storage.below_root import split_paths
from pyspark_kafkalog.units import HOUR_MS, iso_utc, plural, size_text

_PROBLEM, _WARNING, _NOTE = FINDING_SEVERITIES
#: A partition is skewed when it has more than this many times the mean size of the others, and is not small.
_SKEW_FACTOR: Final = 3.0
_SKEW_BYTES_MIN: Final = 1 << 20
#: A topic has many small segments from this many closed ones on, below this part of segment.bytes on average.
_SMALL_SEGMENTS_MIN: Final = 16
_SMALL_PART: Final = 1 / 16
#: Runs of a partition in an object store, from which on reading them is slow.
_UNMERGED_RUNS_MIN: Final = 1000
_FUTURE_MS: Final = HOUR_MS
#: A group with lag that has not committed for this long is behind.
_QUIET_GROUP_MS: Final = 24 * HOUR_MS
#: Findings of a verification that the report has in its own words.
_TOLD_ELSEWHERE: Final = ("above-high-watermark", "remote-offsets")
#: The title of a failure to sample a topic's records.
NO_SAMPLE: Final = "Records cannot be read"
#: Objects of abandoned writes, which only a listing shows.
_UNNAMED: Final = ("orphan", "uncommitted-object")
_SEVERITIES: Final = {Severity.ERROR: _PROBLEM, Severity.WARNING: _WARNING, Severity.INFO: _NOTE}
_NAMES_MAX: Final = 5


def find(root: RootFacts) -> tuple[Advice, ...]:
    """All findings, problems first."""
    found = [*_of_damage(root), *_of_failures(root)]
    found += [each for topic in root.topics for each in _of_topic(topic, root)]
    found += _of_groups(root.groups, root.now_ms)
    found += _of_root(root)
    return tuple(sorted(found, key=lambda each: FINDING_SEVERITIES.index(each.severity)))


def all_well(root: RootFacts) -> str:
    """What a report without findings says: how much of the root was looked at."""
    if root.coverage.are_batches_checked:
        return "Nothing stands out."
    return "Nothing stands out in what was read; the bytes of batches were not checked."


def minute_utc(timestamp_ms: int) -> str:
    """The time as the page shows it: 2026-09-21 14:13 UTC; a number for a time that no calendar has."""
    text = iso_utc(timestamp_ms)
    return text if text.endswith("ms") else f"{text[:16].replace('T', ' ')} UTC"


def _of_damage(root: RootFacts) -> Iterator[Advice]:
    """What a verification found, one for each kind, topic and severity, with the first one's words."""
    kinds: dict[tuple[Severity, str, str | None], list[Finding]] = {}
    broken = {each.topic_partition for topic in root.topics for each in topic.partitions if each.error is not None}
    for each in root.damage:
        is_told = each.what in _TOLD_ELSEWHERE or (each.what == UNREADABLE and each.partition in broken)
        if not is_told and (each.severity is not Severity.INFO or each.what in _UNNAMED):
            topic = None if each.partition is None else each.partition.topic
            kinds.setdefault((each.severity, each.what, topic), []).append(each)
    for (severity, what, topic), found in kinds.items():
        first = found[0]
        at = "" if first.offset is None else f" at offset {first.offset}"
        more = f" ({len(found) - 1:,} more of this kind)" if len(found) > 1 else ""
        text = f"{first.file}{at}: expected {first.expected}, found {first.found}; {first.advice}{more}."
        yield Advice(_SEVERITIES[severity], what.replace("-", " ").capitalize().replace("crc", "CRC"), text, topic)


def _of_failures(root: RootFacts) -> Iterator[Advice]:
    """Parts of the report that could not be made, but not samples of topics in which a verification found damage."""
    is_checked = root.coverage.are_batches_checked
    errors = (each.partition for each in root.damage if is_checked and each.severity is Severity.ERROR)
    damaged = {each.topic for each in errors if each is not None}
    yield from (each for each in root.failures if each.title != NO_SAMPLE or each.topic not in damaged)


def _of_topic(topic: TopicFacts, root: RootFacts) -> Iterator[Advice]:
    name = topic.name
    partitions = topic.partitions
    broken = [each for each in partitions if each.error is not None]
    if broken:
        text = f"{_numbers(broken)}: {broken[0].error}"
        yield Advice(_PROBLEM, "Cannot be read", f"{text}. kafkalog verify shows details.", name)
    yield from _open_transactions(topic, root)
    failed = [each for each in partitions if each.topic_partition in root.uncleanable]
    if failed:
        text = f"{_numbers(failed)}: the last cleaning failed: {root.uncleanable[failed[0].topic_partition]}"
        yield Advice(_PROBLEM, "Uncleanable", text, name)
    yield from _maintenance(topic, root)
    yield from _shape(topic, root)
    yield from _unmerged(topic)
    future = [each for each in partitions if each.last_ms > root.now_ms + _FUTURE_MS]
    if future:
        held = "; retention.ms does not take them before their time" if "delete" in topic.cleanup_policy else ""
        yield Advice(_WARNING, "Timestamps in the future", f"{_numbers(future)}{held}.", name)


def _open_transactions(topic: TopicFacts, root: RootFacts) -> Iterator[Advice]:
    """Open transactions: a problem unless they are all younger than a producer may keep one open."""
    found = [each for each in topic.partitions if each.last_stable_offset < each.high_watermark]
    if not found:
        return
    behind = sum(each.high_watermark - each.last_stable_offset for each in found)
    text = f"{_numbers(found)}: {plural(behind, 'offset')} not visible to read_committed"
    since_ms = min(each.unstable_since_ms for each in found)
    if since_ms >= 0:
        text += f", since {minute_utc(since_ms)}"
    is_young = since_ms >= 0 and root.now_ms - since_ms < (root.transaction_max_ms or 0)
    advice = "" if is_young else "; kafkalog transactions find-hanging names them"
    yield Advice(_NOTE if is_young else _PROBLEM, "Open transaction", f"{text}{advice}.", topic.name)


def _unmerged(topic: TopicFacts) -> Iterator[Advice]:
    many = [each for each in topic.partitions if each.unmerged_runs >= _UNMERGED_RUNS_MIN]
    if many:
        runs, size = sum(each.unmerged_runs for each in many), sum(each.unmerged_bytes for each in many)
        text = f"{_numbers(many)}: {plural(runs, 'run')} with {size_text(size)}; reading takes a request for each"
        yield Advice(_WARNING, "Not merged", f"{text}. Run kafkalog merge-segments, or run it more often.", topic.name)


def _maintenance(topic: TopicFacts, root: RootFacts) -> Iterator[Advice]:
    due = [each for each in topic.partitions if each.due_segments]
    if due:
        segments, size = sum(each.due_segments for each in due), sum(each.due_bytes for each in due)
        advice = _advice(root, "run kafkalog retention")
        text = f"{plural(segments, 'segment')} with {size_text(size)} in {_numbers(due)}{advice}."
        yield Advice(_NOTE, "Retention is due", text, topic.name)
    dirty = [each for each in topic.partitions if each.cleaner is not None and each.cleaner.is_due]
    if dirty:
        size = sum(each.cleaner.cleanable_bytes for each in dirty if each.cleaner is not None)
        advice = _advice(root, "run kafkalog log-cleaner")
        yield Advice(_NOTE, "Cleaning is due", f"{size_text(size)} in {_numbers(dirty)}{advice}.", topic.name)
    stuck = [each for each in topic.partitions if _is_held_back(each)]
    if stuck:
        text = (
            f"{_numbers(stuck)}: an open transaction or min.compaction.lag.ms keeps closed segments from the cleaner."
        )
        yield Advice(_WARNING, "Uncleanable", text, topic.name)


def _is_held_back(partition: PartitionFacts) -> bool:
    """Whether an open transaction keeps the cleaner from closed segments."""
    cleaner = partition.cleaner
    if cleaner is None or not partition.runs or partition.last_stable_offset >= partition.high_watermark:
        return False
    return cleaner.first_uncleanable_offset < partition.runs[-1].base_offset


def _shape(topic: TopicFacts, root: RootFacts) -> Iterator[Advice]:
    partitions = topic.partitions
    largest = max(partitions, key=lambda each: each.size_bytes, default=None)
    if largest is not None and len(partitions) > 1 and largest.size_bytes >= _SKEW_BYTES_MIN:
        others = (topic.size_bytes - largest.size_bytes) / (len(partitions) - 1)
        if largest.size_bytes > _SKEW_FACTOR * others:
            times = (
                f"{largest.size_bytes / others:.1f} times as much as the others on average"
                if others
                else "all there is"
            )
            text = f"partition {largest.topic_partition.partition} has {size_text(largest.size_bytes)}, {times}."
            yield Advice(_WARNING, "Skewed partitions", text, topic.name)
    segments = sum(each.segments for each in partitions)
    closed = segments - len(partitions)
    if closed >= _SMALL_SEGMENTS_MIN and topic.size_bytes / segments < topic.segment_bytes * _SMALL_PART:
        text = (
            f"{plural(segments, 'segment')} of {size_text(topic.size_bytes // segments)} on average, "
            f"with segment.bytes of {size_text(topic.segment_bytes)}"
            f"{_advice(root, 'kafkalog merge-segments puts them together')}."
        )
        yield Advice(_NOTE, "Many small segments", text, topic.name)


def _of_groups(groups: Sequence[GroupLag], now_ms: int) -> Iterator[Advice]:
    yield from _behind(groups, now_ms)
    below: dict[tuple[str, str], list[GroupLag]] = {}
    above: dict[tuple[str, str], list[GroupLag]] = {}
    for each in groups:
        if each.log_start_offset is not None and each.committed_offset < each.log_start_offset:
            below.setdefault((each.group, each.topic_partition.topic), []).append(each)
        if each.lag is not None and each.lag < 0:
            above.setdefault((each.group, each.topic_partition.topic), []).append(each)
    for (group, topic), lags in below.items():
        lost = sum((each.log_start_offset or 0) - each.committed_offset for each in lags)
        text = (
            f"group {group} has not read {plural(lost, 'offset')} that are gone, in {plural(len(lags), 'partition')}."
        )
        yield Advice(_WARNING, "Gone before they were read", text, topic)
    for (group, topic), lags in above.items():
        text = f"group {group} has committed offsets beyond the end of {plural(len(lags), 'partition')}."
        yield Advice(_WARNING, "Offsets beyond the end", text, topic)


def _behind(groups: Sequence[GroupLag], now_ms: int) -> Iterator[Advice]:
    """Lag of each group and topic: a warning if the group has not committed for long."""
    behind: dict[tuple[str, str], list[GroupLag]] = {}
    for each in groups:
        if each.lag is not None and each.lag > 0:
            behind.setdefault((each.group, each.topic_partition.topic), []).append(each)
    for (group, topic), lags in behind.items():
        newest_ms = max(each.commit_ms for each in lags)
        is_quiet = now_ms - newest_ms > _QUIET_GROUP_MS
        text = (
            f"group {group} has {plural(sum(each.lag or 0 for each in lags), 'offset')} of "
            f"{plural(len(lags), 'partition')} left to read, and last committed at {minute_utc(newest_ms)}."
        )
        yield Advice(_WARNING if is_quiet else _NOTE, "Behind, and quiet" if is_quiet else "Lag", text, topic)


def _never_ran(root: RootFacts) -> Iterator[Advice]:
    """Jobs that have work, and that have never done any."""
    if root.is_foreign:
        return
    due = [topic for topic in root.topics if any(each.due_segments for each in topic.partitions)]
    if due and root.history is not None and root.history.never_saw(RETENTION):
        size = sum(each.due_bytes for topic in due for each in topic.partitions)
        text = (
            f"{size_text(size)} of {plural(len(due), 'topic')} are due, and no run has ever deleted anything: "
            "schedule kafkalog retention."
        )
        yield Advice(_WARNING, "Retention never ran", text)
    dirty = [topic for topic in root.topics if any(each.cleaner and each.cleaner.is_due for each in topic.partitions)]
    if dirty and root.last_cleaning is None:
        text = f"{plural(len(dirty), 'compacted topic')} due, and no run is recorded: schedule kafkalog log-cleaner."
        yield Advice(_WARNING, "Cleaner never ran", text)


def _of_root(root: RootFacts) -> Iterator[Advice]:
    yield from _of_brokers_disk(root)
    yield from _never_ran(root)
    staged = [each for topic in root.topics for each in topic.partitions if each.staged_files]
    retention_ms = root.staging_retention_ms
    left = [each for each in staged if retention_ms is not None and each.oldest_staged_ms < root.now_ms - retention_ms]
    if left:
        oldest_ms = min(each.oldest_staged_ms for each in left)
        text = (
            f"{_places(left)}: files of writes that did not finish, the oldest of {minute_utc(oldest_ms)}; kafkalog "
            "retention removes them after staging.retention.ms, and has not run since."
        )
        yield Advice(_WARNING, "Staged files left", text)
    if staged:
        files, size = sum(each.staged_files for each in staged), sum(each.staged_bytes for each in staged)
        text = (
            f"{plural(files, 'file')} with {size_text(size)}: of writes that are in progress, or that did not finish "
            "and go after staging.retention.ms."
        )
        yield Advice(_NOTE, "Staged, not committed", text)
    yield from _of_remote_storage([each for topic in root.topics for each in topic.partitions])
    if root.deleted_directories:
        text = f"{plural(root.deleted_directories, 'directory', 'directories')} go after file.delete.delay.ms."
        yield Advice(_NOTE, "Deleted topics", text)
    if root.stray_directories:
        text = f"{plural(root.stray_directories, 'directory', 'directories')} of partitions that belong to no topic."
        yield Advice(_NOTE, "Stray partitions", text)


def _of_remote_storage(partitions: Sequence[PartitionFacts]) -> Iterator[Advice]:
    """What the root itself has copied there, and what is still to be copied."""
    remote = [each for each in partitions if each.remote_segments]
    if remote:
        segments, size = sum(each.remote_segments for each in remote), sum(each.remote_bytes for each in remote)
        text = (
            f"{plural(segments, 'segment')} with {size_text(size)} of {plural(len(remote), 'partition')} "
            f"({_places(remote)}) are in remote storage."
        )
        yield Advice(_NOTE, "Remote segments", text)
    waiting = [each for each in partitions if each.copy_lag_segments]
    if waiting:
        segments, size = sum(each.copy_lag_segments for each in waiting), sum(each.copy_lag_bytes for each in waiting)
        text = (
            f"{plural(segments, 'closed segment')} with {size_text(size)} of {plural(len(waiting), 'partition')} "
            f"({_places(waiting)}) are not in remote storage yet: run kafkalog tier."
        )
        yield Advice(_NOTE, "To be copied to remote storage", text)


#: Of several directories the first one of these counts.
_BY_URGENCY: Final = (BrokerProcess.KILLED, BrokerProcess.RUNNING, BrokerProcess.STOPPED)


def _of_brokers_disk(root: RootFacts) -> Iterator[Advice]:
    """Records that readers of a broker's directory do not see."""
    partitions = [each for topic in root.topics for each in topic.partitions]
    above = [each for each in partitions if each.offsets_above_high_watermark]
    if above:
        total = sum(each.offsets_above_high_watermark for each in above)
        process = min(map(broker_process, split_paths(root.path)), key=_BY_URGENCY.index)
        text = (
            f"{plural(total, 'offset')} in {plural(len(above), 'partition')} ({_places(above)}) are not read: "
            f"{reason_and_advice(process)}."
        )
        severity = _WARNING if process is BrokerProcess.KILLED else _NOTE
        yield Advice(severity, "Above the high watermark", text)
    remote = [each for each in partitions if each.remote_offsets]
    if remote:
        total = sum(each.remote_offsets for each in remote)
        text = (
            f"{plural(total, 'earlier offset')} of {plural(len(remote), 'partition')} ({_places(remote)}) are in "
            "remote storage, not in this directory."
        )
        yield Advice(_WARNING, "In remote storage", text)


def _places(partitions: Sequence[PartitionFacts]) -> str:
    listed = ", ".join(str(each.topic_partition) for each in partitions[:_NAMES_MAX])
    return f"{listed} and {len(partitions) - _NAMES_MAX:,} more" if len(partitions) > _NAMES_MAX else listed


def _advice(root: RootFacts, words: str) -> str:
    """The advice, except for a broker's directory, which this package does not maintain."""
    return "" if root.is_foreign else f": {words}"


def _numbers(partitions: Iterable[PartitionFacts]) -> str:
    numbers = [each.topic_partition.partition for each in partitions]
    listed = ", ".join(map(str, numbers[:_NAMES_MAX]))
    more = f" and {len(numbers) - _NAMES_MAX:,} more" if len(numbers) > _NAMES_MAX else ""
    return f"partition{'s' if len(numbers) > 1 else ''} {listed}{more}"
