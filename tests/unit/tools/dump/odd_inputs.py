"""Small files of every kind with something odd about them, for the dump; and what Kafka's own tool prints of them.

`build` writes the files, `CASES` are the dump's arguments by the case's name. `odd_inputs.json` holds what
kafka-dump-log 4.1.0 answered; `PYTHONPATH=tests/support python -m tests.unit.tools.dump.odd_inputs` asks it
again (needs Java).
"""

from __future__ import annotations

import json
import os
import struct
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pyspark_kafkalog.record.header import TimestampType, crc32c
from pyspark_kafkalog.record.reference import Record, encode_batch

RECORDED = Path(__file__).with_suffix(".json")
NAME = "00000000000000000000"
DIED = "EXCEPTION\n"  # stands for a Java stack trace

CASES: dict[str, list[str]] = {}


def batch(first_offset: int, values: Sequence[bytes | None] = (b"one", b"two"), **header: Any) -> bytes:
    records = [
        Record(offset=first_offset + at, timestamp_ms=1000 + first_offset + at, key=b"k", value=value)
        for at, value in enumerate(values)
    ]
    return encode_batch(records, leader_epoch=3, **header)


LOG = batch(0) + batch(2) + batch(4)
BATCH = len(LOG) // 3


def patched(at: int, layout: str, value: int) -> bytes:
    """LOG with a field of its second batch changed, and the CRC left as it was."""
    data = bytearray(LOG)
    struct.pack_into(layout, data, BATCH + at, value)
    return bytes(data)


def offset_index(*entries: tuple[int, int]) -> bytes:
    return b"".join(struct.pack(">ii", *entry) for entry in entries)


def time_index(*entries: tuple[int, int]) -> bytes:
    return b"".join(struct.pack(">qi", *entry) for entry in entries)


def snapshot(body: bytes, *, version: int = 1, crc: int | None = None) -> bytes:
    return struct.pack(">hI", version, crc32c(body) if crc is None else crc) + body


def producer(*fields: int) -> bytes:
    return struct.pack(">qhiqiqiq", *fields)


def text(value: bytes) -> bytes:
    return struct.pack(">h", len(value)) + value


class _Files:
    def __init__(self) -> None:
        self.contents: dict[str, bytes] = {}

    def add(self, case: str, *arguments: str, **by_suffix: bytes) -> None:
        """A case of its own folder, with a file for each suffix; all of them are dumped, in that order."""
        folder = case.replace(" ", "-")
        names = [f"{folder}/{NAME}.{suffix}" for suffix in by_suffix]
        self.contents.update(zip(names, by_suffix.values(), strict=True))
        CASES[case] = ["--files", ",".join(names), *arguments]

    def over(self, case: str, files: str, *arguments: str) -> None:
        """A case over files of other cases, or none."""
        CASES[case] = ["--files", files, *arguments]


def _logs(files: _Files) -> None:
    files.add("plain", log=LOG)
    plain = f"plain/{NAME}.log"
    for size in (0, 17, BATCH - 1, BATCH, 2 * BATCH + 1, -1):
        files.over(f"max bytes {size}", plain, "--max-bytes", str(size))
    files.over("contents alone", plain, "--print-data-log", "--skip-record-metadata")
    files.over("nothing of records", plain, "--deep-iteration", "--skip-record-metadata")
    files.over("value class", plain, "--value-decoder-class", "org.apache.kafka.tools.api.StringDecoder")
    files.over("value too short for a number", plain, "--value-decoder-class", "org.apache.kafka.tools.api.LongDecoder")
    for cut in (1, 17, 18, 40, BATCH - 1):
        files.add(f"torn after {cut} bytes", "--deep-iteration", log=LOG[: BATCH + cut])
    files.add("empty log", log=b"")
    files.add("zeros behind", "--deep-iteration", log=LOG + bytes(100))
    for length in (-1, 0, 13, 14, 48, 49, BATCH - 13, BATCH - 11, 2**31 - 1):
        files.add(f"batch length {length}", "--deep-iteration", log=patched(8, ">i", length))
    for magic in (3, 127):
        files.add(f"magic {magic}", "--deep-iteration", log=patched(16, ">b", magic))
    for attributes in (0x01, 0x05, 0x08, 0x10, 0x20, 0x40, 0x180):
        files.add(f"attributes {attributes:#x}", "--print-data-log", log=patched(21, ">H", attributes))
    for delta in (0, 7, -1, 2**31 - 1):
        files.add(f"last offset delta {delta}", "--deep-iteration", log=patched(23, ">i", delta))
    for count in (0, 1, 3, -1, 2**31 - 1):
        files.add(f"count {count}", "--deep-iteration", log=patched(57, ">i", count))
    for sequence in (-2, 0, 2**31 - 1):
        files.add(f"sequence {sequence}", "--deep-iteration", log=patched(53, ">i", sequence))
    files.add("offsets at the end of int64", "--deep-iteration", log=patched(0, ">q", 2**63 - 1))
    files.add("timestamps at the start of int64", "--deep-iteration", log=patched(27, ">q", -(2**63)))
    files.add("nulls", "--print-data-log", log=batch(0, [None, b""]))
    malformed = [b"\xed\xa0\x80x", b"\xed\xa0", b"\xe0\x80\x80", b"\xf0\x90\x80", b"\xf4\x90\x80\x80", b"\xc0\x80\xff"]
    files.add("malformed text", "--print-data-log", log=batch(0, malformed))
    append_time = {"timestamp_type": TimestampType.LOG_APPEND_TIME, "max_timestamp_ms": 5000}
    files.add("append time", "--deep-iteration", log=batch(0, **append_time))
    files.add("gaps", "--deep-iteration", log=batch(0) + batch(3) + batch(9) + batch(4))


