"""Kafka clients that are no dependencies of this project, for tests: Streams, Connect, MirrorMaker 2, other languages.

Each is fetched from its package registry on the first call ever, at the version named here, into the cache of
java_processes.py. The programs are in tests/clients/programs.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from repository import TESTS

from kafka_processes.java_processes import cache_dir, fetch_jars
from kafka_processes.oracle import KAFKA_VERSION
from pyspark_kafkalog.version import KafkaVersion

PROGRAMS: Final = TESTS / "clients" / "programs"
PYTHON_CLIENTS: Final = ("kafka-python==3.0.12", "aiokafka==0.14.0")
#: Their dependencies contradict each other, so each has an environment of its own.
QUIX_STREAMS: Final = "quixstreams==3.28.1"
FLINK: Final = "apache-flink==2.3.0"
_FLINK_CONNECTOR_VERSION: Final = "5.0.0-2.2"
NODE_CLIENT: Final = "kafkajs@2.2.4"
_INSTALL_SECONDS_MAX: Final = 900
_RUN_SECONDS_MAX: Final = 300

#: Later jars of kafka-streams lack the drivers of its system tests.
STREAMS_VERSION: Final = KafkaVersion(4, 1, 0)
#: The drivers of Kafka's system tests are in jars with the classifier `test`, and use a class of kafka-clients' one.
_JARS: Final = (
    "".join(
        f"""\
    <dependency org="org.apache.kafka" name="{name}" rev="{STREAMS_VERSION}" transitive="false">
      <artifact name="{name}" type="jar" ext="jar"/>
      <artifact name="{name}" type="jar" ext="jar" m:classifier="test"/>
    </dependency>
"""
        for name in ("kafka-streams", "kafka-clients")
    )
    + """\
    <dependency org="org.rocksdb" name="rocksdbjni" rev="9.7.3" transitive="false"/>
    <dependency org="org.junit.jupiter" name="junit-jupiter-api" rev="5.13.1" transitive="false"/>
    <dependency org="org.hamcrest" name="hamcrest" rev="3.0" transitive="false"/>
"""
)
_CONNECTORS: Final = f"""\
    <dependency org="org.apache.kafka" name="connect-file" rev="{KAFKA_VERSION}" transitive="false"/>
"""
_MIRROR_MAKER: Final = f"""\
    <dependency org="org.apache.kafka" name="connect-mirror" rev="{KAFKA_VERSION}" conf="*->default"/>
"""


def streams_jars() -> Path:
    """The folder with Kafka Streams and the drivers of its system tests."""
    wanted = (f"kafka-streams-{STREAMS_VERSION}-test.jar", f"kafka-clients-{STREAMS_VERSION}-test.jar")
    return fetch_jars(cache_dir() / f"kafka-streams-{STREAMS_VERSION}", _JARS, wanted)


def file_connectors() -> Path:
    """The folder with Connect's connectors for files, a plugin path."""
    wanted = (f"connect-file-{KAFKA_VERSION}.jar",)
    return fetch_jars(cache_dir() / f"connect-file-{KAFKA_VERSION}", _CONNECTORS, wanted)


def mirror_maker() -> Path:
    """The folder with MirrorMaker 2, and what it needs of Connect."""
    wanted = (f"connect-mirror-{KAFKA_VERSION}.jar",)
    return fetch_jars(cache_dir() / f"kafka-connect-mirror-{KAFKA_VERSION}", _MIRROR_MAKER, wanted)


def flink_connector() -> Path:
    """The jar of Flink's Kafka source and sink for SQL, with the Kafka client that it uses."""
    jar = f"flink-sql-connector-kafka-{_FLINK_CONNECTOR_VERSION}.jar"
    connector = (
        f'    <dependency org="org.apache.flink" name="flink-sql-connector-kafka" rev="{_FLINK_CONNECTOR_VERSION}"'
        ' transitive="false"/>\n'
    )
    return fetch_jars(cache_dir() / f"flink-kafka-{_FLINK_CONNECTOR_VERSION}", connector, (jar,)) / jar


def python_with_clients() -> Path:
    """The Python of an environment with kafka-python and aiokafka."""
    return python_with("clients", *PYTHON_CLIENTS)


def python_with(name: str, *packages: str) -> Path:
    """The Python of the environment `name` of the cache, in which the packages are installed."""
    home = cache_dir() / "python-{}-{}.{}".format(name, *sys.version_info)
    python = home / "bin" / "python"
    if not python.exists():
        _install([sys.executable, "-m", "venv", str(home)])
    _install([str(python), "-m", "pip", "install", "--quiet", *packages])
    return python


def node_modules() -> Path:
    """The folder in which Node finds kafkajs."""
    home = cache_dir() / NODE_CLIENT.replace("@", "-")
    if not (home / "node_modules" / "kafkajs").is_dir():
        home.mkdir(parents=True, exist_ok=True)
        _install([_found("npm"), "install", "--silent", "--no-save", "--prefix", str(home), NODE_CLIENT])
    return home / "node_modules"


def go_program(name: str, into: Path) -> Path:
    """The program of the folder `name`, built."""
    _install([_found("go"), "build", "-o", str(into / name), f"./{name}"], PROGRAMS)
    return into / name


def run_client(command: Sequence[str | Path], stdin: str = "", **variables: str) -> str:
    """What a client prints. Raises AssertionError with all that it said if it fails."""
    done = subprocess.run(
        [str(each) for each in command],
        input=stdin,
        capture_output=True,
        text=True,
        check=False,
        timeout=_RUN_SECONDS_MAX,
        env={**os.environ, **variables},
    )
    assert done.returncode == 0, (
        f"{command[0]} ended with {done.returncode}:\n{done.stdout[-3000:]}{done.stderr[-3000:]}"
    )
    return done.stdout


def _install(command: list[str], directory: Path | None = None) -> None:
    done = subprocess.run(
        command, cwd=directory, capture_output=True, text=True, check=False, timeout=_INSTALL_SECONDS_MAX
    )
    assert done.returncode == 0, f"{command[0]} could not install a client:\n{done.stdout[-2000:]}{done.stderr[-2000:]}"


def _found(name: str) -> str:
    found = shutil.which(name)
    assert found is not None, f"make test-clients needs {name}"
    return found
