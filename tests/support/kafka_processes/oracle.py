"""Real Apache Kafka to hold this package against: its jars, its stock tools and a one-node broker.

`KAFKA_VERSION` is the version of all tests that name no other: 4.3.1, or that of the environment variable
KAFKALOG_KAFKA_VERSION (4.1.0 to 4.4.0 were tried). Expectations that depend on the version compare `since` of what the
package knows with it. Tools are named by their class in the newest version; `_CLASSES_BEFORE` has the older names.

Jars and processes are those of java_processes.py. A broker is a KRaft node with broker and controller in one JVM; it
listens on 127.0.0.1 only, and dies with the process that started it. The first broker that is stopped leaves the
classes that it had loaded beside the jars, as an archive for the JVMs after it, which start in little more than half
the time; another version of Java passes over it.

A KRaft broker keeps only the partitions that its own metadata log knows: an unknown folder is renamed to `*-stray`. So
`Broker.mount` creates the topics first, stops, swaps the files inside their folders, and starts again.
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import shutil
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from patience import wait_until

from kafka_processes.java_processes import (
    QUICK_START,
    JavaProcessError,
    accepts,
    cache_dir,
    fetch_jars,
    free_port,
    java,
    start_server,
)
from pyspark_kafkalog.log_dir import LogDir
from pyspark_kafkalog.version import KafkaVersion

KAFKA_VERSION: Final = KafkaVersion.parse(os.environ.get("KAFKALOG_KAFKA_VERSION") or "4.3.1")
#: The oldest version that brokers and tools of this module are run at, by a sample of the tests.
OLDEST_VERSION: Final = KafkaVersion(4, 1, 0)
#: The version of which the package has the schemas of requests and of metadata records.
SCHEMAS_VERSION: Final = KafkaVersion(4, 4, 0)
CONFIG_COMMAND: Final = "org.apache.kafka.tools.ConfigCommand"
DUMP_LOG: Final = "org.apache.kafka.tools.DumpLogSegments"

#: The last version whose kafka-storage has a test jar, with LocalTieredStorage; later brokers load this one's.
_LAST_TIERED_JAR: Final = KafkaVersion(4, 3, 1)
#: The log4j that Kafka brings from a version on: its binding to slf4j is not among Kafka's own jars.
_LOG4J_VERSIONS: Final = {KafkaVersion(4, 1): "2.24.3", KafkaVersion(4, 3): "2.25.4", KafkaVersion(4, 4): "2.25.5"}
#: Tools by their present class: the version that moved them, and their class before.
_CLASSES_BEFORE: Final = {
    DUMP_LOG: (KafkaVersion(4, 3), "kafka.tools.DumpLogSegments"),
    CONFIG_COMMAND: (KafkaVersion(4, 4), "kafka.admin.ConfigCommand"),
}

_SCRIPTS: Final = {
    "kafka-acls.sh": "org.apache.kafka.tools.AclCommand",
    "kafka-configs.sh": CONFIG_COMMAND,
    "kafka-consumer-groups.sh": "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand",
    "kafka-get-offsets.sh": "org.apache.kafka.tools.GetOffsetShell",
    "kafka-topics.sh": "org.apache.kafka.tools.TopicCommand",
    "kafka-transactions.sh": "org.apache.kafka.tools.TransactionsCommand",
}
_START_SECONDS_MAX: Final = 90
_STOP_SECONDS_MAX: Final = 60
_TOOL_SECONDS_MAX: Final = 120
_CHECKPOINTS: Final = (
    "replication-offset-checkpoint",
    "recovery-point-offset-checkpoint",
    "log-start-offset-checkpoint",
    "cleaner-offset-checkpoint",
)

_LOG_STARTS: Final = "log-start-offset-checkpoint"
_CLEANED: Final = "cleaner-offset-checkpoint"

_FALSE_GAP: Final = re.compile(r"^  -1 is followed by \d+\n", re.MULTILINE)
_HEADING_ALONE: Final = re.compile(r"^Non-consecutive offsets in .*\n(?!  )", re.MULTILINE)

_DEPENDENCIES: Final = """\
    <dependency org="org.apache.kafka" name="kafka_2.13" rev="{kafka}" conf="*->default"/>
    <dependency org="org.apache.kafka" name="kafka-tools" rev="{kafka}" conf="*->default"/>
    <dependency org="org.apache.logging.log4j" name="log4j-slf4j-impl" rev="{log4j}" conf="*->default"/>
