"""Batches decompressed in one compiled call equal those handled one by one in Python."""

from __future__ import annotations

import ctypes
import gc
import threading
from collections.abc import Callable

import numpy as np
import pytest
import zstandard

from pyspark_kafkalog.errors import CorruptRecordError
from pyspark_kafkalog.record import encode, scan
from pyspark_kafkalog.record.codecs.codec import CODECS, CompressionType
from pyspark_kafkalog.record.columns import BATCH_DTYPE, BinaryColumn, RecordColumns
from pyspark_kafkalog.record.decode import LogBytes, Sections, open_sections
from pyspark_kafkalog.record.encode import encode_batches, seal_headers
from pyspark_kafkalog.record.header import RECORD_BATCH_OVERHEAD_BYTES
from pyspark_kafkalog.record.kernels import native
from pyspark_kafkalog.record.kernels import zstd as zstd_batches
from pyspark_kafkalog.record.scan import first_bad_crc

MAX_BYTES = 1 << 20
SCRATCH_BYTES = MAX_BYTES + (1 << 20)

Switch = Callable[[bool], None]


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> Switch:
    """Turns the way through compiled calls on or off."""
    found, crc32c = native.zstd_library(), native.crc32c_function()

    def switch(on: bool) -> None:
        monkeypatch.setattr(zstd_batches, "zstd_library", lambda: found if on else None)
        for module in (zstd_batches, scan, encode):
            monkeypatch.setattr(module, "crc32c_function", lambda: crc32c if on else 0)

    return switch


def batches_of(payloads: list[tuple[CompressionType, bytes]]) -> tuple[np.ndarray, np.ndarray]:
    """Batches back to back with these bytes after their headers, and their table."""
    table = np.zeros(len(payloads), BATCH_DTYPE)
    table["size_bytes"] = [RECORD_BATCH_OVERHEAD_BYTES + len(payload) for _, payload in payloads]
    ends = np.cumsum(table["size_bytes"])
    table["position"] = ends - table["size_bytes"]
    table["attributes"] = [codec for codec, _ in payloads]
    data = np.zeros(int(ends[-1]), np.uint8)
    for (_, payload), end in zip(payloads, ends.tolist(), strict=True):
        data[end - len(payload) : end] = np.frombuffer(payload, np.uint8)
    seal_headers(data, table)
    return data, table


def contents(sections: Sections) -> list[bytes]:
    pairs = zip(sections.addresses.tolist(), sections.sizes.tolist(), strict=True)
    return [ctypes.string_at(address, size) for address, size in pairs]


def opened(data: np.ndarray, table: np.ndarray, *, scratch: bool = True, check_crcs: bool = True) -> list[bytes] | str:
    """What the batches hold, all of them, run by run; or the error."""
    log = LogBytes.of(data, table, 0, "00.log", check_crcs)
    memory = np.empty(SCRATCH_BYTES, np.uint8) if scratch else None
    found: list[bytes] = []
    try:
        while len(found) < len(table):
            found += contents(open_sections(log, table[len(found) :], max_bytes=MAX_BYTES, scratch=memory))
    except CorruptRecordError as error:
        return str(error)
    return found


def frame(content: bytes, *, size: bool = True, window_log: int = 17, checksum: bool = False) -> bytes:
    parameters = zstandard.ZstdCompressionParameters.from_level(
        3, window_log=window_log, write_content_size=size, write_checksum=checksum
    )
    if size:
        return zstandard.ZstdCompressor(compression_params=parameters).compress(content)
    stream = zstandard.ZstdCompressor(compression_params=parameters).compressobj()
    return stream.compress(content) + stream.flush()


def some_content(number: int, size: int) -> bytes:
    return np.random.default_rng(number).integers(97, 105, size, np.uint8).tobytes()


def test_functions_of_c_libraries_are_found() -> None:
    assert native.zstd_library() is not None
    assert native.crc32c_function()


def test_mixed_batches_decompress_equally_in_compiled_call_and_python(compiled: Switch) -> None:
    zstd, none, gzip = CompressionType.ZSTD, CompressionType.NONE, CompressionType.GZIP
    plain = [some_content(i, size) for i, size in enumerate([20_000, 0, 300, 1_500_000, 700_000, 400_000, 5, 60_000])]
    plain.append(b"")
    payloads = [(zstd, frame(each, size=i % 2 == 0, checksum=i % 3 == 0)) for i, each in enumerate(plain)]
    payloads.insert(2, (none, b"as it is"))
    payloads.insert(4, (gzip, CODECS[gzip].compress(b"zipped" * 100)))
    payloads.insert(5, (zstd, frame(b"two ") + frame(b"frames")))
    wanted = [*plain[:2], b"as it is", plain[2], b"zipped" * 100, b"two frames", *plain[3:]]
    data, table = batches_of(payloads)
    for on in (True, False):
        compiled(on)
        for scratch in (True, False):
            for check_crcs in (True, False):
                assert opened(data, table, scratch=scratch, check_crcs=check_crcs) == wanted


