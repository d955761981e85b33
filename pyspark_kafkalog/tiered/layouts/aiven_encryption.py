"""Decrypts what Aiven's plugin has encrypted: AES-256-GCM chunks, and their keys by RSA-OAEP with SHA3-512.

Each segment has a key and additional authenticated data of its own. The key is in the manifest, encrypted with the
public key of the plugin's `encryption.key.pair.id`; the private key is read from a PEM file, as the plugin does. A
chunk, and each index, is nonce (12 bytes) | ciphertext | tag (16 bytes).

Needs the package cryptography (the extra object-store), which is loaded on first use. Source of the rules:
io.aiven.kafka.tieredstorage.security.RsaEncryptionProvider and AesEncryptionProvider.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

from pyspark_kafkalog.errors import InvalidOptionError, missing_package
from pyspark_kafkalog.tiered.layouts.aiven_manifest import NONCE_BYTES, TAG_BYTES, Encryption
from pyspark_kafkalog.tiered.layouts.segment_objects import wrong_bytes

#: The id for a key file that is given without one: it is tried for every key.
ANY_KEY: Final = ""
_HASH_BYTES: Final = 64
_AES_KEY_BYTES: Final = (16, 24, 32)

#: Takes a chunk, its object's name and its position in it; returns the bytes before encryption.
Decrypt = Callable[[memoryview, str, int], bytes]


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
