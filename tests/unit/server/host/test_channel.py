"""What a worker and the committer of its host tell each other: read as it was written, or refused with ChannelError."""

from __future__ import annotations

import errno
import os
import pickle
import socket
import struct
from collections import deque
from collections.abc import Iterator, Sequence

import numpy as np
import pytest
from builders.leader_writers import batch
from fakes.hosts import results_message
from hypothesis import given
from hypothesis import strategies as st
from open_files import descriptors, descriptors_before

from pyspark_kafkalog import errors
from pyspark_kafkalog.config.topic import LogConfig
from pyspark_kafkalog.errors import (
    CorruptRecordError,
    InvalidTimestampError,
    KafkalogError,
    LogDirError,
    OutOfOrderSequenceError,
)
from pyspark_kafkalog.record.scan import as_bytes_array, scan_batches
from pyspark_kafkalog.root.commit.changes import AppendedRange, OutdatedCheckError
from pyspark_kafkalog.server.host import channel
from pyspark_kafkalog.server.host.channel import ChannelError, CheckedFor, Kind, Messages, Ring
from pyspark_kafkalog.units import INT64_MAX, INT64_MIN, MIB

TOPIC = CheckedFor("orders", "an id", LogConfig(max_message_bytes=1234))
BATCH = batch()
MEMORY_BYTES = 4096
HEAD_BYTES = 5  # the size and the kind of a message


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    one, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    with one, other:
        other.settimeout(5)
        yield one, other


def unit_row(topic: int = 0, partition: int = 0, position: int = 0, **fields: int) -> bytes:
    """The row of a unit; `fields` of its batch are changed."""
    row = scan_batches(as_bytes_array(BATCH), file="<test>").batches.copy()
    for name, value in fields.items():
        row[name.removeprefix("batch_")] = value
    return channel.UNIT_HEAD.pack(topic, partition, position, 0) + row.tobytes()


def content(message: bytes) -> bytes:
    ((_, found),) = Messages().read(message)
    return found


def results(*each: AppendedRange | BaseException) -> bytes:
    """The content of a message with results."""
    return content(results_message(*each))


# The memory


class Model:
    """A plain model of the ring: the regions in use, oldest first."""

    def __init__(self) -> None:
        self.used: deque[tuple[int, int]] = deque()

    def is_free(self, at: int, size: int) -> bool:
        return all(at + size <= begin or end <= at for begin, end in self.used)


STEPS = st.lists(st.one_of(st.integers(1, 120), st.sampled_from(["give back", "take back"])), max_size=200)


@given(STEPS)
def test_regions_in_use_are_apart_and_none_crosses_the_end(steps: Sequence[int | str]) -> None:
    ring, model = Ring(100), Model()
    for step in steps:
        if isinstance(step, int):
            at = ring.take(step)
            if at is None:
                assert step > 100 or model.used
                continue
            assert 0 <= at <= 100 - step
            assert model.is_free(at, step)
            model.used.append((at, at + step))
        elif model.used and step == "give back":
            ring.give_back()
            model.used.popleft()
        elif model.used:
            ring.take_back()
            model.used.pop()


@given(st.lists(st.integers(1, 30), min_size=1, max_size=50), st.integers(1, 4))
def test_ring_with_few_regions_in_use_always_has_room(sizes: Sequence[int], in_use: int) -> None:
    """A skipped end of the memory costs less than a region, and is given back with the region after it."""
    ring = Ring(30 * (in_use + 2))
    for at, size in enumerate(sizes):
        if at >= in_use:
            ring.give_back()
        assert ring.take(size) is not None


def test_region_that_is_taken_back_is_taken_again() -> None:
    ring = Ring(100)
    assert (ring.take(60), ring.take(30)) == (0, 60)
    ring.give_back()
    assert ring.take(50) == 0  # not across the end
    ring.take_back()
    assert ring.take(10) == 90


def test_ring_without_regions_begins_at_its_beginning_again() -> None:
    ring = Ring(100)
    ring.take(70)
    ring.give_back()
    assert ring.take(100) == 0
    assert ring.take(1) is None


def test_region_larger_than_the_memory_is_refused_and_changes_nothing() -> None:
    ring = Ring(100)
    assert ring.take(101) is None
    assert ring.take(100) == 0


# Messages


