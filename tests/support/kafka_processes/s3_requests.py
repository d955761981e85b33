"""Requests to a server for S3's protocol that no client of ours makes, signed by hand (AWS Signature Version 4)."""

from __future__ import annotations

import datetime
import hashlib
import hmac
import http.client
import secrets
from typing import Final
from urllib.parse import urlsplit

REGION: Final = "us-east-1"


def new_bucket(endpoint: str, access_key: str, secret_key: str) -> str:
    """The name of a bucket that is new on the server."""
    name = f"bucket-{secrets.token_hex(6)}"
    connection = http.client.HTTPConnection(urlsplit(endpoint).netloc, timeout=30)
    try:
        connection.request("PUT", f"/{name}", headers=_signed_headers(endpoint, access_key, secret_key, f"/{name}"))
        answer = connection.getresponse()
        text = answer.read().decode(errors="replace")
    finally:
        connection.close()
    if answer.status != 200:
        raise OSError(f"{endpoint}: expected a new bucket {name}, found {answer.status} {text}")
    return name


def _signed_headers(endpoint: str, access_key: str, secret_key: str, path: str) -> dict[str, str]:
    """Of a PUT without query and body."""
    now = datetime.datetime.now(datetime.timezone.utc).strftime("%Y%m%dT%H%M%SZ")
    empty = hashlib.sha256(b"").hexdigest()
    headers = {"host": urlsplit(endpoint).netloc, "x-amz-content-sha256": empty, "x-amz-date": now}
    names = ";".join(headers)
    lines = "".join(f"{name}:{value}\n" for name, value in headers.items())
    canonical = f"PUT\n{path}\n\n{lines}\n{names}\n{empty}"
    scope = f"{now[:8]}/{REGION}/s3/aws4_request"
    to_sign = f"AWS4-HMAC-SHA256\n{now}\n{scope}\n{hashlib.sha256(canonical.encode()).hexdigest()}"
    key = f"AWS4{secret_key}".encode()
    for part in scope.split("/"):
        key = hmac.digest(key, part.encode(), "sha256")
    signature = hmac.digest(key, to_sign.encode(), "sha256").hex()
    credential = f"Credential={access_key}/{scope}, SignedHeaders={names}, Signature={signature}"
    return {**headers, "Authorization": f"AWS4-HMAC-SHA256 {credential}"}
