"""A root follows three real brokers under load while brokers, network and follower fail at random: nothing is lost.

A seeded schedule kills, pauses (SIGSTOP) and restarts brokers, cuts, delays and silences the follower's connections,
deletes records, adds topics, and kills the follower. Never is more than one broker down, for the controllers' quorum.
Then everything heals, the load ends, the follower must catch up, and each log is compared with its leader's byte by
byte, rows and groups with what clients of the cluster see. No record may have been cut, skipped or stopped at.
KAFKALOG_SOAK_SECONDS sets the duration of the faults, 40 by default; KAFKALOG_SEED repeats a schedule.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from kafka_processes.cluster_load import GROUP, LATEST, PAYMENTS, PLAIN, TOPICS, ClusterLoad, create_topics
from kafka_processes.follow_process import FollowProcess
from kafka_processes.relayed_cluster import RelayedCluster
from kafka_processes.replica_checks import (
    check_replica,
    check_same_group,
    check_same_rows,
    ends_of,
    wait_until_caught_up,
)
from tiers import SEED

from pyspark_kafkalog import LogDir
from pyspark_kafkalog.errors import KafkalogError
from pyspark_kafkalog.maintenance.verify.verify import verify

pytestmark = pytest.mark.interop

SECONDS = float(os.environ.get("KAFKALOG_SOAK_SECONDS", "40"))
BETWEEN_FAULTS_SECONDS = (0.5, 4.0)
BROKER_DOWN_SECONDS = (1.0, 10.0)
NETWORK_SECONDS = (0.5, 6.0)
INTERNAL = ("__consumer_offsets", "__transaction_state")
#: So that a connection that has died silently is given up while the test runs.
CLIENT_CONFIG = "request.timeout.ms=6000\ndefault.api.timeout.ms=6000\n"


class Faults:
    """Causes faults, and ends them when they are due."""

    def __init__(self, cluster: RelayedCluster, follow: FollowProcess, rng: random.Random) -> None:
        self.done: Counter[str] = Counter()
        self._cluster = cluster
        self._follow = follow
        self._rng = rng
        self._ends: list[tuple[float, Callable[[], object]]] = []
        self._is_broker_away = False
        self._topics = 0
        self._kinds: list[tuple[str, int, Callable[[], None]]] = [
            ("broker killed", 2, self._kill_broker),
            ("broker stopped", 1, self._stop_broker),
            ("broker paused", 2, self._pause_broker),
            ("network cut", 2, self._cut),
            ("network silent", 2, self._silence),
            ("network delayed", 2, self._delay),
            ("connections reset", 3, self._reset),
            ("follower killed", 4, self._kill_follower),
            ("follower paused", 1, self._pause_follower),
            ("records deleted", 2, self._delete_records),
            ("topic created", 1, self._create_topic),
        ]

    @property
    def topics(self) -> list[str]:
        """The topics that were created."""
        return [f"late-{number}" for number in range(self._topics)]

    def run(self, seconds: float) -> None:
        """Cause faults for so long, then end all of them."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            time.sleep(self._rng.uniform(*BETWEEN_FAULTS_SECONDS))
            self._end(time.monotonic())
            self._follow.check_running()
            ((name, _, cause),) = self._rng.choices(self._kinds, [weight for _, weight, _ in self._kinds])
            before = self.done.total()
            cause()
            if self.done.total() == before:
                self.done[name] += 1
        self._end(float("inf"))
        self._cluster.heal()

    def _end(self, now: float) -> None:
        due = [each for each in self._ends if each[0] <= now]
        self._ends = [each for each in self._ends if each[0] > now]
        for _, end in due:
            end()

    def _for(self, seconds: tuple[float, float], end: Callable[[], object]) -> None:
        self._ends.append((time.monotonic() + self._rng.uniform(*seconds), end))

    def _node(self) -> int:
        return self._rng.choice((1, 2, 3))

    def _take_broker(self) -> int | None:
        """A broker that may fail, if none has failed already."""
        if self._is_broker_away:
            self.done["none, as a broker is away"] += 1
            return None
        self._is_broker_away = True
        return self._node()

    def _kill_broker(self) -> None:
        if (node := self._take_broker()) is not None:
            self._cluster.kill(node)
            self._for(BROKER_DOWN_SECONDS, lambda: self._start_broker(node))

    def _stop_broker(self) -> None:
        if (node := self._take_broker()) is not None:
            self._cluster.stop(node)
            self._for(BROKER_DOWN_SECONDS, lambda: self._start_broker(node))

    def _start_broker(self, node: int) -> None:
        self._cluster.start(node)
        self._is_broker_away = False

    def _pause_broker(self) -> None:
        if (node := self._take_broker()) is not None:
            pid = self._cluster.nodes[node].pid
            os.kill(pid, signal.SIGSTOP)
            self._for(BROKER_DOWN_SECONDS, lambda: self._continue_broker(pid))

    def _continue_broker(self, pid: int) -> None:
        os.kill(pid, signal.SIGCONT)
        self._is_broker_away = False

    def _cut(self) -> None:
        relay = self._cluster.relays[self._node()]
        relay.is_cut = True
        self._for(NETWORK_SECONDS, relay.heal)

    def _silence(self) -> None:
        relay = self._cluster.relays[self._node()]
        relay.is_silent = True
        self._for((2.0, 12.0), relay.heal)

    def _delay(self) -> None:
        relay = self._cluster.relays[self._node()]
        relay.delay_s = self._rng.choice((0.01, 0.1, 0.7))
        self._for(NETWORK_SECONDS, relay.heal)

    def _reset(self) -> None:
        self._cluster.relays[self._node()].reset()

    def _kill_follower(self) -> None:
        self._follow.kill()
        self._follow.start()

    def _pause_follower(self) -> None:
        pid = self._follow.pid
        os.kill(pid, signal.SIGSTOP)
        time.sleep(self._rng.uniform(0.5, 3))
        os.kill(pid, signal.SIGCONT)

    def _delete_records(self) -> None:
        """Delete what the copy surely has: the older half."""
        from confluent_kafka import KafkaException
        from confluent_kafka import TopicPartition as ClientPartition
        from confluent_kafka.admin import AdminClient

        with contextlib.suppress(KafkaException, KafkalogError, TimeoutError):
            number = self._rng.randrange(TOPICS[PAYMENTS])
            of = LogDir.open(self._follow.copy).partition(PAYMENTS, number)
            before = (of.log_start_offset + of.log_end_offset) // 2
            admin = AdminClient({"bootstrap.servers": self._cluster.bootstrap, "log_level": 0})
            for each in admin.delete_records([ClientPartition(PAYMENTS, number, before)]).values():
                each.result(5)

    def _create_topic(self) -> None:
        from confluent_kafka import KafkaException
        from confluent_kafka.admin import AdminClient, NewTopic

        admin = AdminClient({"bootstrap.servers": self._cluster.bootstrap, "log_level": 0})
        name = f"late-{self._topics}"
        with contextlib.suppress(KafkaException, TimeoutError):
            new = NewTopic(name, 2, replica_assignment=[[1, 2, 3], [2, 3, 1]], config={"min.insync.replicas": "2"})
            admin.create_topics([new])[name].result(5)
            self._topics += 1


