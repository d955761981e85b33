"""The batches of a produce request as a leader stores them: checked, with offsets, leader epoch and timestamps.

    split         whole batches of format v2, with base offset 0; their sizes and CRCs
    headers       counts that agree, no control batches, a sequence if there is a producer id
    records       the structure of every record, its timestamp, its key in a compacted topic, in a compressed batch its
                  size: decompression ends where records of the largest size that is allowed would end
    rewrite       a batch that is not compressed as the topic wants, or whose offset deltas are not 0, 1, 2 and so on.
                  Its records stay as they are, but for the deltas
    stamp         the largest timestamp, or with LogAppendTime the type bit and the time of the append

Base offset and leader epoch are in the 16 header bytes that the CRC does not cover, so a batch that needs neither of
the last two steps is stored with the bytes that came. Compiled loops look at records; compressed ones are decompressed
for that, as in Kafka. The usual appends, which need neither of them, are accepted in one call: `accept_batches` has all
rules of the steps, and leaves a batch that breaks one to them, since they raise the errors.

All batches of an append are checked before the first is stored, and nothing here writes.

*Producers.* A batch that repeats one of the producer's last five, with the same epoch and sequences, is a duplicate:
its sender has not seen the answer. Any other batch has the sequence after the last one, or is the first of a new epoch
with sequence 0. A producer that the log does not know, or has forgotten, may begin with any sequence, but with 0 alone
in a transaction of version 2 (KIP-890): there an earlier batch that is missing has been refused, or is late. The marker
of such a transaction has a newer epoch than its batches (KIP-1228), so a marker of the epoch that is there ends
nothing. A `ProducerView` holds the state as it will be after batches that are to be appended, so that many appends of
one commit can be checked before the first of them is stored.

Source of the rules: UnifiedLog.analyzeAndValidateRecords and analyzeAndValidateProducerState, ProducerAppendInfo and
LogValidator of org.apache.kafka.storage.internals.log. Kafka does not check the sequences within an append of an
unknown producer. Where Kafka stores a row that no reader could use, it is refused or corrected: uncompressed batches
are renumbered as compressed ones are, and records of a wrong structure are refused in compressed batches, too.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from pyspark_kafkalog.config.topic import LogConfig
from pyspark_kafkalog.errors import (
    CorruptRecordError,
    InvalidRecordError,
    InvalidTimestampError,
    OutOfOrderSequenceError,
    ProducerFencedError,
    UnsupportedCompressionError,
    UnsupportedFormatError,
)
from pyspark_kafkalog.record.codecs.codec import CODECS, CompressionType, records_max_bytes
from pyspark_kafkalog.record.columns import BATCH_DTYPE, address_of
from pyspark_kafkalog.record.decode import LogBytes, check_counts, open_sections, record_fault
from pyspark_kafkalog.record.header import (
    ATTRIBUTES_AT,
    BASE_OFFSET_AT,
    COMPRESSION_MASK,
    CONTROL_MASK,
    LEADER_EPOCH_AT,
    LENGTH_AT,
    LOG_OVERHEAD_BYTES,
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NO_SEQUENCE,
    NO_TIMESTAMP,
    PRODUCER_ID_AT,
    RECORD_BATCH_OVERHEAD_BYTES,
    RECORDS_AT,
    RECORDS_COUNT_AT,
    TIMESTAMP_TYPE_MASK,
    Buffer,
    TimestampType,
    crc32c,
    next_sequence,
    parse_header,
)
from pyspark_kafkalog.record.kernels.decode import NO_FAULT, STATE_SIZE
from pyspark_kafkalog.record.kernels.native import crc32c_function
from pyspark_kafkalog.record.kernels.validate import (
    ANY_PRODUCER,
    RENUMBERED_RECORD_BYTES,
    accept_batches,
    check_sections,
    renumber_records,
)
from pyspark_kafkalog.record.scan import as_bytes_array, scan_batches, verify_crcs
from pyspark_kafkalog.storage.artefacts.producer_snapshot import NO_OFFSET
from pyspark_kafkalog.storage.log.producers import (
    BATCHES_TO_RETAIN,
    BatchMetadata,
    ProducerAppend,
    ProducerBatch,
    ProducerState,
)
from pyspark_kafkalog.storage.log.unified_log import check_batch_size, stamp
from pyspark_kafkalog.units import INT16_MAX, INT64_MAX, INT64_MIN
from pyspark_kafkalog.values import quick_dataclass

#: The name in errors for batches that are not in a file yet.
REQUEST: Final = "<produce request>"

#: Batches are decompressed for their checks until they take this much together.
_DECOMPRESSED_BYTES: Final = 32 << 20
_ERRORS_SHOWN: Final = 3
_INT32: Final = struct.Struct(">i")
_INT64: Final = struct.Struct(">q")

#: The id, epoch and next sequence of the producer whose batches are accepted.
_NO_PRODUCER: Final = NO_PRODUCER_ID, NO_PRODUCER_EPOCH, NO_SEQUENCE
_ANY_PRODUCER: Final = ANY_PRODUCER, NO_PRODUCER_EPOCH, NO_SEQUENCE


@quick_dataclass(frozen=True, slots=True)
class LeaderBatches:
    """Checked batches with their final headers: `batches` (BATCH_DTYPE) has their positions in `data`."""

    data: NDArray[np.uint8]
    batches: NDArray[np.void]

    def __len__(self) -> int:
        return len(self.batches)

    @property
    def next_offset(self) -> int:
        """The offset after the last batch, of which there is one at least."""
        return int(self.batches["last_offset"][-1]) + 1


@dataclass(frozen=True, slots=True)
class PreparedBatches:
    """Batches of a client that were checked before their commit, as a leader stores them from offset 0 on.

    They were checked for a topic with `config` at the time `now_ms`. Their memory has no other user.
    """

    batches: LeaderBatches
    config: LogConfig
    now_ms: int

    def placed(self, next_offset: int, leader_epoch: int) -> LeaderBatches:
        """The batches from `next_offset` on, in the same memory. Raises InvalidRecordError past the largest offset."""
        table = self.batches.batches.copy()
        _check_offset(next_offset, int(table["last_offset"][-1]))
        table["base_offset"] += next_offset
        table["last_offset"] += next_offset
        table["leader_epoch"] = leader_epoch
        view = memoryview(self.batches.data.data)
        for at, base_offset in zip(table["position"].tolist(), table["base_offset"].tolist(), strict=True):
            _INT64.pack_into(view, at + BASE_OFFSET_AT, base_offset)
            _INT32.pack_into(view, at + LEADER_EPOCH_AT, leader_epoch)
        return LeaderBatches(self.batches.data, table)


def prepare_batches(
    data: Buffer, config: LogConfig, *, now_ms: int, decompressed_max_bytes: int | None = None
) -> PreparedBatches | None:
    """Check the batches of a client, of which there is one at least, before they are committed.

    With `decompressed_max_bytes` only a batch is accepted that needs no rewriting, and whose content is not larger:
    None for any other, which needs more time. Raises as `validate_batches`.
    """
    if decompressed_max_bytes is None:
        checked = validate_batches(data, next_offset=0, leader_epoch=0, config=config, now_ms=now_ms)
        return PreparedBatches(checked, config, now_ms)
    return prepare_in_place(np.array(as_bytes_array(data)), config, now_ms=now_ms, content_max=decompressed_max_bytes)


def prepare_in_place(
    stored: NDArray[np.uint8], config: LogConfig, *, now_ms: int, content_max: int | None = None
) -> PreparedBatches | None:
    """As `prepare_batches`, of batches in memory that has no other user, if they are stored as they are.

    None, with the memory unchanged, for others. Raises RecordTooLargeError.
    """
    _check_first_size(stored, config)
    accepted = _accepted(stored, 0, 0, config, now_ms, content_max)
    return None if accepted is None else PreparedBatches(accepted, config, now_ms)


def accept_together(
    batches: Sequence[Buffer],
    config: LogConfig,
    producers: ProducerView,
    *,
    next_offset: int,
    leader_epoch: int,
    now_ms: int,
) -> LeaderBatches | None:
    """Batches of clients, each an append of its own, as a leader stores them one after the other from `next_offset` on.

    None unless all are stored as they are, have little content together, and are what `producers` expects and then has.
    """
    sizes = [len(each) for each in batches]
    if min(sizes) < RECORD_BATCH_OVERHEAD_BYTES:
        return None
    producer = producers.expected(_INT64.unpack_from(batches[0], PRODUCER_ID_AT)[0])
    if producer is None:
        return None
    stored = np.frombuffer(bytearray().join(batches), dtype=np.uint8)
    accepted = _accepted(stored, next_offset, leader_epoch, config, now_ms, _DECOMPRESSED_BYTES, sizes, producer)
    if accepted is not None:
        producers.follow(accepted.batches)
    return accepted


def validate_batches(
    data: Buffer, *, next_offset: int, leader_epoch: int, config: LogConfig, now_ms: int, is_client: bool = True
) -> LeaderBatches:
    """The batches of `data` as a leader stores them from `next_offset` on at the time `now_ms`.

    Coordinators (not `is_client`) may write control batches, and batches of producers without sequences.

    Raises CorruptRecordError for damage on the way, of which a CRC tells, so that a client tries again. Raises
    InvalidRecordError (RecordTooLargeError, InvalidTimestampError, ...) for what a leader refuses for good.
    """
    given = as_bytes_array(data)
    _check_first_size(given, config)
    stored = np.array(given)
    accepted = _accepted(stored, next_offset, leader_epoch, config, now_ms)
    if accepted is not None:  # as of a client, who may do less than a coordinator
        return accepted
    batches = _assign_offsets(stored, next_offset, leader_epoch, is_client=is_client)
    if not len(batches):
        return LeaderBatches(stored, batches)
    check_batch_size(int(batches["size_bytes"].max()), config)
    verify_crcs(stored, batches, data_position=0, file=REQUEST)
    _check_headers(batches, is_client=is_client)
    try:
        found = _check_records(stored, batches, config, now_ms)
    except CorruptRecordError as error:  # their CRC is right: the client has made them so
        raise InvalidRecordError(f"at byte {error.position}: expected {error.expected}, found {error.found}") from error
    codecs = _stored_codecs(batches, config)
    rewritten = (codecs != batches["attributes"] & COMPRESSION_MASK) | ~found.is_numbered
    if rewritten.any():
        stored, batches = _rewrite(stored, batches, codecs, rewritten, config)
    max_timestamps = found.max_timestamps_ms
    if config.message_timestamp_type is TimestampType.LOG_APPEND_TIME:
        max_timestamps = np.full(len(batches), now_ms, dtype=np.int64)
    return _stamp(stored, batches, config.message_timestamp_type, max_timestamps)


def _accepted(
    stored: NDArray[np.uint8],
    next_offset: int,
    leader_epoch: int,
    config: LogConfig,
    now_ms: int,
    decompressed_max_bytes: int | None = None,
    sizes: Sequence[int] = (),
    producer: tuple[int, int, int] = _ANY_PRODUCER,
) -> LeaderBatches | None:
    """The batches of clients if a kernel accepts them all in one call; None, with `stored` unchanged, if not.

    Their `sizes`, each at least that of a header, add up to that of `stored`; without them there is one batch.
    """
    crc_function = crc32c_function()
    is_usual = crc_function and config.message_timestamp_type is TimestampType.CREATE_TIME
    if not is_usual or len(stored) < RECORD_BATCH_OVERHEAD_BYTES:
        return None
    sizes = sizes or (len(stored),)
    opened = _opened(stored, sizes, config, decompressed_max_bytes)
    if opened is None:
        return None
    contents, _records = opened  # which have to stay in memory
    earliest, latest = _timestamp_bounds(config, now_ms)
    batch_bytes = min(config.max_message_bytes, config.segment_bytes)
    record_bytes = config.max_decompressed_message_bytes
    limits = batch_bytes, earliest, latest, int(config.compact), record_bytes
    rules = np.array((next_offset, leader_epoch, *producer, *limits), dtype=np.int64)
    table = np.empty(len(sizes), dtype=BATCH_DTYPE)
    is_accepted = accept_batches(crc_function, stored, np.array(contents, dtype=np.int64), rules, table)
    return LeaderBatches(stored, table) if is_accepted else None


def _opened(
    stored: NDArray[np.uint8], sizes: Sequence[int], config: LogConfig, decompressed_max_bytes: int | None
) -> tuple[list[tuple[int, int, int]], list[NDArray[np.uint8]]] | None:
    """The `contents` of `accept_batches`, and the decompressed records that they are addresses of.

    None for a batch that is damaged, or is stored with another codec, and for more content than
    `decompressed_max_bytes` together.
    """
    view, at, left, stored_bits = stored.data, 0, decompressed_max_bytes, -1
    contents: list[tuple[int, int, int]] = []
    opened: list[NDArray[np.uint8]] = []
    for size in sizes:
        bits = view[at + ATTRIBUTES_AT + 1] & COMPRESSION_MASK
        if bits != stored_bits:
            if bits not in CODECS or config.stored_compression(CompressionType(bits)) != bits:
                return None
            stored_bits = bits
        address = length = 0
        if bits:
            count = _INT32.unpack_from(view, at + RECORDS_COUNT_AT)[0]
            max_bytes = records_max_bytes(count, config.max_decompressed_message_bytes)
            try:
                records = CODECS[CompressionType(bits)].decompress(
                    stored[at + RECORDS_AT : at + size],
                    file=REQUEST,
                    file_position=at + RECORDS_AT,
                    max_bytes=max_bytes if left is None else min(max_bytes, left),
                )
            except CorruptRecordError:
                return None
            opened.append(records)
            address, length = address_of(records), len(records)
            left = None if left is None else left - length
        contents.append((size, address, length))
        at += size
    return contents, opened


# Batches


def _check_first_size(data: NDArray[np.uint8], config: LogConfig) -> None:
    """Refuse a batch that is too large before it is copied or decompressed. The others are checked with their CRCs."""
    if len(data) >= RECORD_BATCH_OVERHEAD_BYTES:
        size_bytes = _INT32.unpack_from(data.data, LENGTH_AT)[0] + LOG_OVERHEAD_BYTES
        if size_bytes <= len(data):
            check_batch_size(size_bytes, config)


def _assign_offsets(
    stored: NDArray[np.uint8], next_offset: int, leader_epoch: int, *, is_client: bool
) -> NDArray[np.void]:
    """Set base offsets and leader epochs in `stored`; returns the table of its batches."""
    view = memoryview(stored.data)
    at = 0
    while at < len(view):
        try:
            header = parse_header(view, at, file=REQUEST, file_position=at)
        except UnsupportedFormatError as error:
            raise InvalidRecordError(f"expected {error.expected}, found {error.found}") from error
        if header.size_bytes > len(view) - at:
            raise CorruptRecordError(
                file=REQUEST,
                position=at + LENGTH_AT,
                expected=f"a batch of at most {len(view) - at} bytes",
                found=f"{header.size_bytes} bytes",
            )
        if is_client and header.base_offset != 0:
            raise InvalidRecordError(f"the base offset of a batch in an append is {header.base_offset}, expected 0")
        _check_offset(next_offset, header.last_offset_delta)
        _INT64.pack_into(view, at + BASE_OFFSET_AT, next_offset)
        _INT32.pack_into(view, at + LEADER_EPOCH_AT, leader_epoch)
        next_offset += header.last_offset_delta + 1
        at += header.size_bytes
    return _table(stored)


def _check_offset(next_offset: int, last_offset_delta: int) -> None:
    if next_offset > INT64_MAX - 1 - last_offset_delta:
        raise InvalidRecordError(f"a batch at offset {next_offset} would end past the largest offset")


def _table(stored: NDArray[np.uint8]) -> NDArray[np.void]:
    """The batches in `stored`, which holds whole ones."""
    if not len(stored):
        return np.empty(0, dtype=BATCH_DTYPE)
    scan = scan_batches(stored, file=REQUEST)
    if scan.fault is not None:
        raise scan.fault
    assert scan.consumed_bytes == len(stored)
    return scan.batches


def _check_headers(batches: NDArray[np.void], *, is_client: bool) -> None:
    spans = batches["last_offset"] - batches["base_offset"] + 1
    counts = batches["records_count"]
    wrong = np.flatnonzero((counts <= 0) | (counts != spans))
    if len(wrong):
        raise InvalidRecordError(f"a batch of {counts[wrong[0]]} records spans {spans[wrong[0]]} offsets")
    codecs = batches["attributes"] & COMPRESSION_MASK
    if int(codecs.max()) not in CODECS:
        raise UnsupportedCompressionError(f"a batch has the codec bits {int(codecs.max())}, which name no codec")
    if not is_client:
        return
    if (batches["attributes"] & CONTROL_MASK).any():
        raise InvalidRecordError("clients may not write control records")
    if ((batches["producer_id"] >= 0) & (batches["base_sequence"] < 0)).any():
        raise InvalidRecordError("a batch of a producer with an id has no sequence number")


# Records


@dataclass(frozen=True, slots=True)
class _Found:
    """For each batch: the largest timestamp of its records, and whether its offset deltas are 0, 1, 2 and so on."""

    max_timestamps_ms: NDArray[np.int64]
    is_numbered: NDArray[np.bool_]


def _check_records(stored: NDArray[np.uint8], batches: NDArray[np.void], config: LogConfig, now_ms: int) -> _Found:
    """Check every record, in runs of batches of a bounded size after decompression."""
    log = LogBytes.of(stored, batches, 0, REQUEST, False, config.max_decompressed_message_bytes)
    largest, numbered = [], []
    first = 0
    while first < len(batches):
        sections = open_sections(log, batches[first:], max_bytes=_DECOMPRESSED_BYTES)
        check_counts(sections, REQUEST)
        rows = sections.batches
        counts = rows["records_count"].astype(np.int64)
        total = int(counts.sum())
        timestamps = np.empty(total, dtype=np.int64)  # bounded: by check_counts
        has_key = np.empty(total, dtype=np.uint8)  # bounded: by check_counts
        is_numbered = np.empty(len(rows), dtype=np.uint8)
        state = np.zeros(STATE_SIZE, dtype=np.int64)
        table = np.ascontiguousarray(rows)
        fault = check_sections(sections.addresses, sections.sizes, table, timestamps, has_key, is_numbered, state)
        if fault != NO_FAULT:
            raise record_fault(fault, state, rows, REQUEST)
        before = int(batches["records_count"][:first].sum(dtype=np.int64))
        if config.compact and not has_key.all():
            raise _refused(np.flatnonzero(has_key == 0) + before, "a compacted topic accepts no record without a key")
        _check_timestamps(table, counts, timestamps, before, config, now_ms)
        # As in Kafka, a batch with none but earlier records has no largest timestamp.
        largest.append(np.maximum(np.maximum.reduceat(timestamps, np.cumsum(counts) - counts), NO_TIMESTAMP))
        numbered.append(is_numbered.view(np.bool_))
        first += len(rows)
    return _Found(np.concatenate(largest), np.concatenate(numbered))


def _check_timestamps(
    batches: NDArray[np.void],
    counts: NDArray[np.int64],
    timestamps_ms: NDArray[np.int64],
    before: int,
    config: LogConfig,
    now_ms: int,
) -> None:
    """Raise InvalidTimestampError for records, the first of which is the one with index `before` of the append."""
    if config.message_timestamp_type is TimestampType.LOG_APPEND_TIME:
        has_append_time = (batches["attributes"] & TIMESTAMP_TYPE_MASK) != 0
        if has_append_time.any():
            rows = np.flatnonzero(np.repeat(has_append_time, counts)) + before  # bounded: by check_counts
            raise _refused(rows, "a producer may not set the timestamp type LogAppendTime itself", is_timestamp=True)
        return
    earliest, latest = _timestamp_bounds(config, now_ms)
    wrong = (timestamps_ms < earliest) | (timestamps_ms > latest)
    if wrong.any():
        rows = np.flatnonzero(wrong & (timestamps_ms != NO_TIMESTAMP))
        if len(rows):
            raise _refused(
                rows + before,
                f"timestamp {timestamps_ms[rows[0]]} is out of [{earliest}, {latest}], the range that "
                "message.timestamp.before.max.ms and message.timestamp.after.max.ms allow",
                is_timestamp=True,
            )


def _timestamp_bounds(config: LogConfig, now_ms: int) -> tuple[int, int]:
    """The first and the last timestamp that the topic accepts at the time `now_ms`; it accepts -1 (none), too."""
    earliest = max(now_ms - config.message_timestamp_before_max_ms, INT64_MIN)
    return earliest, min(now_ms + config.message_timestamp_after_max_ms, INT64_MAX)


def _refused(rows: NDArray[np.int64], reason: str, *, is_timestamp: bool = False) -> InvalidRecordError:
    """The error for the records with the indexes `rows` of the append."""
    indexes = [int(row) for row in rows]
    shown = ", ".join(str(index) for index in indexes[:_ERRORS_SHOWN])
    message = f"{len(indexes)} records are refused, the first with index {shown} of the append: {reason}"
    kind = InvalidTimestampError if is_timestamp else InvalidRecordError
    return kind(message, tuple((index, reason) for index in indexes))


# Rewriting


def _stored_codecs(batches: NDArray[np.void], config: LogConfig) -> NDArray[np.int16]:
    """The codec to store each batch with. Control batches keep theirs."""
    codecs = batches["attributes"] & COMPRESSION_MASK
    is_control = (batches["attributes"] & CONTROL_MASK) != 0
    wanted = [config.stored_compression(CompressionType(codec)) for codec in codecs.tolist()]
    result: NDArray[np.int16] = np.where(is_control, codecs, np.array(wanted, dtype=np.int16))
    return result


def _rewrite(
    stored: NDArray[np.uint8],
    batches: NDArray[np.void],
    codecs: NDArray[np.int16],
    rewritten: NDArray[np.bool_],
    config: LogConfig,
) -> tuple[NDArray[np.uint8], NDArray[np.void]]:
    """The batches with the marked ones compressed with `codecs`, and their records renumbered."""
    parts = []
    for row, codec, is_rewritten in zip(batches, codecs.tolist(), rewritten.tolist(), strict=True):
        batch = stored[int(row["position"]) : int(row["position"] + row["size_bytes"])]
        if is_rewritten:
            batch = _rewritten(batch, CompressionType(codec), config)
            check_batch_size(len(batch), config)
        parts.append(batch)
    result = np.concatenate(parts)
    return result, _table(result)


def _rewritten(batch: NDArray[np.uint8], codec: CompressionType, config: LogConfig) -> NDArray[np.uint8]:
    header = parse_header(batch, 0, file=REQUEST, file_position=0)
    old_codec = CODECS[CompressionType(header.compression_bits)]
    records = old_codec.decompress(batch[RECORDS_AT:], file=REQUEST, file_position=RECORDS_AT)
    # bounded: by check_counts, before
    renumbered = np.empty(len(records) + header.records_count * RENUMBERED_RECORD_BYTES, dtype=np.uint8)
    size_bytes = renumber_records(address_of(records), len(records), header.records_count, address_of(renumbered))
    body = CODECS[codec].compress(renumbered[:size_bytes], config.compression_level(codec))
    attributes = header.attributes & ~COMPRESSION_MASK | codec
    header = replace(header, attributes=attributes, size_bytes=RECORDS_AT + len(body), crc=0)
    result = np.frombuffer(bytearray(header.pack() + body), dtype=np.uint8)
    header = replace(header, crc=crc32c(result[ATTRIBUTES_AT:]))
    result[:RECORDS_AT] = np.frombuffer(header.pack(), dtype=np.uint8)
    return result


# Timestamps


def _stamp(
    stored: NDArray[np.uint8],
    batches: NDArray[np.void],
    timestamp_type: TimestampType,
    max_timestamps_ms: NDArray[np.int64],
) -> LeaderBatches:
    """Set timestamp type and largest timestamp of the batches that have others."""
    bits = TIMESTAMP_TYPE_MASK if timestamp_type is TimestampType.LOG_APPEND_TIME else 0
    differs = (batches["max_timestamp_ms"] != max_timestamps_ms) | (
        (batches["attributes"] & TIMESTAMP_TYPE_MASK) != bits
    )
    rows = np.flatnonzero(differs).tolist()
    if not rows:
        return LeaderBatches(stored, batches)
    for row in rows:
        at, size_bytes = int(batches["position"][row]), int(batches["size_bytes"][row])
        header = parse_header(stored, at, file=REQUEST, file_position=at)
        stamp(stored[at : at + size_bytes], header, timestamp_type, int(max_timestamps_ms[row]))
    return LeaderBatches(stored, _table(stored))


class ProducerView:
    """The producers of a log, `known`, with the changes of batches that are about to be appended.

    `known` may be another view's changes over the log's own producers: see `child` and `absorb`. `recalled` gives a
    producer's state with the batches before the ones that `known` has; it is asked before such a batch is refused.
    """

    def __init__(
        self,
        known: Mapping[int, ProducerState],
        parent: ProducerView | None = None,
        recalled: Callable[[int], ProducerState | None] = lambda producer_id: None,
    ) -> None:
        self._known = known
        self._parent = parent
        self._recalled = recalled
        self._changed: dict[int, ProducerState] = {}

    @property
    def changed(self) -> Mapping[int, ProducerState]:
        """The states of the producers whose batches were added."""
        return self._changed

    def get(self, producer_id: int) -> ProducerState | None:
        """The state of a producer; None if it is unknown."""
        view: ProducerView | None = self
        while view is not None:
            state = view._changed.get(producer_id)
            if state is not None:
                return state
            view = view._parent
        return self._known.get(producer_id)

    def child(self) -> ProducerView:
        """A view on this one, whose changes `absorb` may take over."""
        return ProducerView(self._known, self, self._recalled)

    def absorb(self, child: ProducerView) -> None:
        """Take over the changes of `child`."""
        self._changed.update(child._changed)

    def add(
        self, batches: Sequence[ProducerBatch], *, is_client: bool = True, is_transaction_v2: bool = False
    ) -> BatchMetadata | None:
        """Count in the batches of one append; if one is a duplicate, change nothing and return the batch it repeats.

        Only the batches of clients have their sequences checked. `is_transaction_v2`: a producer without batches must
        begin with sequence 0, and markers have a newer epoch. Raises OutOfOrderSequenceError, ProducerFencedError,
        InvalidTransactionStateError; then nothing has changed.
        """
        appends: dict[int, ProducerAppend] = {}
        for batch in batches:
            known = self.get(batch.producer_id)
            if is_client and known is not None:
                duplicate = find_duplicate(known, batch) or self._find_earlier(known, batch)
                if duplicate is not None:
                    return duplicate
            append = appends.get(batch.producer_id)
            if append is None:
                append = ProducerAppend(known or ProducerState(batch.producer_id), is_fencing=True)
                appends[batch.producer_id] = append
            if is_client:
                if is_transaction_v2 and batch.base_sequence and (known is None or not known.batches):
                    raise OutOfOrderSequenceError(
                        f"producer {batch.producer_id} has no batches here and begins a transaction "
                        f"with sequence {batch.base_sequence}, expected 0"
                    )
                _check_sequence(known, append.updated, batch)
            if is_transaction_v2 and batch.marker is not None:
                _check_marker_epoch(append.updated, batch)
            append.append(batch)
        for producer_id, append in appends.items():
            known = self.get(producer_id)
            self._changed[producer_id] = append.updated if known is None else known.merged(append.updated)
        return None

    def expected(self, producer_id: int) -> tuple[int, int, int] | None:
        """The id, epoch and next sequence of a producer whose batches can be counted in by `follow`.

        None for a producer of which each batch has to be looked at: one without batches, or with an open transaction.
        """
        if producer_id < 0:
            return _NO_PRODUCER
        known = self.get(producer_id)
        if known is None or not known.batches or known.current_txn_first_offset != NO_OFFSET:
            return None
        return producer_id, known.producer_epoch, next_sequence(known.last_sequence, 1)

    def follow(self, table: NDArray[np.void]) -> None:
        """Count in the batches of a table, which are of no producer, or follow as `expected` of theirs says."""
        known = self.get(int(table["producer_id"][0]))
        if known is None:
            return
        batches = known.batches
        for row in table[-BATCHES_TO_RETAIN:].tolist():
            _, _, base_offset, last_offset, _, max_timestamp_ms, _, _, base_sequence, *_ = row
            delta = last_offset - base_offset
            batches += (BatchMetadata(next_sequence(base_sequence, delta), last_offset, delta, max_timestamp_ms),)
        self._changed[known.producer_id] = ProducerState(
            known.producer_id,
            known.producer_epoch,
            known.coordinator_epoch,
            max_timestamp_ms,
            NO_OFFSET,
            batches[-BATCHES_TO_RETAIN:],
        )

    def _find_earlier(self, known: ProducerState, batch: ProducerBatch) -> BatchMetadata | None:
        """The batch that this one repeats, if it is one of the last five and not in `known`."""
        missing = BATCHES_TO_RETAIN - len(known.batches)
        follows = not known.batches or batch.base_sequence == next_sequence(known.last_sequence, 1)
        if missing <= 0 or follows or batch.producer_epoch != known.producer_epoch:
            return None
        recalled = self._recalled(batch.producer_id)
        return None if recalled is None else find_duplicate(recalled, batch)


def find_duplicate(producer: ProducerState, batch: ProducerBatch) -> BatchMetadata | None:
    """The remembered batch with the same epoch and sequences; None if no batch has them."""
    if batch.producer_epoch != producer.producer_epoch:
        return None
    last_sequence = batch.last_sequence
    for known in producer.batches:
        if known.last_sequence == last_sequence and known.first_sequence == batch.base_sequence:
            return known
    return None


def _check_marker_epoch(updated: ProducerState, batch: ProducerBatch) -> None:
    """Check the epoch of a marker of a transaction of version 2; a marker that is repeated has the epoch of the first.

    The last epoch of all cannot rise.
    """
    is_open = updated.current_txn_first_offset != NO_OFFSET
    may_repeat = not is_open or batch.producer_epoch == INT16_MAX
    if batch.producer_epoch == updated.producer_epoch and not may_repeat:
        raise ProducerFencedError(
            f"the marker of producer {batch.producer_id} has epoch {batch.producer_epoch}, expected a newer one: its "
            "transaction of version 2 was written with that epoch"
        )


def _check_sequence(known: ProducerState | None, updated: ProducerState, batch: ProducerBatch) -> None:
    """Check the sequence of a batch that follows `updated`, which began as `known`. An older epoch is fenced later."""
    first, epoch = batch.base_sequence, updated.producer_epoch
    if batch.producer_epoch < epoch:
        return
    if batch.producer_epoch > epoch:
        if first != 0 and epoch != NO_PRODUCER_EPOCH:
            raise OutOfOrderSequenceError(
                f"producer {batch.producer_id} begins its epoch {batch.producer_epoch} "
                f"with sequence {first}, expected 0"
            )
        return
    last = updated.last_sequence
    if not updated.batches and known is not None and known.producer_epoch == epoch:
        last = known.last_sequence
    expected = 0 if last == NO_SEQUENCE else next_sequence(last, 1)
    if first != expected:
        raise OutOfOrderSequenceError(f"producer {batch.producer_id} sent sequence {first}, expected {expected}")
