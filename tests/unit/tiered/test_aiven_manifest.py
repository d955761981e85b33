"""Manifests of Aiven's plugin: the plugin's own example, and hostile ones, each an error with object and position."""

from __future__ import annotations

import base64
import contextlib
import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest
import zstandard
from builders.aiven_objects import encoded_sizes
from builders.tiered_fixtures import TIERED_FIXTURES
from cryptography.hazmat.primitives.serialization import load_der_private_key
from hypothesis import given, settings
from hypothesis import strategies as st

from pyspark_kafkalog.errors import CorruptRecordError, UnsupportedFormatError
from pyspark_kafkalog.storage.artefacts.checkpoint_file import EpochEntry
from pyspark_kafkalog.tiered.aiven_layout import AivenLayout, parse_key
from pyspark_kafkalog.tiered.aiven_manifest import _decrypt_key, parse_manifest
from pyspark_kafkalog.tiered.local_layout import parse_file, parse_folder
from pyspark_kafkalog.tiered.objects import DirectoryObjects, IndexKind
from pyspark_kafkalog.tiered.segments import RemoteSegment, TopicIdPartition

TOPIC_ID: Final = "lZ6vvmajTWKDBUTV6SQAtQ"
SEGMENT_ID: Final = "adh9f8BMS4anaUnD8KWfWg"
#: As in the plugin's SegmentManifestV1SerdeTest.
EXAMPLE: Final[dict[str, Any]] = {
    "version": "1",
    "chunkIndex": {
        "type": "fixed",
        "originalChunkSize": 100,
        "originalFileSize": 1000,
        "transformedChunkSize": 100,
        "finalTransformedChunkSize": 100,
    },
    "segmentIndexes": {
        "offset": {"position": 0, "size": 1},
        "timestamp": {"position": 1, "size": 1},
        "producerSnapshot": {"position": 2, "size": 1},
        "leaderEpoch": {"position": 3, "size": 1},
        "transaction": {"position": 4, "size": 1},
    },
    "compression": False,
    "remoteLogSegmentMetadata": {
        "remoteLogSegmentId": {
            "topicIdPartition": {"topicId": TOPIC_ID, "topicPartition": {"topic": "topic1", "partition": 0}},
            "id": SEGMENT_ID,
        },
        "startOffset": 0,
        "endOffset": 9,
        "maxTimestampMs": 1000000000000,
        "brokerId": 2,
        "eventTimestampMs": 1000000001000,
        "segmentLeaderEpochs": {"2": 0, "10": 5},
    },
}


def changed(change: Callable[[dict[str, Any]], object]) -> bytes:
    tree: dict[str, Any] = json.loads(json.dumps(EXAMPLE))
    change(tree)
    return json.dumps(tree).encode()


def variable(sizes: str) -> Callable[[dict[str, Any]], object]:
    """Compressed chunks of these sizes."""

    def change(tree: dict[str, Any]) -> None:
        tree["compression"] = True
        tree["chunkIndex"] |= {"type": "variable", "transformedChunks": sizes}

    return change


def test_example_of_the_plugin_is_read() -> None:
    found = parse_manifest(json.dumps(EXAMPLE).encode(), name="m")
    assert (found.chunks.chunk_bytes, found.chunks.size_bytes) == (100, 1000)
    assert found.chunks.positions.tolist() == list(range(0, 1001, 100))
    assert found.indexes[IndexKind.TRANSACTION] == (4, 1)
    assert found.is_plain
    assert found.partition == TopicIdPartition("topic1", TOPIC_ID, 0)
    assert found.segment == RemoteSegment(
        segment_id=SEGMENT_ID,
        start_offset=0,
        last_offset=9,
        size_bytes=1000,
        leader_epochs=(EpochEntry(2, 0), EpochEntry(10, 5)),
        max_timestamp_ms=1000000000000,
    )


@settings(deadline=None)
@given(st.lists(st.integers(1, 1 << 20), min_size=10, max_size=10))
def test_sizes_of_compressed_chunks_are_those_that_were_encoded(sizes: list[int]) -> None:
    found = parse_manifest(changed(variable(encoded_sizes(sizes))), name="m")
    assert (found.chunks.positions[1:] - found.chunks.positions[:-1]).tolist() == sizes


def packed(data: bytes) -> str:
    return base64.b64encode(zstandard.ZstdCompressor().compress(data)).decode()