@pytest.mark.full
def test_copy_is_the_clusters_after_random_faults(tmp_path: Path) -> None:
    rng = random.Random(SEED)
    copy, config = tmp_path / "copy", tmp_path / "client.properties"
    config.write_text(CLIENT_CONFIG)
    settings = {
        "offsets.topic.num.partitions": "2",
        "transaction.state.log.num.partitions": "2",
        "unclean.leader.election.enable": "false",
    }
    with RelayedCluster(tmp_path / "cluster", settings) as cluster:
        create_topics(cluster, min_insync_replicas="2")
        options = ("--command-config", str(config))
        with FollowProcess(cluster.relayed, copy, tmp_path, *options) as follow:
            with ClusterLoad(lambda: cluster.bootstrap, rng, tmp_path / "java.log") as load:
                faults = Faults(cluster, follow, rng)
                faults.run(SECONDS)
                time.sleep(2)
            topics = (*TOPICS, *INTERNAL, *faults.topics)
            print(f"seed {SEED}\nload: {dict(load.done)}\nfaults: {dict(faults.done)}")
            wait_until_caught_up(copy, cluster.bootstrap, topics, follow.check_running)
            assert follow.stop() == 0, follow.said()
        assert check_replica(copy, cluster, topics, compacted={LATEST}) > 100
        check_same_group(copy, cluster.bootstrap, GROUP, ends_of(cluster.bootstrap, [PLAIN, PAYMENTS]))
        for isolation in ("read_committed", "read_uncommitted"):
            assert check_same_rows(copy, cluster.bootstrap, PAYMENTS, isolation) > 10
    said = follow.log.read_text(errors="replace")
    assert not [kind for kind in ("gap ", "cut ", "diverged ", "partition-stopped ", "Traceback") if kind in said], said
    assert verify(LogDir.open(copy).root, are_records_checked=True).is_sound
