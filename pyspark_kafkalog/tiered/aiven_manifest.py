"""The manifest of a segment in the layout `aiven`: how its `.log` is cut into chunks, and where its indexes are.

    {"version": "1",
     "chunkIndex": {"type": "fixed", "originalChunkSize": ..., "originalFileSize": ..., "transformedChunkSize": ...,
                    "finalTransformedChunkSize": ...},
     "segmentIndexes": {"offset": {"position": 0, "size": ...}, "timestamp": ..., "producerSnapshot": ...,
                        "leaderEpoch": ..., "transaction": ... or null},
     "compression": false,
     "encryption": {"dataKey": "<key id>:<base64>", "aad": "<base64>"},       only with encryption
     "remoteLogSegmentMetadata": {...}}                                       the segment, as Kafka describes it

Compressed chunks have a chunk index of type "variable", with `transformedChunks` in place of the last two numbers:
base64 of zstd of count int32, base int32, bytes per value uint8, values above the base, last value int32.

*Encryption.* Chunks are AES-256-GCM, their keys RSA-OAEP with SHA3-512. Each segment has a key and additional
authenticated data of its own. The key is in the manifest, encrypted with the public key of the plugin's
`encryption.key.pair.id`; the private key is read from a PEM file, as the plugin does. A chunk, and each index, is nonce
(12 bytes) | ciphertext | tag (16 bytes). This needs the package cryptography (the extra object-store), which is loaded
on first use.

The manifest is uploaded last: with it the copy is complete. Every number is checked before use. Source of the format:
SegmentManifestV1 and ChunkSizesBinaryCodec in io.aiven.kafka.tieredstorage.manifest; RsaEncryptionProvider and
AesEncryptionProvider in io.aiven.kafka.tieredstorage.security.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
from collections.abc import Callable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NoReturn

from pyspark_kafkalog.errors import (
    CorruptRecordError,
    InvalidOptionError,
    InvalidTopicError,
    KafkalogError,
    UnsupportedFormatError,
    missing_package,
)
from pyspark_kafkalog.storage.artefacts.checkpoint_file import EpochEntry
from pyspark_kafkalog.storage.names import validate_topic_name
from pyspark_kafkalog.tiered.objects import IndexKind, wrong_bytes
from pyspark_kafkalog.tiered.segments import RemoteSegment, TopicIdPartition, check_leader_epochs, is_uuid
from pyspark_kafkalog.units import INT32_MAX, INT64_MAX
from pyspark_kafkalog.values import dataclass

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

#: Larger manifests are taken for damage: one of a segment of 2 GiB in chunks of 4 KiB has 2 MiB.
MANIFEST_BYTES_MAX: Final = 16 << 20
#: A chunk is in memory as a whole, several times while it is read.
CHUNK_BYTES_MAX: Final = 256 << 20
_SIZES_BYTES_MAX: Final = 10 << 20
#: What encryption adds to a chunk: the nonce in front and the tag behind.
NONCE_BYTES: Final = 12
TAG_BYTES: Final = 16
#: The id for a key file that is given without one: it is tried for every key.
ANY_KEY: Final = ""
_HASH_BYTES: Final = 64
_AES_KEY_BYTES: Final = (16, 24, 32)

#: Takes a chunk, its object's name and its position in it; returns the bytes before encryption.
Decrypt = Callable[[memoryview, str, int], bytes]


@dataclass(frozen=True, slots=True)
class ChunkIndex:
    """The chunks of a `.log` of `size_bytes`: each has `chunk_bytes` of it, the last one the rest.

    `positions`: where each chunk begins in the object, and at last where the last one ends.
    """

    chunk_bytes: int
    size_bytes: int
    positions: NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Encryption:
    """The segment's own key, encrypted with the key named `key_id`, and its additional authenticated data."""

    key_id: str
    encrypted_key: bytes
    aad: bytes


