"""The permanent differences between Spark's Kafka source and kafkalog, each with its reason and the cases that show it.

A run fails at a difference that no entry covers, and at a case that an entry covers but that no longer differs.
`documented` is a text in the section "What differs" of docs/MIGRATING.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Final


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """`cases`: part and name of each case that shows it, as `batch: NAME`, with * for any text."""

    name: str
    documented: str
    reason: str
    cases: tuple[str, ...]

    def covers(self, part: str, name: str) -> bool:
        return any(fnmatchcase(f"{part}: {name}", _escaped(each)) for each in self.cases)


def _escaped(pattern: str) -> str:
    """Only * is a wildcard: names contain JSON and regular expressions."""
    return pattern.replace("[", "[[]").replace("?", "[?]")


#: Counted over all cases where both sides fail.
LATE_ERRORS: Final = Difference(
    name="late errors",
    documented="Where Spark does not yet say whether the read is a batch or a stream",
    reason="at load a Python source is not told whether a batch or a stream is read: it takes options of either",
    cases=(),
)

KNOWN: Final[tuple[Difference, ...]] = (
    Difference(
        name="unknown options",
        documented="is an error that lists the allowed options",
        reason="a misspelt failOnDataLoss must not go unnoticed",
        cases=(
            "batch: also startingOffset",
            "batch: also failOnDataLos",
            "batch: also kafka.no.such.setting",
            "sink: option kafka.no.such.setting",
            "sink: option noSuchOption",
        ),
    ),
    Difference(
        name="no subscription",
        documented="reads all topics that are not internal",
        reason="a log directory is a data set, which its path alone identifies",
        cases=("batch: no subscription",),
    ),
    Difference(
        name="missing partitions",
        documented="an assigned partition that does not exist",
        reason="a partition that is named and missing is an error, as a missing topic is in both",
        cases=(
            'batch: assign {"plain": [7]}',
            'batch: assign {"plain": [0, 7]}',
            'batch: assign {"plain": [-1]}',
            "batch: failOnDataLoss false: a missing partition",
        ),
    ),
    Difference(
        name="inexact JSON",
        documented="JSON with a fraction, a name that appears twice, or no partition",
        reason="ambiguous offsets are an error, not rounded or dropped",
        cases=(
            'batch: assign {"plain": []}',
            "batch: assign {}",
            'batch: assign {"plain":[0.5]}',
            "batch: startingOffsets a partition twice",
            "batch: endingOffsets a partition twice",
            "batch: startingOffsets an offset with a fraction",
            "batch: endingOffsets an offset with a fraction",
        ),
    ),
    Difference(
        name="negative timestamps",
        documented="a timestamp below 0",
        reason="in the protocol they are codes for latest and earliest, which options have names for",
        cases=(
            "batch: startingOffsetsByTimestamp -1",
            "batch: startingOffsetsByTimestamp -2",
            "batch: startingTimestamp '-1'",
            "batch: endingTimestamp '-1'",
        ),
    ),
    Difference(
        name="start beyond the end",
        documented="a starting offset beyond the end of the log",
        reason="offsets that were there and are not any more are data loss, whichever end of the log they are beyond",
        cases=(
            "batch: offsets above an end to none",
            "batch: failOnDataLoss *: deleted-head 50 to None",
            "batch: failOnDataLoss *: all-deleted 21 to None",
            "batch: failOnDataLoss *: empty 5 to None",
            "batch: isolation read_committed of txn 22 to -1",
            "batch: isolation read_committed of txn 20 to the latest",
        ),
    ),
    Difference(
        name="maxRecordsPerPartition without ends",
        documented="`maxRecordsPerPartition` in a batch read",
        reason="Spark counts the offsets before it has resolved earliest and latest; here they are resolved first",
        cases=(
            "batch: maxRecordsPerPartition 7 of big: tasks",
            "batch: maxRecordsPerPartition 40 of big: tasks",
            "batch: maxRecordsPerPartition 7 of plain: tasks",
        ),
    ),
    Difference(
        name="tasks for nothing",
        documented="a partition with nothing to read",
        reason="a Python task costs more than a JVM task; Spark makes one where a Python source plans none at all",
        cases=(
            "batch: tasks of half-empty",
            "batch: tasks of empty",
            "batch: minPartitions 5 of empty: tasks",
        ),
    ),
    Difference(
        name="spelling of values",
        documented="spaces around a number or a boolean",
        reason="nothing else can be meant",
        cases=(
            "batch: includeHeaders ' true '",
            "batch: minPartitions ' 2 '",
            "batch: isolation 'READ_COMMITTED'",
            "sink: kafka.compression.type 'GZIP'",
        ),
    ),
    Difference(
        name="values without effect",
        documented="an invalid value of an option that has no effect",
        reason="a wrong value is a mistake, wherever the option has an effect",
        cases=("batch: maxOffsetsPerTrigger 'x'", "batch: maxOffsetsPerTrigger '-1'"),
    ),
    Difference(
        name="a schema of one's own",
        documented="`.schema(...)` with some of the columns",
        reason="Spark does not tell a Python source which columns a query uses; a schema does",
        cases=("batch: a schema of some columns",),
    ),
    Difference(
        name="ending timestamp of a stream",
        documented="`endingTimestamp` in a streaming read",
        reason="a stream has no end; the Kafka source refuses endingOffsets and endingOffsetsByTimestamp alone",
        cases=("stream: bad options: endingTimestamp: start",),
    ),
    Difference(
        name="shares of a micro-batch",
        documented="the shares of `maxOffsetsPerTrigger`",
        reason="a micro-batch has as many offsets as were asked for; both give a partition one at least",
        cases=("stream: maxOffsetsPerTrigger: start",),
    ),
    Difference(
        name="partitioner settings",
        documented="`kafka.partitioner.class`, a serializer, an interceptor",
        reason="a class of Java cannot be called here; the option partitioner has what the producer's classes do",
        cases=("sink: option kafka.partitioner.*",),
    ),
    Difference(
        name="values of client settings",
        documented="an invalid value of a setting of Kafka's clients",
        reason="settings that have no effect here are accepted without a check",
        cases=("sink: option kafka.buffer.memory",),
    ),
    Difference(
        name="save mode",
        documented='a batch write without `.mode("append")`',
        reason="Spark checks the mode before it calls a Python data source",
        cases=("sink: mode not set", "sink: mode error"),
    ),
    Difference(
        name="column timestamp",
        documented="column `timestamp` of a write",
        reason="records keep their own time when topics are copied",
        cases=(
            "sink: timestamp given",
            "sink: timestamp as text",
            "sink: timestamp as milliseconds",
            "sink: timestamp without a zone",
        ),
    ),
    Difference(
        name="a column twice",
        documented="two columns of the same name",
        reason="Spark refuses to hand such rows to Python",
        cases=("sink: column value twice",),
    ),
    Difference(
        name="missing topics",
        documented="is created by a write, with `num.partitions`",
        reason="auto.create.topics.enable is on by default, as in Kafka; the broker of this test has it off",
        cases=(
            "sink: a topic that does not exist",
            "sink: a topic that does not exist in column topic",
            "sink: no rows for a topic that does not exist",
            "sink: stream to a topic that does not exist",
        ),
    ),
    Difference(
        name="output mode update",
        documented="output mode `update`",
        reason="Spark refuses it for Python sinks; the Kafka sink appends what was updated",
        cases=("sink: stream in output mode update",),
    ),
    Difference(
        name="rows of a failed write",
        documented="rows of a write become readable",
        reason="a commit is atomic here; the Kafka sink has sent the rows before the one that fails",
        cases=("sink: null in column topic", "sink: partition out of range in one row"),
    ),
    Difference(
        name="second actions",
        documented="a second action on one DataFrame or temporary view",
        reason="Spark keeps the partitions of a Python source with the loaded source",
        cases=(
            "repeat: a DataFrame, then an append",
            "repeat: a DataFrame, then delete-records",
            "repeat: a temporary view, then an append",
        ),
    ),
    Difference(
        name="re-created topics",
        documented="a topic deleted and re-created while a query was stopped",
        reason="a checkpoint holds topic ids here; the Kafka source goes by offsets, which say nothing about it",
        cases=("stream: topic re-created, failOnDataLoss false: re-created with less",),
    ),
)
