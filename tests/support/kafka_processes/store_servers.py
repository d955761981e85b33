"""MinIO and Azurite, further servers to hold the client of object stores against (make test-stores).

MinIO is built from its source by `go install` (minutes, on the first call ever), Azurite comes by npm; both are kept in
the cache of java_processes.py. They listen on 127.0.0.1 only and die with the process that started them.
"""

from __future__ import annotations

import base64
import datetime
import hashlib
import hmac
import http.client
import os
import secrets
import subprocess
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from kafka_processes.java_processes import cache_dir
from kafka_processes.store_process import S3Server, StoreProcess
from pyspark_kafkalog.object_store.location import ObjectLocation

#: Which servers tests start; make test-stores sets it.
TEST_STORES: Final = os.environ.get("KAFKALOG_TEST_STORES", "s3proxy").split(",")

_MINIO: Final = "github.com/minio/minio@v0.0.0-20260212201848-7aac2a2c5b7c"
_AZURITE: Final = "azurite@3.35.0"
_AZURE_VERSION: Final = "2023-11-03"
_START_SECONDS_MAX: Final = 60
_INSTALL_SECONDS_MAX: Final = 1800


class MinioServer(S3Server):
    """S3's protocol, over a directory."""

    def command(self) -> list[str]:
        address = f"127.0.0.1:{self.port}"
        user = [f"MINIO_ROOT_USER={self.access_key}", f"MINIO_ROOT_PASSWORD={self.secret_key}", "MINIO_BROWSER=off"]
        return ["env", *user, str(_minio()), "server", "--quiet", "--address", address, str(self.home / "objects")]


class AzuriteServer(StoreProcess):
    """Azure Blob Storage's protocol, in memory."""

    account: Final = "testaccount"

    def __init__(self, home: Path) -> None:
        super().__init__(home)
        self._key = base64.b64encode(secrets.token_bytes(32)).decode()

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}/{self.account}"

    def command(self) -> list[str]:
        where = ["--blobHost", "127.0.0.1", "--blobPort", str(self.port)]
        options = ["--inMemoryPersistence", "--skipApiVersionCheck", "--disableTelemetry"]
        return ["env", f"AZURITE_ACCOUNTS={self.account}:{self._key}", str(_azurite()), *where, *options]

    def new_location(self) -> ObjectLocation:
        name = f"container-{secrets.token_hex(6)}"
        connection = http.client.HTTPConnection(urlsplit(self.endpoint).netloc, timeout=30)
        try:
            path = f"/{self.account}/{name}"
            connection.request("PUT", f"{path}?restype=container", headers=self._signed_headers(path))
            status = connection.getresponse().status
        finally:
            connection.close()
        if status != 201:
            raise OSError(f"{self.endpoint}: expected a new container {name}, found {status}")
        return ObjectLocation("az", name, account=self.account)

    def options(self, endpoint: str | None = None) -> dict[str, str]:
        """The data source's options to reach this server, or a relay before it."""
        where = self.endpoint if endpoint is None else f"{endpoint}/{self.account}"
        return {"storeEndpoint": where, "storeSecretKey": self._key}

    def _signed_headers(self, path: str) -> dict[str, str]:
        """Azure's Shared Key, of the request that makes a container."""
        now = datetime.datetime.now(datetime.timezone.utc).strftime("%a, %d %b %Y %H:%M:%S GMT")
        headers = {"x-ms-date": now, "x-ms-version": _AZURE_VERSION}
        lines = "".join(f"{name}:{value}\n" for name, value in headers.items())
        to_sign = "PUT" + "\n" * 12 + f"{lines}/{self.account}{path}\nrestype:container"
        signature = hmac.digest(base64.b64decode(self._key), to_sign.encode(), hashlib.sha256)
        authorization = f"SharedKey {self.account}:{base64.b64encode(signature).decode()}"
        return {**headers, "Authorization": authorization, "Content-Length": "0"}


def _minio() -> Path:
    folder = cache_dir() / "minio"
    program = folder / "minio"
    if not program.is_file():
        folder.mkdir(parents=True, exist_ok=True)
        _install(["go", "install", _MINIO], {"GOBIN": str(folder)})
    return program


def _azurite() -> Path:
    folder = cache_dir() / _AZURITE.replace("@", "-")
    program = folder / "node_modules" / ".bin" / "azurite-blob"
    if not program.is_file():
        folder.mkdir(parents=True, exist_ok=True)
        _install(["npm", "install", "--no-audit", "--no-fund", "--prefix", str(folder), _AZURITE], {})
    return program


def _install(command: list[str], variables: dict[str, str]) -> None:
    subprocess.run(command, check=True, timeout=_INSTALL_SECONDS_MAX, env={**os.environ, **variables})
