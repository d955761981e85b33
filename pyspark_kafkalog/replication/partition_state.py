"""One followed partition: what its answers mean, and what to do where its log and the leader's differ. Pure, no I/O.

    take              a fetch's answer: append (`Advance`), compare the logs (`Compare`), describe the leader again
                      (`DescribeAgain`), or try again later (`TryLater`)
    agreed_end_offset how far both logs have the same records, by their leader epochs
    resolve           what to do after a comparison: cut (`Cut`), start elsewhere (`StartOver`), compare one more batch
                      (`Probe`), or fetch again (`FetchOn`)

The log of a follower root ends at its high watermark, so each cut takes records that readers may have seen. Whether it
is made is for the caller to decide. A log without records cannot diverge.

A follower that begins, or resumes after a pause, first fetches its last batch again: two leaders that had no contact
can have used the same epoch number, and then only the batches tell. Kafka's own rules take an epoch number for one
leader's; here the first batch that differs is searched for by halves, so that no more than those that differ are cut.

Source of the rules: kafka.server.AbstractFetcherThread (processFetchRequest, getOffsetTruncationState,
fetchOffsetAndApplyTruncateAndBuild), KIP-101, KIP-279, KIP-320, KIP-595.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from pyspark_kafkalog.record.header import DELETE_HORIZON_MASK, BatchHeader, Buffer
from pyspark_kafkalog.record.scan import as_bytes_array, scan_batches
from pyspark_kafkalog.replication.leader import EpochEnd, FetchOutcome, FetchPosition, LeaderAnswer
from pyspark_kafkalog.root.commit.changes import FollowerAppend
from pyspark_kafkalog.root.commit.runs import StagedBatches
from pyspark_kafkalog.storage.artefacts.checkpoint_file import EpochEntry
from pyspark_kafkalog.storage.names import TopicPartition
from pyspark_kafkalog.units import MIB

#: Whoever reads a partition that so many bytes are to follow of does not read at its end.
_FAR_BEHIND_BYTES: Final = 32 * MIB
_FIRST_DELAY_MS: Final = 100
_LONGEST_DELAY_MS: Final = 10_000
_DELAYS_DOUBLED_MAX: Final = 10
_OTHER_BATCH: Final = "the leader has another batch where this log ends"

#: Asks the leader for the end of the largest leader epoch up to this one; see `LeaderEndPoint.epoch_end`.
AskEpochEnd: TypeAlias = Callable[[int], EpochEnd | None]
#: Reads the header of this log's first batch that ends above an offset; None if there is none.
ReadHeader: TypeAlias = Callable[[int], BatchHeader | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionState:
    """What the follower has of a partition, with what it has handed to be committed.

    `last_epoch` is the leader epoch of the last record, -1 without records. `unverified` is the last batch while it has
    not been compared with the leader's. `probe` is a batch to compare before anything else.
    """

    topic_partition: TopicPartition
    topic_id: str
    log_start_offset: int
    end_offset: int
    last_epoch: int = -1
    unverified: BatchHeader | None = None
    probe: BatchHeader | None = None

    @property
    def is_empty(self) -> bool:
        return self.log_start_offset == self.end_offset

    def position(self, leader_epoch: int = -1) -> FetchPosition:
        """Where to fetch next, from a leader that leads in `leader_epoch`."""
        again = self.unverified if self.probe is None else self.probe
        return FetchPosition(
            topic_partition=self.topic_partition,
            topic_id=self.topic_id,
            offset=self.end_offset if again is None else again.base_offset,
            last_epoch=self.last_epoch,
            leader_epoch=leader_epoch,
        )


@dataclass(frozen=True, slots=True)
class Advance:
    """Go on as `state`, and commit `change` if there is one. `records_count` of it, as the batches say."""

    state: PartitionState
    change: FollowerAppend | None = None
    records_count: int = 0


@dataclass(frozen=True, slots=True)
class Compare:
    """Find out how far the logs agree.

    `has_other_batch`: the leader has another batch where ours ends. `is_same`: whether it has the one that was probed;
    None if none was.
    """

    reason: str
    has_other_batch: bool = False
    is_same: bool | None = None


@dataclass(frozen=True, slots=True)
class DescribeAgain:
    """The topic has changed, or its leader: describe the leader, or ask for its sources, again."""

    is_topic_changed: bool


@dataclass(frozen=True, slots=True)
class TryLater:
    """Fetch again after a while."""

    error: str


Step: TypeAlias = Advance | Compare | DescribeAgain | TryLater


def take(state: PartitionState, fetched: LeaderAnswer, *, is_whole: bool = False) -> Step:
    """What to do with an answer to a fetch from `state.position()`.

    `is_whole`: no limit of bytes has left records out of the answer.
    """
    if fetched.outcome is FetchOutcome.RECORDS and fetched.staged is not None:
        return _take_staged(state, fetched, fetched.staged)
    if fetched.outcome is FetchOutcome.RECORDS:
        return _take_records(state, fetched, is_whole=is_whole)
    if fetched.outcome is FetchOutcome.OUT_OF_RANGE and state.probe is not None:
        return _probed(is_same=False)
    if fetched.outcome is FetchOutcome.DIVERGING:
        return Compare(f"the leader has other records than this log's, which ends in leader epoch {state.last_epoch}")
    if fetched.outcome is FetchOutcome.OUT_OF_RANGE:
        if state.unverified is not None:
            return Advance(replace(state, unverified=None))
        return Compare(f"offset {state.end_offset} is out of the leader's range")
    if fetched.outcome is FetchOutcome.TOPIC_CHANGED:
        return DescribeAgain(is_topic_changed=True)
    if fetched.outcome is FetchOutcome.LEADER_MOVED:
        return DescribeAgain(is_topic_changed=False)
    return TryLater(fetched.error or "the leader gave no reason")


def _take_records(state: PartitionState, fetched: LeaderAnswer, *, is_whole: bool) -> Step:
    scan = scan_batches(fetched.data, file=f"answer for {state.topic_partition}")
    if scan.fault is not None:
        return TryLater(str(scan.fault))
    if scan.consumed_bytes != len(as_bytes_array(fetched.data)):
        return TryLater(f"the leader's answer for {state.topic_partition} ends inside a batch")
    again = state.unverified if state.probe is None else state.probe
    if again is not None:
        if not len(scan.batches):
            return _take_nothing(state, fetched, again, is_whole=is_whole)
        is_same = _is_same_batch(again, scan.batches[0])
        if state.probe is not None:
            return _probed(is_same=is_same)
        if not is_same:
            return Compare(_OTHER_BATCH, has_other_batch=True)
        state = replace(state, unverified=None)
    return _advance(state, fetched, scan.batches)


def _take_nothing(state: PartitionState, fetched: LeaderAnswer, again: BatchHeader, *, is_whole: bool) -> Step:
    """Judges the batch `again`, which the leader was asked for, by an answer without records."""
    if 0 <= fetched.high_watermark <= again.base_offset:
        if state.probe is not None:
            return _probed(is_same=False)
        # A new leader may not show yet what it has. The end of the epoch tells: it counts all records.
        return Compare(f"the leader ends at offset {fetched.high_watermark}, this log at {state.end_offset}")
    if is_whole and state.probe is None and fetched.high_watermark >= state.end_offset:
        return Advance(replace(state, unverified=None))  # cleaned away at the leader, at the end of its log
    return Advance(state)  # a limit of bytes has left the partition out


def _take_staged(state: PartitionState, fetched: LeaderAnswer, staged: StagedBatches) -> Step:
    """Batches in the store cannot be compared or cut: they are taken as a whole, where the log ends."""
    is_comparing = state.unverified is not None or state.probe is not None
    if is_comparing or staged.first_offset != state.end_offset or not len(staged):
        return TryLater(f"batches that follow offset {staged.first_offset} do not continue {state.topic_partition}")
    epochs = [each.leader_epoch for each in staged.spans]
    return _append(state, fetched, staged, staged.next_offset, epochs[-1], staged.records_count)


def _probed(*, is_same: bool) -> Compare:
    return Compare(_OTHER_BATCH, has_other_batch=True, is_same=is_same)


def _is_same_batch(own: BatchHeader, other: np.void) -> bool:
    """Whether the leader's batch can be the one that was copied.

    Either log may have been cleaned since: that leaves out records, or sets the delete horizon, and changes the CRC.
    """
    if own.base_offset != other["base_offset"] or own.last_offset != other["last_offset"]:
        return int(other["base_offset"]) > own.last_offset  # cleaned away at the leader
    if own.leader_epoch != other["leader_epoch"]:
        return False
    is_cleaned = (own.attributes | int(other["attributes"])) & DELETE_HORIZON_MASK
    return bool(is_cleaned or own.records_count != other["records_count"] or own.crc == other["crc"])


def _advance(state: PartitionState, fetched: LeaderAnswer, batches: NDArray[np.void]) -> Step:
    new = batches[int(np.searchsorted(batches["last_offset"], state.end_offset)) :]
    if len(new) and int(new["base_offset"][0]) < state.end_offset and not state.is_empty:
        return Compare(
            f"the leader has a batch of the offsets {int(new['base_offset'][0])} to {int(new['last_offset'][0])}",
            has_other_batch=True,
        )
    if not len(new):
        return _append(state, fetched, b"", state.end_offset, state.last_epoch, 0)
    return _append(
        state,
        fetched,
        as_bytes_array(fetched.data).data[int(new["position"][0]) :],
        int(new["last_offset"][-1]) + 1,
        int(new["leader_epoch"][-1]),
        int(new["records_count"].sum()),
        is_far_behind=_is_far_behind(new, fetched.high_watermark),
    )


def _append(
    state: PartitionState,
    fetched: LeaderAnswer,
    data: Buffer | StagedBatches,
    end_offset: int,
    last_epoch: int,
    records_count: int,
    *,
    is_far_behind: bool = False,
) -> Advance:
    """Append `data`, whose last batch ends at `end_offset` and has `last_epoch`, and take the leader's log start."""
    log_start_offset = max(state.log_start_offset, min(fetched.log_start_offset, end_offset))
    if end_offset == state.end_offset and log_start_offset == state.log_start_offset:
        return Advance(state)
    after = replace(
        state,
        log_start_offset=log_start_offset,
        end_offset=end_offset,
        last_epoch=-1 if log_start_offset == end_offset else last_epoch,
    )
    change = FollowerAppend(
        topic_partition=state.topic_partition,
        topic_id=state.topic_id,
        data=data,
        expected_end_offset=state.end_offset,
        log_start_offset=log_start_offset if log_start_offset > state.log_start_offset else -1,
        is_far_behind=is_far_behind,
    )
    return Advance(after, change, records_count)