def test_run_ends_at_same_batch_in_compiled_call_and_python(compiled: Switch) -> None:
    data, table = batches_of([(CompressionType.ZSTD, frame(some_content(i, 300_000))) for i in range(8)])
    log = LogBytes.of(data, table, 0, "00.log", False)
    taken = []
    for on in (True, False):
        compiled(on)
        found = open_sections(log, table, max_bytes=MAX_BYTES, scratch=np.empty(SCRATCH_BYTES, np.uint8))
        taken.append(len(found.batches))
    assert taken == [4, 4]


def _damaged() -> dict[str, bytes]:
    good = frame(some_content(1, 5000), checksum=True)
    unsized = frame(bytes(5000), size=False)
    return {
        "checksum": good[:-1] + bytes([good[-1] ^ 1]),
        "cut": good[:-10],
        "bytes after it": good + b"\0",
        "no magic": b"\0" + good[1:],
        "literals": good[:40] + bytes([good[40] ^ 0xFF, good[41] ^ 0xFF, good[42] ^ 0xFF]) + good[43:],
        "window of 2 GiB": unsized[:5] + bytes([21 << 3]) + unsized[6:],
        "window of 4 TiB": unsized[:5] + bytes([0xFF]) + unsized[6:],
        "content size": good[:5] + bytes([good[5] ^ 1]) + good[6:],
        "bomb": frame(bytes(40 << 20)),
        "empty": b"",
    }


@pytest.mark.parametrize("name", list(_damaged()))
@pytest.mark.parametrize("check_crcs", [True, False])
def test_bad_frame_is_refused_equally_in_compiled_call_and_python(
    name: str, check_crcs: bool, compiled: Switch
) -> None:
    good = [(CompressionType.ZSTD, frame(some_content(i, 3000))) for i in range(5)]
    data, table = batches_of([*good[:3], (CompressionType.ZSTD, _damaged()[name]), *good[3:]])
    found = []
    for on in (True, False):
        compiled(on)
        found.append(opened(data, table, check_crcs=check_crcs))
    assert found[0] == found[1]
    if name != "empty":
        assert isinstance(found[0], str), "it was taken"


def test_wrong_crc_is_reported_equally_in_compiled_call_and_python(compiled: Switch) -> None:
    data, table = batches_of([(CompressionType.ZSTD, frame(some_content(i, 3000))) for i in range(5)])
    table["crc"][3] ^= 1
    found = []
    for on in (True, False):
        compiled(on)
        found.append(opened(data, table))
        assert isinstance(opened(data, table, check_crcs=False), list)
    assert found[0] == found[1]
    assert "CRC-32C" in str(found[0])


def test_crcs_are_equal_in_compiled_call_and_python(compiled: Switch) -> None:
    values = BinaryColumn(np.arange(0, 101 * 50, 50, dtype=np.int32), np.zeros(5000, np.uint8))
    columns = RecordColumns(count=100, timestamps_ms=np.zeros(100, np.int64), values=values)
    made = []
    for on in (True, False):
        compiled(on)
        made.append(
            encode_batches(columns, compression=CompressionType.NONE, batch_size_bytes=500, max_batch_bytes=1 << 20)
        )
    assert made[0].data.tobytes() == made[1].data.tobytes()
    data, batches = made[0].data, made[0].batches
    for on in (True, False):
        compiled(on)
        assert first_bad_crc(data, batches, 0) == -1
        assert first_bad_crc(data[1:], batches[1:], 1) == -1
        assert first_bad_crc(data[: int(batches["position"][3]) + 100], batches, 0) == 3  # the rest is not there
        bad = batches.copy()
        bad["crc"][[4, 6]] ^= 1
        assert first_bad_crc(data.data, bad, 0) == 4


def test_contexts_of_ended_threads_are_freed(monkeypatch: pytest.MonkeyPatch) -> None:
    freed = []
    free = native.ZstdLibrary.free_decompressor

    def count(self: native.ZstdLibrary, context: int) -> None:
        free(self, context)
        freed.append(context)

    monkeypatch.setattr(native.ZstdLibrary, "free_decompressor", count)
    data, table = batches_of([(CompressionType.ZSTD, frame(b"content" * 100))])

    def work() -> None:
        assert opened(data, table) == [b"content" * 100]

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    gc.collect()
    assert len(freed) == 4