@dataclass(frozen=True, slots=True)
class Manifest:
    """A checked manifest. `indexes`: position and size of each index in the object of indexes; not of missing ones.

    `partition` and `segment` are None if the manifest does not describe its segment, as some tools leave that out.
    """

    chunks: ChunkIndex
    indexes: Mapping[IndexKind, tuple[int, int]]
    is_compressed: bool
    encryption: Encryption | None
    partition: TopicIdPartition | None
    segment: RemoteSegment | None

    @property
    def is_plain(self) -> bool:
        """Whether the object is the `.log` itself."""
        return not self.is_compressed and self.encryption is None


def parse_manifest(data: bytes, *, name: str) -> Manifest:
    """The manifest in an object's bytes; `name` names it in errors.

    Raises CorruptRecordError, which says which value is wrong, UnsupportedFormatError for other versions and formats.
    """
    try:
        tree = json.loads(data)
    except (ValueError, RecursionError) as error:
        position = getattr(error, "pos", 0)
        raise CorruptRecordError(
            file=name, position=position, expected="a manifest in JSON", found=str(error), advice=_ADVICE
        ) from None
    return _Parser(data, name).manifest(tree)


_ADVICE: Final = "the object was damaged or replaced: restore it from a copy"


class _Parser:
    def __init__(self, data: bytes, name: str) -> None:
        self._data = data
        self._name = name

    def manifest(self, tree: Any) -> Manifest:
        top = self._object(tree, "manifest")
        version = top.get("version")
        if version != "1" or top.get("segmentFormat", "kafka") not in ("kafka", None):
            raise UnsupportedFormatError(
                file=self._name,
                position=self._position("version"),
                expected='a manifest of version "1" for a segment of Kafka\'s format',
                found=f"version {version!r}, segmentFormat {top.get('segmentFormat', 'kafka')!r}",
                advice="segments in Iceberg's format are tables: read them as such",
            )
        is_compressed = top.get("compression")
        if not isinstance(is_compressed, bool):
            self._wrong("compression", "true or false", is_compressed)
        encryption = self._encryption(top.get("encryption"))
        chunks = self._chunks(self._object(top.get("chunkIndex"), "chunkIndex"))
        described = top.get("remoteLogSegmentMetadata")
        indexes = self._indexes(self._object(top.get("segmentIndexes"), "segmentIndexes"))
        if not is_compressed:
            self._check_sizes(chunks, 0 if encryption is None else NONCE_BYTES + TAG_BYTES)
        partition, segment = (None, None)
        if described is not None:
            has_transactions = indexes.get(IndexKind.TRANSACTION, (0, 0))[1] > 0
            partition, segment = self._segment(described, chunks.size_bytes, has_transactions)
        return Manifest(chunks, indexes, is_compressed, encryption, partition, segment)

    def _chunks(self, tree: Mapping[str, Any]) -> ChunkIndex:
        import numpy as np  # a key needs no arrays

        chunk_bytes = self._int(tree, "originalChunkSize", 1, INT32_MAX)
        size_bytes = self._int(tree, "originalFileSize", 0, INT32_MAX)
        count = -(-size_bytes // chunk_bytes)
        if min(chunk_bytes, size_bytes) > CHUNK_BYTES_MAX:
            self._wrong("originalChunkSize", f"chunks of at most {CHUNK_BYTES_MAX} bytes", chunk_bytes)
        if tree.get("type") == "fixed":
            each = self._int(tree, "transformedChunkSize", 0, INT32_MAX)
            last = self._int(tree, "finalTransformedChunkSize", 0, INT32_MAX)
            if count > _SIZES_BYTES_MAX:
                self._wrong("originalChunkSize", f"at most {_SIZES_BYTES_MAX} chunks", chunk_bytes)
            sizes = np.full(count, each, dtype=np.int64)  # bounded: _SIZES_BYTES_MAX, above
            sizes[-1:] = last
        elif tree.get("type") == "variable":
            sizes = self._variable_sizes(tree.get("transformedChunks"), count)
        else:
            self._wrong("chunkIndex", 'a type "fixed" or "variable"', tree.get("type"))
        if sizes.max(initial=0) > CHUNK_BYTES_MAX + (1 << 20):
            self._wrong("chunkIndex", f"chunks of at most {CHUNK_BYTES_MAX} bytes", int(sizes.max()))
        positions = np.concatenate([np.zeros(1, np.int64), np.cumsum(sizes)])
        return ChunkIndex(chunk_bytes, size_bytes, positions)

    def _variable_sizes(self, text: Any, count: int) -> NDArray[np.int64]:
        import numpy as np

        from pyspark_kafkalog.record.codecs.zstd import decompress  # loads zstandard

        try:
            packed = np.frombuffer(self._base64(text, "transformedChunks"), np.uint8)
            data = decompress(packed, _SIZES_BYTES_MAX).tobytes()
            sizes = _decode_sizes(data)
        except (KafkalogError, ValueError) as error:
            if isinstance(error, CorruptRecordError):
                raise
            self._wrong("transformedChunks", "sizes of chunks, compressed with zstd", error)
        if len(sizes) != count or sizes.min(initial=1) <= 0:
            self._wrong(
                "transformedChunks", f"{count} sizes above 0", f"{len(sizes)}, the least {sizes.min(initial=0)}"
            )
        return sizes

    def _check_sizes(self, chunks: ChunkIndex, added_bytes: int) -> None:
        """Uncompressed chunks have the bytes of the `.log`, and what encryption adds."""
        count = len(chunks.positions) - 1
        expected = chunks.size_bytes + count * added_bytes
        if chunks.positions[-1] != expected or (
            count > 1 and (chunks.positions[1:-1] - chunks.positions[:-2] != chunks.chunk_bytes + added_bytes).any()
        ):
            self._wrong("chunkIndex", f"chunks of {expected} bytes in all", int(chunks.positions[-1]))

    def _indexes(self, tree: Mapping[str, Any]) -> dict[IndexKind, tuple[int, int]]:
        found = {}
        for kind in IndexKind:
            if kind is IndexKind.TRANSACTION and tree.get(kind.value) is None:
                continue
            each = self._object(tree.get(kind.value), kind.value)
            size_bytes = self._int(each, "size", 0, INT32_MAX)
            found[kind] = self._int(each, "position", 0, INT64_MAX - size_bytes), size_bytes
        return found

    def _encryption(self, tree: Any) -> Encryption | None:
        if tree is None:
            return None
        each = self._object(tree, "encryption")
        text = each.get("dataKey")
        key_id, colon, encrypted = text.partition(":") if isinstance(text, str) else ("", "", "")
        if not (key_id and colon and encrypted) or ":" in encrypted:
            self._wrong("dataKey", "<key id>:<base64>", type(text).__name__)
        return Encryption(key_id, self._base64(encrypted, "dataKey"), self._base64(each.get("aad"), "aad"))

    def _segment(self, tree: Any, size_bytes: int, has_transactions: bool) -> tuple[TopicIdPartition, RemoteSegment]:
        described = self._object(tree, "remoteLogSegmentMetadata")
        of = self._object(described.get("remoteLogSegmentId"), "remoteLogSegmentId")
        topic = self._object(of.get("topicIdPartition"), "topicIdPartition")
        partition = self._object(topic.get("topicPartition"), "topicPartition")
        try:
            name = validate_topic_name(str(partition.get("topic")))
        except InvalidTopicError as error:
            self._wrong("topic", "the name of a topic", error)
        start_offset = self._int(described, "startOffset", 0, INT64_MAX - 1)
        last_offset = self._int(described, "endOffset", start_offset, INT64_MAX - 1)
        epochs = self._leader_epochs(described.get("segmentLeaderEpochs"), start_offset, last_offset)
        max_timestamp_ms = self._int(described, "maxTimestampMs", -INT64_MAX, INT64_MAX)
        return (
            TopicIdPartition(name, self._uuid(topic, "topicId"), self._int(partition, "partition", 0, INT32_MAX)),
            RemoteSegment(
                segment_id=self._uuid(of, "id"),
                start_offset=start_offset,
                last_offset=last_offset,
                size_bytes=size_bytes,
                leader_epochs=epochs,
                max_timestamp_ms=max_timestamp_ms if max_timestamp_ms >= 0 else None,
                has_transaction_index=has_transactions,
            ),
        )

    def _leader_epochs(self, tree: Any, start_offset: int, last_offset: int) -> tuple[EpochEntry, ...]:
        by_epoch = self._object(tree, "segmentLeaderEpochs")
        entries = []
        for epoch in by_epoch:
            if not (epoch.isascii() and epoch.isdigit() and len(epoch) <= len(str(INT32_MAX))):
                self._wrong("segmentLeaderEpochs", "leader epochs", epoch)
            entries.append(EpochEntry(int(epoch), self._int(by_epoch, epoch, 0, INT64_MAX)))
        epochs = tuple(sorted(entries))
        check_leader_epochs(
            epochs,
            start_offset,
            last_offset,
            lambda expected, found: self._error("segmentLeaderEpochs", expected, found),
        )
        return epochs

    def _uuid(self, tree: Mapping[str, Any], field: str) -> str:
        text = tree.get(field)
        if not isinstance(text, str) or not is_uuid(text):
            self._wrong(field, "a Uuid in base64url", text)
        return text

    def _object(self, tree: Any, field: str) -> Mapping[str, Any]:
        if not isinstance(tree, dict):
            self._wrong(field, "an object", tree)
        return tree

    def _int(self, tree: Mapping[str, Any], field: str, least: int, most: int) -> int:
        value = tree.get(field)
        if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
            self._wrong(field, f"an integer from {least} to {most}", value)
        return value

    def _base64(self, text: Any, field: str) -> bytes:
        try:
            return base64.b64decode(text, validate=True)
        except (binascii.Error, ValueError, TypeError):
            self._wrong(field, "base64", type(text).__name__)

    def _wrong(self, field: str, expected: str, found: object) -> NoReturn:
        raise self._error(field, expected, found)

    def _error(self, field: str, expected: str, found: object) -> CorruptRecordError:
        return CorruptRecordError(
            file=self._name,
            position=self._position(field),
            expected=f"{field}: {expected}",
            found=repr(found)[:100],
            advice=_ADVICE,
        )

    def _position(self, field: str) -> int:
        """The byte at which the field's name begins; 0 if it is not there."""
        return max(self._data.find(f'"{field}"'.encode()), 0)


def _decode_sizes(data: bytes) -> NDArray[np.int64]:
    """The sizes that ChunkSizesBinaryCodec has encoded. Raises ValueError for other bytes."""
    import numpy as np

    if len(data) < 4:
        raise ValueError(f"expected a count, found {len(data)} bytes")
    count = int.from_bytes(data[:4], "big", signed=True)
    if count <= 1:
        if count < 0 or len(data) != 4 + 4 * count:
            raise ValueError(f"expected {count} sizes, found {len(data)} bytes")
        return np.frombuffer(data, ">i4", offset=4).astype(np.int64)
    base, width = int.from_bytes(data[4:8], "big", signed=True), data[8] if len(data) > 8 else 0
    if base < 0 or not 1 <= width <= 4 or len(data) != 13 + (count - 1) * width:
        raise ValueError(f"expected {count} sizes of {width} bytes above {base}, found {len(data)} bytes")
    packed = np.frombuffer(data, np.uint8, count=(count - 1) * width, offset=9).reshape(-1, width).astype(np.int64)
    sizes = base + (packed << (8 * np.arange(width - 1, -1, -1))).sum(axis=1)  # bounded: the width of an integer
    return np.append(sizes, int.from_bytes(data[-4:], "big", signed=True))


def decryption(encryption: Encryption, key_files: Mapping[str, str], *, name: str) -> Decrypt:
    """Decrypts the chunks and indexes of the segment whose manifest is `name`.

    Raises InvalidOptionError without a key file for it, or if that is not the right one; MissingPackageError.
    """
    file = key_files.get(encryption.key_id, key_files.get(ANY_KEY))
    if file is None:
        raise InvalidOptionError(
            f"{name} is encrypted with the key {encryption.key_id!r}, and no file with its private key is given: set "
            f"remoteStorageKeyFiles to {encryption.key_id}:<path of a PEM file>"
        )
    cipher, invalid_tag = _cipher(file, encryption, name)

    def decrypt(chunk: memoryview, object_name: str, position: int) -> bytes:
        if len(chunk) < NONCE_BYTES + TAG_BYTES:
            wrong_bytes(object_name, position, "an encrypted chunk of 28 bytes or more", f"{len(chunk)} bytes")
        try:
            plain: bytes = cipher.decrypt(bytes(chunk[:NONCE_BYTES]), bytes(chunk[NONCE_BYTES:]), encryption.aad)
        except invalid_tag:
            wrong_bytes(object_name, position, "a chunk that its key decrypts", "another authentication tag")
        return plain

    return decrypt


@lru_cache(maxsize=1024)
def _cipher(file: str, encryption: Encryption, name: str) -> tuple[Any, type[Exception]]:
    """The segment's cipher, and what it raises for wrong bytes. Kept, as decrypting a key takes some ms."""
    try:
        from cryptography.exceptions import InvalidTag
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM
    except ImportError as error:
        raise missing_package("cryptography", "encrypted segments need") from error
    key = _decrypt_key(_private_key(file), encryption.encrypted_key)
    if key is None:
        raise InvalidOptionError(
            f"{file} is not the private key of {encryption.key_id!r}, with which {name} is encrypted"
        )
    if len(key) not in _AES_KEY_BYTES:
        wrong_bytes(name, 0, "a data key of 32 bytes", f"{len(key)} bytes")
    return AESGCM(key), InvalidTag


def _decrypt_key(private_key: Any, encrypted: bytes) -> bytes | None:
    """RSAES-OAEP decryption (RFC 8017, 7.1.2) with SHA3-512 for both hashes; None if this is not the key.

    cryptography has OAEP only with older hashes. Timing gives nothing away: the reader has the key.
    """
    numbers = private_key.private_numbers()
    modulus = numbers.public_numbers.n
    size_bytes = (modulus.bit_length() + 7) // 8
    number = int.from_bytes(encrypted, "big")
    if len(encrypted) != size_bytes or number >= modulus or size_bytes < 2 * _HASH_BYTES + 2:
        return None
    of_p, of_q = pow(number, numbers.dmp1, numbers.p), pow(number, numbers.dmq1, numbers.q)
    message = of_q + numbers.q * (numbers.iqmp * (of_p - of_q) % numbers.p)
    encoded = message.to_bytes(size_bytes, "big")
    seed, block = encoded[1 : 1 + _HASH_BYTES], encoded[1 + _HASH_BYTES :]
    seed = _xor(seed, _mask(block, len(seed)))
    block = _xor(block, _mask(seed, len(block)))
    key = block[_HASH_BYTES:].lstrip(b"\0")
    is_valid = encoded[0] == 0 and block[:_HASH_BYTES] == hashlib.sha3_512().digest() and key[:1] == b"\1"
    return key[1:] if is_valid else None


def _mask(seed: bytes, size_bytes: int) -> bytes:
    """MGF1."""
    rounds = range(-(-size_bytes // _HASH_BYTES))
    return b"".join(hashlib.sha3_512(seed + each.to_bytes(4, "big")).digest() for each in rounds)[:size_bytes]


def _xor(first: bytes, second: bytes) -> bytes:
    return bytes(a ^ b for a, b in zip(first, second, strict=True))


@lru_cache(maxsize=16)
def _private_key(file: str) -> Any:
    """The RSA key in a PEM file. Raises InvalidOptionError; the message shows nothing of the key."""
    from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    try:
        key = load_pem_private_key(Path(file).read_bytes(), password=None)  # bounded: the key file of a setting
    except OSError as error:
        raise InvalidOptionError(f"the key file {file} cannot be read: {error.strerror}") from None
    except (ValueError, TypeError):
        raise InvalidOptionError(f"{file} is not a private key in PEM without a password") from None
    if not isinstance(key, RSAPrivateKey):
        raise InvalidOptionError(f"{file} is not an RSA key, which the plugin encrypts with")
    return key
