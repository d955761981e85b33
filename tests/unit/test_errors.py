"""A count that an input states is compared with what the input has room for, before anything of its size is built.

Sparse files of 30 GB and headers that name two billion of something cost nothing to make: each is refused or ignored
in a memory that the input's own bytes allow, and the error names the file, the expected and the found number.
"""

from __future__ import annotations

import contextlib
import shutil
import struct
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import pytest
from builders.metadata_roots import add_topic, forget_images
from builders.root_places import PLACES, Place, commit_names
from builders.verify_roots import check_again_at_once, findings_in
from repository import FIXTURES

from pyspark_kafkalog import LogDir
from pyspark_kafkalog.errors import CorruptIndexError, CorruptRecordError, DiskFormatError, KafkalogError
from pyspark_kafkalog.metadata.local.backend import read_snapshot, write_snapshot
from pyspark_kafkalog.metadata.snapshots import SnapshotId
from pyspark_kafkalog.record import reference
from pyspark_kafkalog.record.codecs.codec import CODECS, CompressionType
from pyspark_kafkalog.record.header import (
    ATTRIBUTES_AT,
    CRC_AT,
    LAST_OFFSET_DELTA_AT,
    LENGTH_AT,
    RECORDS_AT,
    RECORDS_COUNT_AT,
    BatchHeader,
    crc32c,
)
from pyspark_kafkalog.record.reference import decode_batch, encode_varint, iterate_batch, seal
from pyspark_kafkalog.root.brokers.broker_root import BrokerRoot
from pyspark_kafkalog.server.groups.assignors import ASSIGNORS, AssignedMember
from pyspark_kafkalog.server.metadata import RootTopics
from pyspark_kafkalog.storage.artefacts.transaction_index import TransactionIndex
from pyspark_kafkalog.storage.filesystem import LOCAL
from pyspark_kafkalog.units import INT32_MAX, MIB

HUGE_BYTES = 30 << 30


@contextlib.contextmanager
def memory_of_at_most(size_bytes: int) -> Iterator[None]:
    tracemalloc.start()
    try:
        yield
        peak_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak_bytes < size_bytes


def patched(batch: bytes, at: int, number: int) -> bytes:
    """The batch with another int32 at `at`, and a CRC that fits."""
    changed = bytearray(batch)
    struct.pack_into(">i", changed, at, number)
    struct.pack_into(">I", changed, CRC_AT, crc32c(bytes(changed[ATTRIBUTES_AT:])))
    return bytes(changed)


@pytest.fixture(params=PLACES)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    made: Place = request.param(tmp_path)
    return made


@pytest.mark.parametrize("number", [0, 1, INT32_MAX, -1])
def test_commit_that_states_another_number_of_records_is_refused(place: Place, number: int) -> None:
    add_topic(place.create())
    name = commit_names(place)[-1]
    data = place.read(name)
    size_bytes = struct.unpack_from(">i", data, LENGTH_AT)[0] + 12  # what follows are earlier commits
    place.write(name, patched(data[:size_bytes], LAST_OFFSET_DELTA_AT, number) + data[size_bytes:])
    forget_images()
    expected = ".*" if number < 2 else f"{number + 1} records up to offset [0-9]*, found [0-9];"
    with memory_of_at_most(8 * MIB), pytest.raises(CorruptRecordError, match=rf"{name}.*expected {expected}"):
        place.open()


@pytest.mark.parametrize("at", [LAST_OFFSET_DELTA_AT, RECORDS_COUNT_AT])
def test_snapshot_that_states_another_number_of_records_costs_its_own_size(at: int, tmp_path: Path) -> None:
    path = tmp_path / SnapshotId(9, 0).file_name
    write_snapshot(path, [], last_contained_timestamp_ms=5, epoch=0, fs=LOCAL)
    data = path.read_bytes()
    first_bytes = struct.unpack_from(">i", data, LENGTH_AT)[0] + 12
    path.write_bytes(patched(data[:first_bytes], at, INT32_MAX) + data[first_bytes:])
    with memory_of_at_most(8 * MIB), contextlib.suppress(DiskFormatError):
        list(read_snapshot(path).records)


@pytest.fixture
def brokers_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    check_again_at_once(monkeypatch)
    root = tmp_path / "root"
    shutil.copytree(FIXTURES / "transactions", root)
    shutil.rmtree(root / "expected")
    return root


def make_sparse(path: Path, *, last: bytes = b"") -> None:
    """A file of 30 GB without content, but `last` at its end."""
    with path.open("r+b" if path.exists() else "wb") as file:
        file.truncate(HUGE_BYTES - len(last))
        file.seek(HUGE_BYTES - len(last))
        file.write(last)