def _is_far_behind(batches: NDArray[np.void], high_watermark: int) -> bool:
    """Whether the leader has much more after these batches, if as many bytes an offset follow as they have."""
    next_offset = int(batches["last_offset"][-1]) + 1
    offsets = next_offset - int(batches["base_offset"][0])
    return (high_watermark - next_offset) * int(batches["size_bytes"].sum()) >= _FAR_BEHIND_BYTES * offsets


@dataclass(frozen=True, slots=True)
class Cut:
    """Drop the records from `end_offset` on: the leader has none there, or others."""

    end_offset: int


@dataclass(frozen=True, slots=True)
class StartOver:
    """Start the log at `start_offset`. The leader has no records below it, or this log has no records at all."""

    start_offset: int


@dataclass(frozen=True, slots=True)
class FetchOn:
    """The logs agree: fetch again."""


@dataclass(frozen=True, slots=True)
class EpochSearch:
    """The search for the first batch that differs, within the last epoch: all below `same_offset` are the same, and
    those from `other_offset` on differ, or are not there."""

    same_offset: int
    other_offset: int

    def next_probe(self, read: ReadHeader) -> BatchHeader | None:
        """The batch in the middle of the rest; None if there is none."""
        end_offset = self.other_offset
        while self.same_offset < end_offset:
            middle = (self.same_offset + end_offset) // 2
            found = read(middle)
            if found is not None and found.base_offset < end_offset:
                return found
            end_offset = middle
        return None

    def after(self, probe: BatchHeader, *, is_same: bool) -> EpochSearch:
        """What is left once `probe` was compared."""
        if is_same:
            return EpochSearch(probe.next_offset, max(probe.next_offset, self.other_offset))
        return EpochSearch(min(self.same_offset, probe.base_offset), probe.base_offset)


