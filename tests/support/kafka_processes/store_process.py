"""A server of objects for tests: a process that listens on a port of this machine, and dies with its maker."""

from __future__ import annotations

import secrets
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

from kafka_processes.java_processes import accepts, free_port, processor_seconds_of, start_server
from kafka_processes.s3_requests import REGION, new_bucket
from pyspark_kafkalog.object_store.location import ObjectLocation

if TYPE_CHECKING:
    import pytest

_START_SECONDS_MAX: Final = 60

S = TypeVar("S", bound="StoreProcess")


class StoreProcess:
    """Runs while it is entered. `home` holds its log and what it stores; `port` is known from then on."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.port = 0
        self._process: subprocess.Popen[bytes] | None = None

    def command(self) -> list[str]:
        """What to run to listen on `port`."""
        raise NotImplementedError

    def __enter__(self: S) -> S:
        self.home.mkdir(parents=True, exist_ok=True)
        self.port = free_port()
        command = self.command()
        with (self.home / "server.log").open("ab") as log:
            self._process = start_server(command, log)
        deadline = time.monotonic() + _START_SECONDS_MAX
        while not accepts(self.port):
            if self._process.poll() is not None or time.monotonic() > deadline:
                self.__exit__()
                raise OSError(f"{command} did not start\n{(self.home / 'server.log').read_text()[-2000:]}")
            time.sleep(0.05)
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    @property
    def pid(self) -> int:
        """The id of the server's process."""
        assert self._process is not None
        return self._process.pid

    def processor_seconds(self) -> float:
        """The processor time that the server has used so far."""
        return processor_seconds_of(self.pid)


class S3Server(StoreProcess):
    """A server for S3's protocol that accepts one pair of keys, which is made up here."""

    def __init__(self, home: Path) -> None:
        super().__init__(home)
        self.access_key = f"TEST{secrets.token_hex(8).upper()}"
        self.secret_key = secrets.token_hex(20)

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def new_location(self) -> ObjectLocation:
        """A new bucket."""
        deadline = time.monotonic() + _START_SECONDS_MAX
        while True:
            try:
                return ObjectLocation("s3", new_bucket(self.endpoint, self.access_key, self.secret_key))
            except OSError:  # MinIO listens before it serves
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.1)

    def options(self, endpoint: str | None = None) -> dict[str, str]:
        """The data source's options to reach this server, or a relay before it."""
        return {
            "storeEndpoint": endpoint if endpoint is not None else self.endpoint,
            "storeRegion": REGION,
            "storeAccessKey": self.access_key,
            "storeSecretKey": self.secret_key,
        }

    def set_variables(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """The environment variables from which clients take the server's address and key."""
        variables = {"ACCESS_KEY_ID": self.access_key, "SECRET_ACCESS_KEY": self.secret_key, "REGION": REGION}
        for name, value in {**variables, "ENDPOINT_URL": self.endpoint}.items():
            monkeypatch.setenv(f"AWS_{name}", value)