@pytest.mark.parametrize(
    "name",
    [
        "00000000000000000013.index",
        "00000000000000000013.timeindex",
        "00000000000000000013.txnindex",
        "00000000000000000085.snapshot",
        "leader-epoch-checkpoint",
        "partition.metadata",
        "../meta.properties",
        "../replication-offset-checkpoint",
    ],
)
def test_sparse_file_of_30_gb_is_refused_or_ignored_by_every_reader(name: str, brokers_root: Path) -> None:
    path = brokers_root / "transactions-0" / name
    make_sparse(path, last=b"\0" * 33 + b"\1")
    with memory_of_at_most(200 * MIB):
        for isolation in ("read_committed", "read_uncommitted"):
            with contextlib.suppress(KafkalogError):
                forget_images()
                LogDir.open(brokers_root).read("transactions", isolation=isolation)  # type: ignore[arg-type]
        try:
            named = {each.file for each in findings_in(brokers_root)}
        except DiskFormatError as error:
            named = {error.file}
        with contextlib.suppress(KafkalogError):
            LogDir.adopt(brokers_root, create_missing=True)
    assert str(path.resolve()) in {str(Path(each).resolve()) for each in named}


def test_transaction_index_with_more_entries_than_markers_fit_into_the_log_is_refused(brokers_root: Path) -> None:
    path = brokers_root / "transactions-0" / "00000000000000000013.txnindex"
    make_sparse(path)
    with TransactionIndex.open(path, 13) as index, memory_of_at_most(MIB):
        with pytest.raises(CorruptIndexError, match=f"{path}.*at most 65 entries, beside a log of 3950 bytes, found"):
            index.collect_aborted(0, 100)
        with pytest.raises(CorruptIndexError, match="in any segment"):
            index.sanity_check()


@pytest.mark.parametrize("name", ASSIGNORS)
def test_only_partitions_that_exist_are_assigned(name: str, tmp_path: Path) -> None:
    LogDir.create(tmp_path / "root").create_topic("zz", partitions=2)
    (tmp_path / "root" / "zz-1").rename(tmp_path / "root" / "zz-2147483646")
    (tmp_path / "root" / "__cluster_metadata-0" / "kafkalog-format").unlink()
    (tmp_path / "root" / "__cluster_metadata-0").rename(tmp_path / "root" / "__cluster_metadata-0.kafka-stray")
    topics = RootTopics(BrokerRoot(tmp_path / "root", clock=lambda: 0))
    topic_id = topics.topic_id("zz")
    assert topic_id is not None
    members = [AssignedMember(each, None, frozenset([topic_id])) for each in "ab"]
    with memory_of_at_most(MIB):
        assigned = ASSIGNORS[name](members, {topic_id: topics.partition_numbers(topic_id)})
    assert assigned == {"a": {topic_id: {0}}, "b": {topic_id: {2147483646}}}


MOST = 1000


def bomb_of_records(codec: CompressionType) -> bytes:
    count = 2 * MOST
    records = []
    for number in map(encode_varint, range(count)):
        records.append(encode_varint(5 + len(number)) + b"\0\0" + number + b"\1\1\0")
    return sealed(b"".join(records), count, codec)


def bomb_of_headers(codec: CompressionType) -> bytes:
    count = 2 * MOST
    body = b"\0\0\0\1\1" + encode_varint(count) + b"\0\1" * count
    return sealed(encode_varint(len(body)) + body, 1, codec)


def sealed(records: bytes, count: int, codec: CompressionType) -> bytes:
    body = CODECS[codec].compress(records)
    header = BatchHeader(
        base_offset=0,
        size_bytes=RECORDS_AT + len(body),
        last_offset_delta=count - 1,
        records_count=count,
        attributes=codec,
    )
    return seal(header, body)


@pytest.mark.parametrize("make", [bomb_of_records, bomb_of_headers])
def test_batch_of_more_records_and_headers_than_become_objects_is_refused(
    make: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = make(CompressionType.ZSTD)  # type: ignore[operator]
    monkeypatch.setattr(reference, "MAX_DECODED", MOST)
    with pytest.raises(CorruptRecordError, match=f"{MOST}"):
        decode_batch(data, 0, file="x", file_position=0)


def test_records_of_a_large_batch_are_read_one_by_one() -> None:
    records = iterate_batch(bomb_of_records(CompressionType.ZSTD), 0, file="x", file_position=0)
    assert [next(records).offset for _ in range(3)] == [0, 1, 2]
