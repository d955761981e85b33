"""Writes the segments of a tiered fixture as Aiven's plugin does: chunks, one object of indexes, a manifest.

Written from the plugin's description of its formats, not with the code under test.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import zstandard
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from builders.tiered_fixtures import TieredFixture

INDEXES: Final = (
    ("offset", ".index"),
    ("timestamp", ".timeindex"),
    ("producerSnapshot", ".snapshot"),
    ("leaderEpoch", ".leader_epoch_checkpoint"),
    ("transaction", ".txnindex"),
)
_METADATA: Final = re.compile(
    r"id=(?P<id>[\w-]{22})\}, startOffset=(?P<start>\d+), endOffset=(?P<end>\d+), brokerId=(?P<broker>\d+), "
    r"maxTimestampMs=(?P<max>-?\d+), eventTimestampMs=(?P<event>\d+), segmentLeaderEpochs=\{(?P<epochs>[^}]*)\}"
)


@dataclass(frozen=True)
class AivenWriter:
    """`prefix` is the plugin's key.prefix. With `key`, everything but manifests is encrypted for it."""

    chunk_bytes: int = 2000
    is_compressed: bool = False
    key: rsa.RSAPrivateKey | None = None
    key_id: str = "pair-1"
    prefix: str = ""

    def write(self, fixture: TieredFixture, into: Path) -> None:
        """All whole copies of the fixture's remote storage; of torn ones what the plugin would have written."""
        for folder in (fixture.remote / "kafka-tiered-storage").iterdir():
            topic, partition, topic_id = re.fullmatch(r"(.+)-(\d+)-(.{22})", folder.name).groups()
            target = into / f"{self.prefix}{topic}-{topic_id}" / partition
            for log in folder.glob("*.log"):
                target.mkdir(parents=True, exist_ok=True)
                metadata = described(fixture, topic, topic_id, int(partition), log.stem[21:])
                self.write_segment(log, target / log.stem, metadata)

    def write_segment(self, log: Path, target: Path, metadata: dict[str, Any]) -> None:
        data_key, aad = AESGCM.generate_key(256), os.urandom(32)
        chunks = [
            self._transformed(log.read_bytes()[at : at + self.chunk_bytes], data_key, aad)
            for at in range(0, log.stat().st_size, self.chunk_bytes)
        ]
        target.with_name(f"{target.name}.log").write_bytes(b"".join(chunks))
        if not log.with_suffix(".snapshot").exists():
            return
        body, places = b"", {}
        for name, suffix in INDEXES:
            file = log.with_suffix(suffix)
            places[name] = None
            if file.exists():
                data = file.read_bytes()
                data = self._encrypted(data, data_key, aad) if data else data
                places[name] = {"position": len(body), "size": len(data)}
                body += data
        target.with_name(f"{target.name}.indexes").write_bytes(body)
        manifest: dict[str, Any] = {
            "version": "1",
            "chunkIndex": self._chunk_index(log.stat().st_size, [len(each) for each in chunks]),
            "segmentIndexes": places,
            "compression": self.is_compressed,
        }
        if self.key is not None:
            encrypted = encrypted_key(self.key, data_key)
            manifest["encryption"] = {
                "dataKey": f"{self.key_id}:{base64.b64encode(encrypted).decode()}",
                "aad": base64.b64encode(aad).decode(),
            }
        manifest["remoteLogSegmentMetadata"] = metadata
        target.with_name(f"{target.name}.rsm-manifest").write_text(json.dumps(manifest, separators=(",", ":")))

    def _transformed(self, chunk: bytes, data_key: bytes, aad: bytes) -> bytes:
        if self.is_compressed:
            chunk = zstandard.ZstdCompressor().compress(chunk)
        return self._encrypted(chunk, data_key, aad)

    def _encrypted(self, data: bytes, data_key: bytes, aad: bytes) -> bytes:
        if self.key is None:
            return data
        nonce = os.urandom(12)
        return nonce + AESGCM(data_key).encrypt(nonce, data, aad)

    def _chunk_index(self, size_bytes: int, sizes: list[int]) -> dict[str, Any]:
        common = {"originalChunkSize": self.chunk_bytes, "originalFileSize": size_bytes}
        if self.is_compressed:
            return {"type": "variable", **common, "transformedChunks": encoded_sizes(sizes)}
        return {"type": "fixed", **common, "transformedChunkSize": sizes[0], "finalTransformedChunkSize": sizes[-1]}


def encoded_sizes(sizes: list[int]) -> str:
    """As the plugin's ChunkSizesBinaryCodec and TransformedChunksSerializer."""
    data = struct.pack(">i", len(sizes))
    if len(sizes) > 1:
        base = min(sizes[:-1])
        width = max((max(sizes[:-1]) - base).bit_length() + 7, 8) // 8
        data += struct.pack(">iB", base, width)
        data += b"".join((each - base).to_bytes(width, "big") for each in sizes[:-1])
    if sizes:
        data += struct.pack(">i", sizes[-1])
    return base64.b64encode(zstandard.ZstdCompressor().compress(data)).decode()


def described(fixture: TieredFixture, topic: str, topic_id: str, partition: int, segment_id: str) -> dict[str, Any]:
    """A manifest's remoteLogSegmentMetadata, from what the broker noted of the segment."""
    lines = (fixture.log_dir.parent / "expected" / "remote-log-metadata.txt").read_text().splitlines()
    found = next(match for line in lines if (match := _METADATA.search(line)) and match["id"] == segment_id)
    epochs = dict(each.split("=") for each in found["epochs"].split(", "))
    return {
        "remoteLogSegmentId": {
            "topicIdPartition": {"topicId": topic_id, "topicPartition": {"topic": topic, "partition": partition}},
            "id": segment_id,
        },
        "startOffset": int(found["start"]),
        "endOffset": int(found["end"]),
        "maxTimestampMs": int(found["max"]),
        "brokerId": int(found["broker"]),
        "eventTimestampMs": int(found["event"]),
        "segmentLeaderEpochs": {epoch: int(offset) for epoch, offset in epochs.items()},
    }


def write_key(key: rsa.RSAPrivateKey, path: Path) -> Path:
    """The private key as a PEM file."""
    form = serialization.PrivateFormat.PKCS8
    path.write_bytes(key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption()))
    return path


def encrypted_key(key: rsa.RSAPrivateKey, data_key: bytes) -> bytes:
    """RSAES-OAEP (RFC 8017, 7.1.1) with SHA3-512, which Java calls RSA/NONE/OAEPWithSHA3-512AndMGF1Padding."""
    numbers = key.public_key().public_numbers()
    size_bytes = key.key_size // 8
    block = hashlib.sha3_512(b"").digest() + bytes(size_bytes - len(data_key) - 130) + b"\x01" + data_key
    seed = os.urandom(64)
    block = masked(block, seed)
    encoded = b"\0" + masked(seed, block) + block
    return pow(int.from_bytes(encoded, "big"), numbers.e, numbers.n).to_bytes(size_bytes, "big")


def masked(data: bytes, seed: bytes) -> bytes:
    mask, counter = b"", 0
    while len(mask) < len(data):
        mask += hashlib.sha3_512(seed + struct.pack(">I", counter)).digest()
        counter += 1
    return bytes(each ^ mask[at] for at, each in enumerate(data))