MESSAGES = st.lists(st.tuples(st.sampled_from(Kind), st.binary(max_size=300)), max_size=20)


@given(MESSAGES, st.lists(st.integers(0, 400)))
def test_messages_split_anywhere_are_read_alike(sent: Sequence[tuple[Kind, bytes]], cuts: Sequence[int]) -> None:
    data = b"".join(channel.message(*each) for each in sent)
    messages, found = Messages(), list[tuple[Kind, bytes]]()
    for size in (*cuts, len(data)):
        found += messages.read(data[:size])
        data = data[size:]
    assert found == sent


@pytest.mark.parametrize("kind", [0, 5, 255])
def test_message_of_unknown_kind_is_refused(kind: int) -> None:
    with pytest.raises(ChannelError, match=f"expected a message of up to .* found 0 \\({kind}\\)"):
        list(Messages().read(bytes(4) + bytes([kind])))


def test_oversized_message_is_refused_before_its_content_has_come() -> None:
    with pytest.raises(ChannelError, match="expected a message of up to"):
        list(Messages().read((64 * MIB + 1).to_bytes(4, "little") + bytes([Kind.UNITS])))


@given(st.binary(max_size=200))
def test_arbitrary_bytes_are_messages_or_refused(data: bytes) -> None:
    try:
        for _, found in Messages().read(data):
            assert len(found) <= len(data)
    except ChannelError:
        pass


# Topics


def test_topic_is_read_as_it_was_written() -> None:
    assert channel.read_topic(content(channel.topic_message(7, TOPIC))) == (7, TOPIC)


@pytest.mark.parametrize(
    "topic",
    [(), ("orders",), (b"orders", None, LogConfig()), ("orders", 1, LogConfig()), ("orders", None, {}), None],
    ids=str,
)
def test_topic_of_other_values_is_refused(topic: object) -> None:
    with pytest.raises(ChannelError, match="expected a topic, found what cannot be read"):
        channel.read_topic(bytes(4) + pickle.dumps(topic))


@given(st.integers(0, 2000), st.binary(max_size=20))
def test_damaged_topic_is_refused(size: int, other: bytes) -> None:
    data = content(channel.topic_message(7, TOPIC))
    damaged = data[: size % len(data)] + other
    if damaged != data:
        try:
            _, topic = channel.read_topic(damaged)
        except ChannelError:
            return
        assert isinstance(topic.config, LogConfig)


# Units


def test_units_are_read_as_they_were_written() -> None:
    size = len(BATCH)
    data = unit_row(1, 2, MEMORY_BYTES - size) + unit_row(0, 0, 0)
    units = channel.read_units(data, 2, MEMORY_BYTES)
    assert units["topic"].tolist() == [1, 0]
    assert units["partition"].tolist() == [2, 0]
    assert units["position"].tolist() == [MEMORY_BYTES - size, 0]
    assert units["batch"]["size_bytes"].tolist() == [size, size]


@given(st.integers(1, 300))
def test_truncated_units_are_refused(cut: int) -> None:
    data = (unit_row() * 4)[:-cut]
    if len(data) % channel.UNITS.itemsize:
        with pytest.raises(ChannelError, match="expected units of 100 bytes"):
            channel.read_units(data, 1, MEMORY_BYTES)


DAMAGED = {
    "topic below": unit_row(topic=-1),
    "topic above": unit_row(topic=1),
    "partition": unit_row(partition=-1),
    "position below": unit_row(position=-1),
    "position above": unit_row(position=MEMORY_BYTES - len(BATCH) + 1),
    "sum overflows": unit_row(position=INT64_MAX - 10),
    "size overflows": unit_row(position=100, size_bytes=INT64_MAX),
    "least size": unit_row(position=0, size_bytes=INT64_MIN),
    "negative size": unit_row(position=100, size_bytes=-50),
    "no size": unit_row(size_bytes=0),
    "no header": unit_row(size_bytes=60),
    "larger than memory": unit_row(size_bytes=MEMORY_BYTES + 1),
    "position of batch": unit_row(batch_position=1),
    "base offset": unit_row(base_offset=1),
    "last offset": unit_row(last_offset=3),
    "no records": unit_row(records_count=0, last_offset=-1),
    "negative records": unit_row(records_count=-5, last_offset=-6),
    "least records": unit_row(records_count=-(1 << 31), last_offset=(1 << 31) - 1),
}