@dataclass(frozen=True, slots=True)
class Probe:
    """Compare this batch of the search, and resolve again."""

    search: EpochSearch
    batch: BatchHeader


Resolution: TypeAlias = Cut | StartOver | FetchOn | Probe


def agreed_end_offset(epochs: Sequence[EpochEntry], end_offset: int, ask: AskEpochEnd) -> int | None:
    """The offset up to which a log with these epochs (increasing) and this end has the leader's records (KIP-279).

    None if the leader knows none of the epochs: then they have no records in common.
    """
    known: EpochEnd | None = None
    for at in reversed(range(len(epochs))):
        epoch = epochs[at].epoch
        if known is not None and epoch > known.epoch:
            continue  # the leader has no such epoch
        if known is None or epoch < known.epoch:
            known = ask(epoch)
        if known is not None and known.epoch == epoch:
            own_end = end_offset if at + 1 == len(epochs) else epochs[at + 1].start_offset
            return min(own_end, known.end_offset)
    return None


def resolve(
    state: PartitionState,
    epochs: Sequence[EpochEntry],
    *,
    leader_start_offset: int,
    leader_high_watermark: int,
    agreed_offset: int | None,
    has_other_batch: bool,
    search: EpochSearch | None,
    read: ReadHeader,
) -> Resolution:
    """What to do after `Compare`, with the leader's range and what `agreed_end_offset` has found.

    `epochs` are those of the committed log. Where the last batches differ in the same epoch, `search` is what was found
    out in it so far, and `read` reads this log.
    """
    if not state.is_empty:
        agreed = state.log_start_offset if agreed_offset is None else agreed_offset
        if has_other_batch and agreed >= state.end_offset and epochs:
            if search is None:
                # What the leader has deleted cannot be compared, and its log start is about to be ours.
                known_offset = max(epochs[-1].start_offset, leader_start_offset, state.log_start_offset)
                search = EpochSearch(min(known_offset, state.end_offset), state.end_offset)
            probe = search.next_probe(read)
            if probe is not None:
                return Probe(search, probe)
            agreed = search.same_offset
        if agreed < state.end_offset:
            return Cut(max(agreed, state.log_start_offset))
    if state.end_offset < leader_start_offset:
        return StartOver(leader_start_offset)
    if state.is_empty and state.end_offset > leader_high_watermark:
        return StartOver(leader_start_offset)
    return FetchOn()


def epochs_with_records(epochs: Sequence[EpochEntry], end_offset: int) -> tuple[EpochEntry, ...]:
    """The epochs that begin below the log end: in the others, no record was written."""
    return tuple(each for each in epochs if each.start_offset < end_offset)


def retry_delay_ms(failures: int, rng: random.Random) -> int:
    """How long to wait after so many failures in a row: it doubles up to ten seconds, and differs by up to a half."""
    longest = min(_FIRST_DELAY_MS << min(failures, _DELAYS_DOUBLED_MAX), _LONGEST_DELAY_MS)
    return rng.randint(longest // 2, longest)