def _indexes(files: _Files) -> None:
    found = offset_index((3, BATCH), (5, 2 * BATCH))
    for case, index, times in (
        ("sound", found, time_index((1003, 3), (1005, 5))),
        ("zero tail", found + bytes(24), time_index((1003, 3), (1005, 5)) + bytes(24)),
        ("only zeros", bytes(16), bytes(24)),
        ("wrong offsets", offset_index((2, BATCH), (6, 2 * BATCH)), time_index((1002, 2), (1006, 6))),
        ("wrong positions", offset_index((3, BATCH + 1)), time_index((1003, 3))),
        ("position past the end", offset_index((3, 3 * BATCH)), time_index((1003, 3))),
        ("negative position", offset_index((3, -1)), time_index((1003, 3))),
        ("negative offset", offset_index((-3, 0)), time_index((1003, -3))),
        ("wrong times", found, time_index((1004, 3), (1003, 5), (1003, 5))),
        ("falling", offset_index((5, 2 * BATCH), (3, BATCH)), time_index((1005, 5), (1003, 3))),
        ("half an entry", found[:-3], time_index((1003, 3))[:-3]),
        ("empty", b"", b""),
    ):
        folder = f"indexes-{case.replace(' ', '-')}/{NAME}"
        contents = {".log": LOG, ".index": index, ".timeindex": times}
        files.contents.update({folder + suffix: data for suffix, data in contents.items()})
        for suffix in (".index", ".timeindex"):
            files.over(f"{case} {suffix}", folder + suffix)
            files.over(f"{case} {suffix} verified", folder + suffix, "--verify-index-only")
            files.over(f"{case} {suffix} checked", folder + suffix, "--index-sanity-check")
    sound = f"indexes-sound/{NAME}.index"
    for size in (0, 17, 18, BATCH - 1, BATCH, -1):
        files.over(f"max message size {size}", sound, "--max-message-size", str(size))


def _producers_and_transactions(files: _Files) -> None:
    one = struct.pack(">i", 1) + producer(1, 2, 3, 4, 5, 6, 7, 8)
    for case, data in (
        ("one producer", snapshot(one)),
        ("producer without batches", snapshot(struct.pack(">i", 1) + producer(9, 0, -1, -1, 0, -1, -1, -1))),
        ("sequence wraps", snapshot(struct.pack(">i", 1) + producer(1, 2, 0, 4, 2**31 - 1, 6, 7, -1))),
        ("no producer", snapshot(bytes(4))),
        ("more than counted", snapshot(one + b"rest")),
        ("fewer than counted", snapshot(struct.pack(">i", 2) + one[4:])),
        ("count beyond the file", snapshot(struct.pack(">i", 99) + one[4:])),
        ("negative count", snapshot(struct.pack(">i", -1))),
        ("wrong crc", snapshot(one, crc=5)),
        ("later version", snapshot(one, version=2)),
        ("torn in the header", snapshot(one)[:7]),
        ("one byte", b"\0"),
        ("no byte", b""),
    ):
        files.add(f"snapshot {case}", snapshot=data)
    aborted = struct.pack(">hqqqq", 0, 5, 1, 2, 3)
    for case, data in (
        ("one", aborted),
        ("one and a half", aborted + aborted[:10]),
        ("later version", aborted + struct.pack(">hqqqq", 0x0100, 5, 1, 2, 3)),
        ("low byte of version", struct.pack(">hqqqq", 1, 5, 1, 2, 3)),
        ("negative", struct.pack(">hqqqq", -1, -5, -1, -2, -3)),
        ("none", b""),
    ):
        files.add(f"transactions {case}", txnindex=data)