@pytest.mark.all_cases
@pytest.mark.parametrize("name", DAMAGED)
def test_unit_that_is_none_of_the_workers_is_refused_with_all_of_its_message(name: str) -> None:
    with pytest.raises(ChannelError, match=r"expected (batches within 4096 bytes|whole batches)"):
        channel.read_units(unit_row() + DAMAGED[name], 1, MEMORY_BYTES)


INT64 = st.one_of(
    st.integers(INT64_MIN, INT64_MAX), st.integers(-2, MEMORY_BYTES + 2), st.integers(INT64_MAX - 5000, INT64_MAX)
)


@given(INT64, INT64)
def test_units_that_are_read_lie_within_the_memory(position: int, size: int) -> None:
    try:
        units = channel.read_units(unit_row(position=position, size_bytes=size), 1, MEMORY_BYTES)
    except ChannelError:
        return
    ((_, _, at, _, _),) = units.tolist()
    assert 0 <= at < at + size <= MEMORY_BYTES


# Results


def test_results_are_read_as_they_were_written() -> None:
    appended = AppendedRange(first_offset=5, last_offset=7, log_start_offset=2, log_append_time_ms=9)
    duplicate = AppendedRange(first_offset=1, last_offset=1, log_start_offset=0, is_duplicate=True)
    refused = OutOfOrderSequenceError("producer 1 sent sequence 5, expected 3")
    found = list(channel.read_results(results(appended, refused, duplicate, OSError(errno.ENOSPC, "full"))))
    assert [found[0], found[2]] == [appended, duplicate]
    assert isinstance(found[1], OutOfOrderSequenceError)
    assert str(found[1]) == str(refused)
    assert isinstance(found[3], OSError)
    assert found[3].errno == errno.ENOSPC


def of_package() -> Iterator[BaseException]:
    """An error of each class in errors.py, and others that a commit raises."""
    for each in vars(errors).values():
        if isinstance(each, type) and issubclass(each, KafkalogError):
            if issubclass(each, errors.DiskFormatError):
                yield each(file="f", position=3, expected="x", found="y")
            else:
                yield each("what has failed")
    yield InvalidTimestampError("2 records are refused", ((0, "late"), (1, "late")))
    yield OutdatedCheckError("changed")
    yield LogDirError(errno.EROFS, "cannot write", "/log")
    yield MemoryError("too much")


@pytest.mark.all_cases
@pytest.mark.parametrize("error", of_package(), ids=lambda each: type(each).__name__)
def test_errors_keep_class_and_text(error: BaseException) -> None:
    (found,) = channel.read_results(results(error))
    assert type(found) is type(error)
    assert str(found) == str(error)
    assert vars(found) == vars(error)


class Unpicklable(KafkalogError):
    def __reduce__(self) -> str:
        raise TypeError("cannot be pickled")


class Unreadable(KafkalogError):
    def __init__(self, one: str, other: str) -> None:
        super().__init__(f"{one} {other}")


@pytest.mark.parametrize("error", [Unpicklable("disk full"), Unreadable("disk", "full")])
def test_error_that_cannot_be_handed_over_keeps_its_text(error: KafkalogError) -> None:
    (found,) = channel.read_results(results(error))
    assert type(found) is KafkalogError
    assert str(found) == "disk full"


def raised_from_frames() -> CorruptRecordError:
    try:
        try:
            raise ValueError("cause")
        except ValueError as cause:
            raise CorruptRecordError(file="f", position=1, expected="a", found="b") from cause
    except CorruptRecordError as error:
        return error


def test_error_is_handed_over_without_its_cause() -> None:
    (found,) = channel.read_results(results(raised_from_frames()))
    assert isinstance(found, CorruptRecordError)
    assert found.__cause__ is found.__traceback__ is None


RESULT = struct.Struct("=bqqqq")
RESULTS = results(AppendedRange(first_offset=0, last_offset=0, log_start_offset=0), ValueError("x"))


@given(st.integers(0, len(RESULTS) - 1))
def test_truncated_results_are_refused(size: int) -> None:
    with pytest.raises(ChannelError, match="expected results, found what cannot be read"):
        list(channel.read_results(RESULTS[:size]))


