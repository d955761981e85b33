"""Three real Kafka nodes as one cluster, each broker and controller in one JVM; see oracle.py.

More than half of the nodes must run, for the quorum of the controllers. A node that is killed is taken for dead after
`broker.session.timeout.ms`; its disk, `Cluster.disk`, stays as it was.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from kafka_processes.clients import consume
from kafka_processes.java_processes import free_port
from kafka_processes.oracle import Broker, KafkaOracleError
from pyspark_kafkalog.storage.names import TopicPartition

_WAIT_SECONDS_MAX = 120
_SETTINGS = {
    "offsets.topic.replication.factor": "3",
    "transaction.state.log.replication.factor": "3",
    "transaction.state.log.min.isr": "1",
    "broker.heartbeat.interval.ms": "500",
    "broker.session.timeout.ms": "3000",
    "replica.high.watermark.checkpoint.interval.ms": "500",
    "replica.lag.time.max.ms": "3000",
    "controller.quorum.bootstrap.servers": "",
    "log.retention.ms": "-1",
}


class Cluster:
    """The nodes 1 to 3 in folders of `home`."""

    def __init__(self, home: Path, settings: Mapping[str, str] | None = None) -> None:
        ports = {node: free_port() for node in (1, 2, 3)}
        voters = ",".join(f"{node}@127.0.0.1:{port}" for node, port in ports.items())
        self.nodes = {
            node: Broker(
                home / f"node-{node}",
                settings={**_SETTINGS, "node.id": str(node), "controller.quorum.voters": voters, **(settings or {})},
                controller_port=port,
                format_options=(),
            )
            for node, port in ports.items()
        }

    def __enter__(self) -> Cluster:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.kill()

    def disk(self, node: int) -> Path:
        """The log.dirs of a node."""
        return self.nodes[node].data

    @property
    def bootstrap(self) -> str:
        return ",".join(each.bootstrap for each in self.nodes.values() if each.is_running)

    def start(self, *nodes: int) -> Cluster:
        """Start these nodes, or all, and wait until they answer."""
        chosen = [self.nodes[node] for node in nodes or self.nodes]
        for each in chosen:
            each.launch()
        for each in chosen:
            each.wait_until_ready()
        return self

    def stop(self, *nodes: int) -> None:
        """Stop these nodes, or all, cleanly and at once."""
        chosen = [self.nodes[node] for node in nodes or self.nodes]
        with ThreadPoolExecutor(len(chosen)) as pool:
            list(pool.map(Broker.stop, chosen))

    def kill(self, *nodes: int) -> None:
        """SIGKILL for these nodes, or all."""
        for node in nodes or self.nodes:
            self.nodes[node].kill()

    def create_topic(self, topic: str, assignment: Sequence[Sequence[int]], **configs: str) -> None:
        """Create a topic with these replicas of each partition, the preferred leader first."""
        from confluent_kafka.admin import NewTopic

        settings = {name.replace("_", "."): value for name, value in configs.items()}
        new = NewTopic(topic, len(assignment), replica_assignment=[list(each) for each in assignment], config=settings)
        self.wait_for(lambda: self._is_created(new))
        for partition, replicas in enumerate(assignment):
            self.wait_for(lambda: self.partition(topic, partition).leader == replicas[0])  # noqa: B023

    def _is_created(self, new: Any) -> bool:
        """Whether the topic exists, which this asks for. A node that has just started may drop the connection."""
        from confluent_kafka import KafkaError, KafkaException

        admin = self._admin()  # as long as its requests run
        try:
            admin.create_topics([new])[new.topic].result(30)
        except KafkaException as error:
            return bool(error.args[0].code() == KafkaError.TOPIC_ALREADY_EXISTS)
        return True

    def delete_topic(self, topic: str) -> None:
        admin = self._admin()
        admin.delete_topics([topic])[topic].result(30)
        self.wait_for(lambda: topic not in self._admin().list_topics(timeout=5).topics)

    def topics(self) -> set[str]:
        """The names of all topics."""
        return set(self._admin().list_topics(timeout=5).topics)

    def partition(self, topic: str, partition: int) -> Any:
        """Leader, replicas and in-sync replicas, as the cluster sees them."""
        return self._admin().list_topics(topic, timeout=5).topics[topic].partitions[partition]

    def wait_for_replicas(self, name: TopicPartition) -> None:
        """Wait until the partition has a leader, and all its replicas are in sync."""

        def is_whole() -> bool:
            found = self.partition(name.topic, name.partition)
            return found.leader >= 0 and len(found.isrs) == len(found.replicas)

        self.wait_for(is_whole)

    def wait_for(self, condition: Callable[[], bool]) -> None:
        """Wait until the condition holds."""
        from confluent_kafka import KafkaException

        deadline = time.monotonic() + _WAIT_SECONDS_MAX
        while time.monotonic() < deadline:
            try:
                if condition():
                    return
            except (KafkaException, KeyError):
                pass  # an election is under way
            time.sleep(0.1)
        raise KafkaOracleError("the cluster did not get there in time")

    def produce(self, topic: str, partition: int, values: Sequence[str], *, acks: str = "all", batch: int = 10) -> None:
        """Write records without a key, `batch` of them in a record batch."""
        from confluent_kafka import Producer

        producer = Producer({"bootstrap.servers": self.bootstrap, "acks": acks, "linger.ms": 1000})
        for at in range(0, len(values), batch):
            for value in values[at : at + batch]:
                producer.produce(topic, value.encode(), partition=partition)
            if producer.flush(60):
                raise KafkaOracleError(f"records of {topic}-{partition} were not written")

    def consume(self, topic: str) -> list[tuple[int, int, int, bytes | None]]:
        """Partition, offset, timestamp in ms and value of all records that a consumer gets, in order."""
        found = consume(self.bootstrap, topic, isolation="read_committed")
        return [(each.partition, each.offset, each.timestamp_ms, each.value) for each in found]

    def commit(self, group: str, topic: str, partition: int, offset: int) -> None:
        """Commit an offset of a group."""
        from confluent_kafka import Consumer
        from confluent_kafka import TopicPartition as ClientPartition

        consumer = Consumer({"bootstrap.servers": self.bootstrap, "group.id": group})
        consumer.commit(offsets=[ClientPartition(topic, partition, offset)], asynchronous=False)
        consumer.close()

    def _admin(self) -> Any:
        from confluent_kafka.admin import AdminClient

        return AdminClient({"bootstrap.servers": self.bootstrap, "log_level": 0})