def _control_records(files: _Files) -> None:
    for case, key, value in (
        ("commit", b"\0\0\0\1", b"\0\0\0\0\0\5"),
        ("later versions", b"\0\5\0\0", b"\0\7\0\0\0\5"),
        ("negative key version", b"\xff\xff\0\1", b"\0\0\0\0\0\5"),
        ("short key", b"\0\0", b"\0\0\0\0\0\5"),
        ("no key", None, b"\0\0\0\0\0\5"),
        ("short value", b"\0\0\0\1", b"\0\0\0"),
        ("no value", b"\0\0\0\1", None),
        ("unknown type", b"\0\0\0\x63", b""),
        ("leader", b"\0\0\0\2", struct.pack(">hi", 0, 1) + b"\2\0\0\0\1\0\1\0"),
        ("voters", b"\0\0\0\6", b"\0\0\1\0"),
        ("torn voters", b"\0\0\0\6", b"\0\0\7\0"),
    ):
        record = Record(offset=0, timestamp_ms=5, key=key, value=value)
        header = {"is_control": True, "is_transactional": True, "producer_id": 5, "producer_epoch": 2}
        files.add(f"control {case}", "--deep-iteration", log=encode_batch([record], **header))


def _decoders(files: _Files) -> None:
    group, commit = b"\0\1" + text(b"g") + text(b"t") + bytes(4), b"\0\3" + bytes(12) + text(b"") + bytes(8)
    topic = b"\1\2\0\2x" + b"\1" * 16 + b"\0"
    for case, option, records in (
        (
            "offsets",
            "--offsets-decoder",
            [(group, commit), (group, None), (group, b""), (group, b"\0\x09"), (b"", commit), (b"\0\x63", commit)],
        ),
        ("offsets without key", "--offsets-decoder", [(group, commit), (None, commit)]),
        ("transactions", "--transaction-log-decoder", [(b"\0\0" + text(b"t"), None), (b"\0\1", b"\0\0")]),
        ("shares", "--share-group-state-decoder", [(b"\0\2", b"\0\0")]),
        (
            "metadata",
            "--cluster-metadata-decoder",
            [
                (None, value)
                for value in (topic, topic + b"rest", topic[:9], None, b"", b"\0", b"\2\2\0", b"\1", b"\1\x63\0")
            ],
        ),
        ("metadata number too large", "--cluster-metadata-decoder", [(None, b"\1\x80\x80\x04\0")]),
    ):
        made = [Record(offset=at, timestamp_ms=5, key=key, value=value) for at, (key, value) in enumerate(records)]
        files.add(f"decoder {case}", option, log=encode_batch(made))
    files.over("two decoders", f"plain/{NAME}.log", "--cluster-metadata-decoder", "--offsets-decoder")


def _names(files: _Files) -> None:
    plain = f"plain/{NAME}.log"
    files.over("several files and one missing", f"{plain},plain/none.log")
    for suffix in ("log", "index", "timeindex", "snapshot", "txnindex"):
        files.over(f"missing {suffix}", f"plain/00000000000000000007.{suffix}")
        files.over(f"no number before {suffix}", f"plain/x.{suffix}")
    files.over("missing checkpoint", "plain/00000000000000000005-0000000001.checkpoint")
    files.over("checkpoint without numbers", "plain/x.checkpoint")
    files.over("unknown suffixes", f"plain/a.txt,plain/b.log.deleted,{plain}")
    files.over("no suffix", "plain/name")
    files.over("folder", "plain")
    files.over("slashes", f"./plain//{NAME}.log,plain/../plain/{NAME}.log")
    files.over("no name", "")
    files.over("commas", ",")
    files.over("comma at the end", f"{plain},")
    files.over("comma twice", f"{plain},,{plain}")


def _collect() -> dict[str, bytes]:
    files = _Files()
    for group in (_logs, _indexes, _producers_and_transactions, _control_records, _decoders, _names):
        group(files)
    return files.contents


CONTENTS = _collect()


def build(directory: Path) -> None:
    """Write the files of all cases below `directory`; the cases' paths are relative to it."""
    for name, content in CONTENTS.items():
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)


def relative(said: str, directory: Path) -> str:
    """`said` without the absolute path of `directory`, and with DIED for a stack trace."""
    said = said.replace(f"{directory}/", "")
    head, trace, _ = said.partition('Exception in thread "main"')
    return head + DIED if trace else said


def record() -> None:
    """Ask Kafka's tool and write RECORDED."""
    from kafka_processes.oracle import DUMP_LOG, run_tool

    answers = {}
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name).resolve()
        for case, arguments in CASES.items():
            for leftover in [path for path in directory.rglob("*") if path.is_file()]:
                leftover.unlink()  # Kafka's tool makes an empty index where one is missing
            build(directory)
            os.chdir(directory)
            done = run_tool(DUMP_LOG, *arguments)
            answers[case] = [done.returncode, done.stdout, relative(done.stderr, directory)]
            os.chdir("/")
    RECORDED.write_text(json.dumps(answers, ensure_ascii=False, indent=0) + "\n", "utf-8")


if __name__ == "__main__":
    record()