@pytest.mark.parametrize(
    "data",
    [
        b"\xff\xff\xff\xff",
        b"\1\0\0\0" + RESULT.pack(3, 0, 0, 0, 0),
        b"\1\0\0\0" + RESULT.pack(2, 0, 0, 0, 0) + b"\xff\xff\xff\xff",
        b"\1\0\0\0" + RESULT.pack(2, 0, 0, 0, 0) + b"\4\0\0\0" + pickle.dumps(7),
        b"\1\0\0\0" + RESULT.pack(2, 0, 0, 0, 0) + len(pickle.dumps(7)).to_bytes(4, "little") + pickle.dumps(7),
    ],
    ids=["count", "ended", "size", "pickle", "no error"],
)
def test_damaged_results_are_refused(data: bytes) -> None:
    with pytest.raises(ChannelError, match="expected results, found what cannot be read"):
        list(channel.read_results(data))


# The memory's descriptor


def test_memory_is_shared_and_its_descriptor_closed(pair: tuple[socket.socket, socket.socket]) -> None:
    worker, committer = pair
    before = descriptors_before()
    own = channel.send_memory(worker, MEMORY_BYTES)
    others = channel.receive_memory(committer)
    own[:4] = 7
    assert others[:5].tolist() == [7, 7, 7, 7, 0]
    assert len(own) == len(others) == MEMORY_BYTES
    del own, others
    assert descriptors() == before


def memory_message(size_bytes: int) -> bytes:
    return channel.message(Kind.MEMORY, np.int64(size_bytes).tobytes())


@pytest.mark.all_cases
@pytest.mark.parametrize("size_bytes", [0, -1, INT64_MIN, MEMORY_BYTES + 1, INT64_MAX])
def test_memory_of_another_size_is_refused(pair: tuple[socket.socket, socket.socket], size_bytes: int) -> None:
    before = descriptors_before()
    fd = channel.shared_memory(MEMORY_BYTES)
    socket.send_fds(pair[0], [memory_message(size_bytes)], [fd])
    os.close(fd)
    with pytest.raises(ChannelError, match=f"expected {size_bytes} bytes of memory, found {MEMORY_BYTES}"):
        channel.receive_memory(pair[1])
    assert descriptors() == before


def test_descriptor_of_no_memory_is_refused(pair: tuple[socket.socket, socket.socket]) -> None:
    before = descriptors_before()
    socket.send_fds(pair[0], [memory_message(MEMORY_BYTES)], [pair[0].fileno()])
    with pytest.raises(ChannelError, match="expected 4096 bytes of memory, found 0"):
        channel.receive_memory(pair[1])
    assert descriptors() == before


@pytest.mark.all_cases
@pytest.mark.parametrize(
    "data",
    [
        memory_message(MEMORY_BYTES)[:-1],
        channel.message(Kind.UNITS, bytes(8)),
        channel.message(Kind.MEMORY, bytes(9))[:13],
        b"x",
    ],
    ids=["short", "kind", "size", "byte"],
)
def test_first_message_of_another_form_is_refused_and_its_descriptors_closed(
    pair: tuple[socket.socket, socket.socket], data: bytes
) -> None:
    before = descriptors_before()
    fd = channel.shared_memory(MEMORY_BYTES)
    socket.send_fds(pair[0], [data], [fd, fd, fd])
    os.close(fd)
    with pytest.raises(ChannelError, match="expected 13 bytes and the descriptor of a worker's memory"):
        channel.receive_memory(pair[1])
    assert descriptors() == before


def test_connection_without_a_descriptor_is_refused(pair: tuple[socket.socket, socket.socket]) -> None:
    pair[0].sendall(memory_message(MEMORY_BYTES))
    with pytest.raises(ChannelError, match="the descriptor of a worker's memory"):
        channel.receive_memory(pair[1])


def test_connection_that_has_ended_is_refused(pair: tuple[socket.socket, socket.socket]) -> None:
    pair[0].close()
    with pytest.raises(ChannelError, match="the descriptor of a worker's memory, found 0"):
        channel.receive_memory(pair[1])


def test_descriptors_do_not_stay_when_the_committer_has_gone(pair: tuple[socket.socket, socket.socket]) -> None:
    pair[1].close()
    before = descriptors_before()
    with pytest.raises(BrokenPipeError):
        channel.send_memory(pair[0], MEMORY_BYTES)
    assert descriptors() == before