"""

_TIERED_DEPENDENCIES: Final = """\
    <dependency org="org.apache.kafka" name="kafka-storage" rev="{kafka}" transitive="false">
      <artifact name="kafka-storage" type="jar" ext="jar" m:classifier="test"/>
    </dependency>
"""

_LOG4J_FILE: Final = """<Configuration status="ERROR">
  <Appenders>
    <Console name="err" target="SYSTEM_ERR"><PatternLayout pattern="[%d] %p %m (%c)%n"/></Console>
  </Appenders>
  <Loggers><Root level="${sys:kafkalog.level:-ERROR}"><AppenderRef ref="err"/></Root></Loggers>
</Configuration>
"""


class KafkaOracleError(JavaProcessError):
    """Kafka could not be started or stopped; the message ends with what it said."""


def _kafka_home(version: KafkaVersion) -> Path:
    return cache_dir() / f"kafka-{version}"


def kafka_lib(version: KafkaVersion = KAFKA_VERSION) -> Path:
    """The folder with Kafka's jars, resolved on the first call ever (about a minute, 55 MB)."""
    wanted = (f"kafka_2.13-{version}.jar", f"kafka-tools-{version}.jar")
    log4j = _LOG4J_VERSIONS[max(since for since in _LOG4J_VERSIONS if since <= version)]
    lib = fetch_jars(_kafka_home(version), _DEPENDENCIES.format(kafka=version, log4j=log4j), wanted)
    log4j_file = lib.parent / "log4j2.xml"
    if not log4j_file.is_file() or log4j_file.read_text() != _LOG4J_FILE:
        unfinished = log4j_file.with_suffix(f".{os.getpid()}")
        unfinished.write_text(_LOG4J_FILE)
        unfinished.rename(log4j_file)
    return lib


def tiering(tier: Path) -> dict[str, str]:
    """Settings of a broker that tiers into the directory by Kafka's LocalTieredStorage, all of it every half second."""
    version = min(KAFKA_VERSION, _LAST_TIERED_JAR)
    jar = f"kafka-storage-{version}-test.jar"
    lib = fetch_jars(cache_dir() / f"kafka-storage-test-{version}", _TIERED_DEPENDENCIES.format(kafka=version), (jar,))
    tier.mkdir(parents=True, exist_ok=True)
    return {
        "remote.log.storage.system.enable": "true",
        "remote.log.storage.manager.class.name": "org.apache.kafka.server.log.remote.storage.LocalTieredStorage",
        "remote.log.storage.manager.class.path": str(lib / jar),
        "rsm.config.dir": str(tier),
        "remote.log.metadata.manager.listener.name": "PLAINTEXT",
        "rlmm.config.remote.log.metadata.topic.replication.factor": "1",
        "rlmm.config.remote.log.metadata.topic.num.partitions": "3",
        "remote.log.manager.task.interval.ms": "500",
        "log.retention.check.interval.ms": "500",
        "log.initial.task.delay.ms": "200",
        "log.flush.start.offset.checkpoint.interval.ms": "500",
        "replica.high.watermark.checkpoint.interval.ms": "500",
    }


def _class_archive(version: KafkaVersion) -> Path:
    return _kafka_home(version) / "classes.jsa"