HOSTILE: Final[dict[str, tuple[Callable[[dict[str, Any]], object], str]]] = {
    "chunk size 0": (lambda m: m["chunkIndex"].update(originalChunkSize=0), "originalChunkSize: an integer from 1"),
    "chunk size true": (lambda m: m["chunkIndex"].update(originalChunkSize=True), "originalChunkSize"),
    "file size -1": (lambda m: m["chunkIndex"].update(originalFileSize=-1), "originalFileSize: an integer from 0"),
    "file size text": (lambda m: m["chunkIndex"].update(originalFileSize="1000"), "originalFileSize"),
    "file size 2^40": (lambda m: m["chunkIndex"].update(originalFileSize=1 << 40), "originalFileSize"),
    "file size 1e3": (lambda m: m["chunkIndex"].update(originalFileSize=1e3), "originalFileSize"),
    "chunks too large": (
        lambda m: m["chunkIndex"].update(originalChunkSize=1 << 30, originalFileSize=1 << 30),
        "chunks of at most 268435456 bytes",
    ),
    "sizes differ": (lambda m: m["chunkIndex"].update(transformedChunkSize=99), "chunks of 1000 bytes in all"),
    "type": (lambda m: m["chunkIndex"].update(type="other"), 'a type "fixed" or "variable"'),
    "no chunk index": (lambda m: m.pop("chunkIndex"), "chunkIndex: an object, found None"),
    "compression text": (lambda m: m.update(compression="no"), "compression: true or false"),
    "index negative": (lambda m: m["segmentIndexes"]["offset"].update(position=-1), "position: an integer from 0"),
    "index too large": (lambda m: m["segmentIndexes"]["offset"].update(size=1 << 31), "size: an integer from 0"),
    "no time index": (lambda m: m["segmentIndexes"].pop("timestamp"), "timestamp: an object, found None"),
    "offsets": (lambda m: m["remoteLogSegmentMetadata"].update(endOffset=-1), "endOffset: an integer from 0"),
    "epochs": (lambda m: m["remoteLogSegmentMetadata"].update(segmentLeaderEpochs={}), "segmentLeaderEpochs: rising"),
    "epoch text": (lambda m: m["remoteLogSegmentMetadata"].update(segmentLeaderEpochs={"x": 1}), "leader epochs"),
    "topic": (
        lambda m: m["remoteLogSegmentMetadata"]["remoteLogSegmentId"]["topicIdPartition"]["topicPartition"].update(
            topic="../../etc"
        ),
        "topic: the name of a topic",
    ),
    "topic id": (
        lambda m: m["remoteLogSegmentMetadata"]["remoteLogSegmentId"]["topicIdPartition"].update(topicId="../x"),
        "topicId: a Uuid",
    ),
    "id": (lambda m: m["remoteLogSegmentMetadata"]["remoteLogSegmentId"].update(id=5), "id: a Uuid"),
    "encryption": (lambda m: m.update(encryption={"dataKey": "key", "aad": ""}), "dataKey: <key id>:<base64>"),
    "aad": (lambda m: m.update(encryption={"dataKey": "key:AAAA", "aad": "*"}), "aad: base64"),
    "transformed chunks no base64": (variable("***"), "transformedChunks: base64"),
    "transformed chunks no zstd": (variable("AAAA"), "transformedChunks: sizes of chunks"),
    "fewer chunks": (variable(encoded_sizes([10] * 9)), "10 sizes above 0"),
    "chunk of 0 bytes": (variable(encoded_sizes([10] * 9 + [0])), "10 sizes above 0"),
    "sizes cut": (variable(packed(struct.pack(">iiB", 10, 5, 1) + bytes(3))), "transformedChunks: sizes"),
    "sizes of 200 bytes": (variable(packed(struct.pack(">iiB", 10, 5, 200) + bytes(1804))), "transformedChunks: sizes"),
    "count negative": (variable(packed(struct.pack(">i", -1))), "transformedChunks: sizes"),
    "count huge": (variable(packed(struct.pack(">iiB", 0x7FFFFFFF, 0, 1))), "transformedChunks: sizes"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_manifest_is_an_error_that_says_where(name: str) -> None:
    change, expected = HOSTILE[name]
    with pytest.raises(CorruptRecordError, match=r"s3://bucket/m at byte \d+: ") as error:
        parse_manifest(changed(change), name="s3://bucket/m")
    assert expected in str(error.value)


def test_other_versions_and_formats_are_refused_by_name() -> None:
    for change in ({"version": "2"}, {"segmentFormat": "iceberg"}):
        with pytest.raises(UnsupportedFormatError, match="Iceberg"):
            parse_manifest(changed(lambda tree, change=change: tree.update(change)), name="m")


@given(st.binary(max_size=300))
def test_any_bytes_are_an_error(data: bytes) -> None:
    with pytest.raises((CorruptRecordError, UnsupportedFormatError)):
        parse_manifest(data, name="m")


@given(st.data())
def test_any_other_value_in_place_of_one_is_an_error_or_a_manifest(data: st.DataObject) -> None:
    text = json.dumps(EXAMPLE)
    start = data.draw(st.integers(0, len(text) - 1))
    end = data.draw(st.integers(start, min(start + 12, len(text))))
    other = data.draw(st.sampled_from(["", "0", "-1", "null", "true", '"x"', "[]", "{}", "1e9", "9" * 30, "NaN"]))
    with contextlib.suppress(CorruptRecordError, UnsupportedFormatError):
        parse_manifest((text[:start] + other + text[end:]).encode(), name="m")


def test_nested_manifest_is_an_error() -> None:
    with pytest.raises(CorruptRecordError, match="a manifest in JSON"):
        parse_manifest(b"[" * 100_000, name="m")


def segment(custom_metadata: bytes) -> RemoteSegment:
    return RemoteSegment(
        segment_id=SEGMENT_ID,
        start_offset=0,
        last_offset=9,
        size_bytes=1000,
        leader_epochs=(EpochEntry(2, 0),),
        custom_metadata=custom_metadata,
    )


def fields(**texts: str) -> bytes:
    """Custom metadata with an object_prefix (tag 1) or an object_key (tag 2)."""
    out = bytes([len(texts)])
    for tag, text in texts.items():
        out += bytes([int(tag[1:]), len(text) + 1, len(text) + 1]) + text.encode()
    return out


def test_custom_metadata_say_where_the_objects_are(tmp_path: Path) -> None:
    of, store = TopicIdPartition("topic1", TOPIC_ID, 0), DirectoryObjects(tmp_path)
    layout = AivenLayout(prefix="tier-", base="base")
    plain = f"tier-topic1-{TOPIC_ID}/0/00000000000000000000-{SEGMENT_ID}"
    assert layout._data_path(store, of, segment(b"")) == plain
    assert layout._data_path(store, of, segment(bytes([1, 0, 1, 4]))) == plain
    assert layout._data_path(store, of, segment(fields(t2="other/path"))) == "tier-other/path"
    assert layout._data_path(store, of, segment(fields(t1="base/old-"))) == plain.replace("tier-", "old-")
    assert layout._data_path(store, of, segment(fields(t1="base/a/", t2="b/c"))) == "a/b/c"
    for hostile in (fields(t2="../../etc/passwd"), fields(t1="elsewhere/"), fields(t1="base/", t2="/x")):
        with pytest.raises(CorruptRecordError, match=rf"custom metadata of segment {SEGMENT_ID}.*expected a key in"):
            layout._data_path(store, of, segment(hostile))
    for torn in (b"\x01", b"\x01\x02\x30x", b"\x01\x02\x02\x09x", b"\xff\xff\xff\xff\xff\xff"):
        with pytest.raises(CorruptRecordError, match="custom metadata of segment"):
            layout._data_path(store, of, segment(torn))


def test_keys_are_of_a_segment_or_of_nothing() -> None:
    key = f"orders-{TOPIC_ID}/3/00000000000000000023-{SEGMENT_ID}.log"
    found = parse_key(key)
    assert found is not None
    assert (found.partition, found.start_offset) == (TopicIdPartition("orders", TOPIC_ID, 3), 23)
    for other in (
        key.replace("/3/", "/03/"),
        key.replace("/3/", "/../"),
        key.replace("orders", ".."),
        key.replace("orders", "a/b"),
        key.replace(".log", ".lock"),
        key.replace("0023", "99999999999999999999"[:4] + "x"),
        key.replace(TOPIC_ID, TOPIC_ID[:-1]),
    ):
        assert parse_key(other) is None
    assert parse_folder(f"a-b-3-{TOPIC_ID}") == TopicIdPartition("a-b", TOPIC_ID, 3)
    assert parse_folder("a-3--" + "x" * 20 + "A") == TopicIdPartition("a", "-" + "x" * 20 + "A", 3)
    assert parse_folder(f"..-3-{TOPIC_ID}") is None
    assert parse_folder(f"orders-{TOPIC_ID}") is None
    assert parse_file(f"00000000000000000023-{SEGMENT_ID}.txnindex") == (23, SEGMENT_ID, ".txnindex")
    assert parse_file(f"0000000000000000002-{SEGMENT_ID}.log") is None


def test_key_that_bouncy_castle_encrypted_is_decrypted() -> None:
    """By Cipher.getInstance("RSA/NONE/OAEPWithSHA3-512AndMGF1Padding", "BC"), as the plugin does: bytes 0 to 31."""
    private, encrypted = (
        base64.b64decode(line) for line in (TIERED_FIXTURES / "bouncy-castle-oaep.txt").read_text().split()
    )
    key = load_der_private_key(private, None)
    assert _decrypt_key(key, encrypted) == bytes(range(32))
    assert _decrypt_key(key, bytes([encrypted[0] ^ 1]) + encrypted[1:]) is None
    assert _decrypt_key(key, encrypted[1:]) is None
