"""The client's side of SCRAM, written from RFC 5802 with nothing of the package; and stand-ins for its surroundings."""

from __future__ import annotations

import base64
import hashlib
import hmac


class ScramClient:
    """One exchange of a client: `first`, then `final` with the server's answer, then `accepts` its last one."""

    def __init__(self, user: str, password: str, hash_name: str = "sha256", nonce: str = "fyko+d2lbbFgONRv9qkxdawL"):
        self._hash = hash_name
        self._password = password
        self._bare = f"n={user.replace('=', '=3D').replace(',', '=2C')},r={nonce}"
        self._signature = b""

    def first(self) -> bytes:
        return f"n,,{self._bare}".encode()

    def final(self, server_first: bytes, *, binding: bytes = b"n,,", before_nonce: str = "") -> bytes:
        fields = dict(each.split("=", 1) for each in server_first.decode().split(","))
        salt = base64.b64decode(fields["s"])
        salted = hashlib.pbkdf2_hmac(self._hash, self._password.encode(), salt, int(fields["i"]))
        client_key = hmac.digest(salted, b"Client Key", self._hash)
        without_proof = f"c={base64.b64encode(binding).decode()},r={before_nonce}{fields['r']}"
        messages = f"{self._bare},{server_first.decode()},{without_proof}".encode()
        self._signature = hmac.digest(hmac.digest(salted, b"Server Key", self._hash), messages, self._hash)
        mask = hmac.digest(hashlib.new(self._hash, client_key).digest(), messages, self._hash)
        proof = bytes(one ^ other for one, other in zip(client_key, mask, strict=True))
        return f"{without_proof},p={base64.b64encode(proof).decode()}".encode()

    def accepts(self, server_final: bytes) -> bool:
        return server_final == b"v=" + base64.b64encode(self._signature)