def java_command(
    main_class: str,
    *args: str,
    options: Sequence[str] = QUICK_START,
    more_jars: Path | None = None,
    version: KafkaVersion = KAFKA_VERSION,
) -> list[str]:
    """What runs a class of Kafka's jars, or of the folder `more_jars`. Tools go by their class in the newest Kafka."""
    moved_in, class_before = _CLASSES_BEFORE.get(main_class, (version, main_class))
    if version < moved_in:
        main_class = class_before
    lib = kafka_lib(version)
    class_path = f"{lib}/*" if more_jars is None else f"{lib}/*{os.pathsep}{more_jars}/*"
    log4j = f"-Dlog4j2.configurationFile={lib.parent / 'log4j2.xml'}"
    if _class_archive(version).is_file():
        options = (*options, f"-XX:SharedArchiveFile={_class_archive(version)}")
    return [java(), *options, log4j, "-cp", class_path, main_class, *args]


def run_tool(
    main_class: str, *args: str | Path, stdin: str = "", version: KafkaVersion = KAFKA_VERSION
) -> subprocess.CompletedProcess[str]:
    """Run one of Kafka's command line tools to its end; its output is text, U+FFFD for what is no UTF-8."""
    command = java_command(main_class, *map(str, args), version=version)
    environment = {**os.environ, "LC_ALL": "C.UTF-8"}
    return subprocess.run(
        command,
        input=stdin,
        capture_output=True,
        encoding="utf-8",
        errors="replace",
        check=False,
        timeout=_TOOL_SECONDS_MAX,
        env=environment,
    )


def write_tool_scripts(directory: Path) -> None:
    """Scripts with the names of Kafka's bin/*.sh for the tools that guides in the documentation name."""
    directory.mkdir(parents=True, exist_ok=True)
    for name, main_class in _SCRIPTS.items():
        script = directory / name
        script.write_text(f'#!/bin/sh\nexec {shlex.join(java_command(main_class))} "$@"\n')
        script.chmod(0o755)


def dump_log(
    files: Sequence[Path], *options: str, version: KafkaVersion = KAFKA_VERSION
) -> subprocess.CompletedProcess[str]:
    """Kafka's DumpLogSegments over `files`, in one JVM.

    Since 4.3 it takes -1 for the offset before the first record of a file, and tells of a gap if that record has
    another offset than 0. Such lines are left out of stderr.
    """
    done = run_tool(DUMP_LOG, "--files", ",".join(map(str, files)), *options, version=version)
    done.stderr = _HEADING_ALONE.sub("", _FALSE_GAP.sub("", done.stderr))
    return done


