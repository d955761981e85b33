"""S3Proxy 4.1.0, a server for S3's protocol with real put-if-absent, for tests.

A JVM on 127.0.0.1 that keeps objects in memory (`transient-nio2`) or in a directory (`filesystem-nio2`), checks
signatures, and accepts one pair of keys that the test has made up. It starts in about two seconds. To count its
requests, or to delay them at will, put an HttpRelay before it (fakes/http_relay.py). `delayed` is cheaper: a second
server for the same objects, which waits before each of its answers.

A listing takes it time for each object of the folder, unlike S3: 12 us of its processor for each. A long test that
makes thousands of commits takes MinIO (store_servers.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from kafka_processes.java_processes import QUICK_START, cache_dir, fetch_jars, java
from kafka_processes.store_process import S3Server

S3_PROXY_VERSION: Final = "4.1.0"
_JAR: Final = f"s3proxy-{S3_PROXY_VERSION}-jar-with-dependencies.jar"
_DEPENDENCIES: Final = f"""\
    <dependency org="org.gaul" name="s3proxy" rev="{S3_PROXY_VERSION}" transitive="false">
      <artifact name="s3proxy" type="jar" ext="jar" m:classifier="jar-with-dependencies"/>
    </dependency>
"""


def s3_proxy_jar() -> Path:
    """The server's jar, fetched on the first call ever (55 MB)."""
    return fetch_jars(cache_dir() / f"s3proxy-{S3_PROXY_VERSION}", _DEPENDENCIES, (_JAR,)) / _JAR


class S3Proxy(S3Server):
    """A server that runs while it is entered. `home` holds its configuration and log, and its objects if on disk.

    java_options: the default starts fast but is slow at checksums, so benchmarks give others.
    """

    def __init__(self, home: Path, *, on_disk: bool = False, java_options: Sequence[str] = QUICK_START) -> None:
        super().__init__(home)
        self._on_disk = on_disk
        self._java_options = java_options
        self._objects = home / "objects"
        self._latency_ms = 0

    def delayed(self, home: Path, latency_ms: int) -> S3Proxy:
        """Another server with the same keys and objects, which are on disk, that waits so long before each answer."""
        other = S3Proxy(home, on_disk=True, java_options=self._java_options)
        other.access_key, other.secret_key = self.access_key, self.secret_key
        other._objects, other._latency_ms = self._objects, latency_ms
        return other

    def command(self) -> list[str]:
        config = self.home / "s3proxy.conf"
        config.write_text(self._properties())
        command = [java(), "-Xms64m", "-Xmx512m", *self._java_options, "-jar", str(s3_proxy_jar())]
        return [*command, "--properties", str(config)]

    def _properties(self) -> str:
        settings = {
            "s3proxy.endpoint": self.endpoint,
            "s3proxy.authorization": "aws-v4",
            "s3proxy.identity": self.access_key,
            "s3proxy.credential": self.secret_key,
            "s3proxy.jetty.max-threads": "64",
            "jclouds.provider": "filesystem-nio2" if self._on_disk else "transient-nio2",
            "jclouds.identity": "unused",
            "jclouds.credential": "unused",
        }
        if self._on_disk:
            self._objects.mkdir(exist_ok=True)
            settings["jclouds.filesystem.basedir"] = str(self._objects)
        if self._latency_ms:
            settings["s3proxy.latency-blobstore.*.latency"] = str(self._latency_ms)
        return "".join(f"{name}={value}\n" for name, value in settings.items())