@dataclass
class Broker:
    """One Kafka node. `home` holds server.properties, server.log and `data`, its log.dirs.

    `controller_port` 0: a free one at each start. `more_listeners`: further names with their ports; what they speak is
    among the `settings`. `advertised_ports`: where clients are told to find one of them, if that is elsewhere.
    """

    home: Path
    settings: Mapping[str, str] = field(default_factory=dict)
    java_options: Sequence[str] = ("-Xms64m", "-Xmx512m", *QUICK_START)
    controller_port: int = 0
    format_options: Sequence[str] = ("--standalone",)
    more_listeners: Mapping[str, int] = field(default_factory=dict)
    advertised_ports: Mapping[str, int] = field(default_factory=dict)
    version: KafkaVersion = KAFKA_VERSION
    _process: subprocess.Popen[bytes] | None = field(default=None, init=False)
    _port: int = field(default=0, init=False)

    @property
    def data(self) -> Path:
        return self.home / "data"

    @property
    def bootstrap(self) -> str:
        return f"127.0.0.1:{self._port}"

    @property
    def _own_class_archive(self) -> Path:
        """What this process writes when it ends; its port tells it from those of other brokers."""
        return _class_archive(self.version).with_suffix(f".{self._port}")

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        """The process of the JVM, which has been started."""
        assert self._process is not None
        return self._process.pid

    def __enter__(self) -> Broker:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.kill()

    def start(self) -> Broker:
        """Format `home` if need be, start, and wait until the broker answers. Port numbers are new at each start."""
        self.launch()
        self.wait_until_ready()
        return self

    def launch(self) -> None:
        """Format `home` if need be, and start."""
        if self.is_running:
            return
        self.data.mkdir(parents=True, exist_ok=True)
        self._port = free_port()
        (self.home / "server.properties").write_text(self._properties(self.controller_port or free_port()))
        if not (self.data / "meta.properties").exists():
            self._format()
        properties = str(self.home / "server.properties")
        command = java_command("kafka.Kafka", properties, options=self.java_options, version=self.version)
        command.insert(1, "-Dkafkalog.level=INFO")
        if not _class_archive(self.version).is_file():
            command.insert(1, f"-XX:ArchiveClassesAtExit={self._own_class_archive}")
        with (self.home / "server.log").open("ab") as log:
            self._process = start_server(command, log)

    def stop(self) -> None:
        """Clean shutdown: checkpoints and `.kafka_cleanshutdown` are written."""
        process = self._process
        if process is None or process.poll() is not None:
            return
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(_STOP_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            self.kill()
            raise KafkaOracleError(f"the broker did not stop in {_STOP_SECONDS_MAX} s\n{self._log_tail()}") from None
        if self._own_class_archive.is_file():
            self._own_class_archive.replace(_class_archive(self.version))

    def kill(self) -> None:
        """SIGKILL: the files stay as they are."""
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
            self._process.wait()

    def create_topic(self, topic: str, partitions: int = 1, configs: Mapping[str, str] | None = None) -> None:
        """Create a topic that keeps records of any age, and wait until its folders are there."""
        from confluent_kafka.admin import AdminClient, NewTopic

        settings = {"retention.ms": "-1", "retention.bytes": "-1", **(configs or {})}
        admin = AdminClient({"bootstrap.servers": self.bootstrap})
        admin.create_topics([NewTopic(topic, partitions, 1, config=settings)])[topic].result(30)
        deadline = time.monotonic() + 30
        for partition in range(partitions):
            while not (self.data / f"{topic}-{partition}" / "partition.metadata").exists():
                if time.monotonic() > deadline:
                    raise KafkaOracleError(f"the broker made no folder {topic}-{partition}\n{self._log_tail()}")
                time.sleep(0.05)

    def mount(self, root: Path, topics: Mapping[str, int], configs: Mapping[str, str] | None = None) -> None:
        """Put the partitions of `topics` (name to count) that lie in `root` into this broker, and restart it."""
        self.start()
        for topic, partitions in topics.items():
            self.create_topic(topic, partitions, configs)
        self.stop()
        for topic, partitions in topics.items():
            for partition in range(partitions):
                _swap_files(root / f"{topic}-{partition}", self.data / f"{topic}-{partition}")
        for name in _CHECKPOINTS:
            _drop_topics(self.data / name, set(topics))
        for name in (_LOG_STARTS, _CLEANED):
            _take_topics(root / name, self.data / name, set(topics))
        self.start()

    def _format(self) -> None:
        cluster_id = "kafkalog-tests-cluster"  # 22 characters, as the base64 of a UUID has
        config = self.home / "server.properties"
        arguments = ("format", "-t", cluster_id, "-c", config, *self.format_options)
        done = run_tool("kafka.tools.StorageTool", *arguments, version=self.version)
        if done.returncode:
            raise KafkaOracleError(f"format failed:\n{done.stdout}{done.stderr}")

    def _properties(self, controller_port: int) -> str:
        own = f"PLAINTEXT://{self.bootstrap},CONTROLLER://127.0.0.1:{controller_port}"
        advertised = {**self.more_listeners, **self.advertised_ports}
        settings = {
            "process.roles": "broker,controller",
            "node.id": "1",
            "listeners": ",".join((own, *_listeners(self.more_listeners))),
            "advertised.listeners": ",".join((own, *_listeners(advertised))),
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
            "inter.broker.listener.name": "PLAINTEXT",
            "controller.listener.names": "CONTROLLER",
            "controller.quorum.bootstrap.servers": f"127.0.0.1:{controller_port}",
            "log.dirs": str(self.data),
            "auto.create.topics.enable": "false",
            "num.network.threads": "2",
            "num.io.threads": "4",
            "default.replication.factor": "1",
            "offsets.topic.num.partitions": "1",
            "offsets.topic.replication.factor": "1",
            "transaction.state.log.num.partitions": "1",
            "transaction.state.log.replication.factor": "1",
            "transaction.state.log.min.isr": "1",
            "share.coordinator.state.topic.num.partitions": "1",
            "share.coordinator.state.topic.replication.factor": "1",
            "share.coordinator.state.topic.min.isr": "1",
            "group.initial.rebalance.delay.ms": "0",
            "log.cleaner.dedupe.buffer.size": "8388608",
            **self.settings,
        }
        return "".join(f"{name}={value}\n" for name, value in settings.items())

    def wait_until_ready(self) -> None:
        """Wait until the broker answers. Raises KafkaOracleError if it does not, or dies."""
        from confluent_kafka import KafkaException
        from confluent_kafka.admin import AdminClient

        assert self._process is not None
        deadline = time.monotonic() + _START_SECONDS_MAX
        while time.monotonic() < deadline and self._process.poll() is None:
            if accepts(self._port):
                with contextlib.suppress(KafkaException):
                    if (
                        AdminClient({"bootstrap.servers": self.bootstrap, "log_level": 0})
                        .list_topics(timeout=5)
                        .brokers
                    ):
                        return
            time.sleep(0.1)
        self.kill()
        raise KafkaOracleError(f"the broker did not start in {_START_SECONDS_MAX} s, or died\n{self._log_tail()}")

    def wait_for_checkpoint(self, topic: str) -> None:
        """Wait until the directory says that all records of the topic are below the high watermark."""
        log_dir = LogDir.open(self.data)

        def is_written() -> bool:
            log_dir.refresh()
            return not any(each.offsets_above_high_watermark for each in log_dir.topic(topic).partitions)

        wait_until(is_written, f"the checkpoint of {topic}")

    def _log_tail(self) -> str:
        lines = (self.home / "server.log").read_text(errors="replace").splitlines()
        return "\n".join(lines[-30:])


def _listeners(ports: Mapping[str, int]) -> list[str]:
    return [f"{name}://127.0.0.1:{port}" for name, port in ports.items()]


def _swap_files(source: Path, target: Path) -> None:
    """Give `target` the files of `source`. partition.metadata stays: it holds the topic id that the broker knows."""
    for old in target.iterdir():
        if old.name != "partition.metadata":
            old.unlink()
    for new in source.iterdir():
        if new.is_file() and new.name != "partition.metadata":
            shutil.copyfile(new, target / new.name)


def _drop_topics(checkpoint: Path, topics: set[str]) -> None:
    """Take the lines of `topics` out of an offset checkpoint file (version, count, then `topic partition offset`)."""
    if not checkpoint.exists() or not checkpoint.stat().st_size:
        return
    kept = [line for line in checkpoint.read_text().splitlines()[2:] if line.split(" ")[0] not in topics]
    checkpoint.write_text("\n".join(["0", str(len(kept)), *kept]) + "\n")


def _take_topics(source: Path, checkpoint: Path, topics: set[str]) -> None:
    """Put the lines of `topics` that are in `source`, if there is such a file, into an offset checkpoint file."""
    if not source.exists():
        return
    lines = [line for line in source.read_text().splitlines()[2:] if line.split(" ")[0] in topics]
    kept = checkpoint.read_text().splitlines()[2:] if checkpoint.exists() else []
    checkpoint.write_text("\n".join(["0", str(len(kept) + len(lines)), *kept, *lines]) + "\n")
