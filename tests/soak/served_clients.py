"""Clients of Kafka's protocol by librdkafka, which note what they do and see: one process, one thread for each of them.

    python served_clients.py BOOTSTRAP NAME HISTORY CONTROL SEED

`ServedClients.java` is the same with Kafka's Java clients. NAME is new for each process; transactional ids and groups
are not. The lines of HISTORY are those of simulations/history.py, and `error`, `finished`, `broken`. When
CONTROL/stop-writing exists nobody sends any more; CONTROL/stop ends the process.

    producer        idempotent, to topic `plain`, by key to `compacted`, and to `aging`, whose beginning is deleted
    transactional   transactions over `tx` and `plain`: committed, aborted, slow, left open and fenced by a successor
    classic, next   members of two groups, by the classic protocol and by KIP-848's, that commit what they have noted
    cooperative     a member of a classic group that keeps what it need not give up (CooperativeStickyAssignor)
    copier          a member of a third group: copies `tx` to `copied` with its offsets in the transaction
"""

from __future__ import annotations

import json
import logging
import os
import random
import sys
import threading
import time
from collections.abc import Callable
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import Any

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition

PARTITIONS = {"plain": 3, "tx": 3, "compacted": 1, "copied": 3, "aging": 1}
KEYS = 7
SESSION_TIMEOUT_MS = 6_000
SUBSCRIPTIONS = {
    "classic": ("plain", "tx", "compacted"),
    "cooperative": ("plain", "copied"),
    "next": ("plain", "tx", "copied"),
}
ISOLATION = {"classic": "read_uncommitted", "cooperative": "read_committed", "next": "read_committed"}
PROTOCOLS = {
    "classic": {"session_timeout_ms": SESSION_TIMEOUT_MS},
    "cooperative": {"session_timeout_ms": SESSION_TIMEOUT_MS, "partition_assignment_strategy": "cooperative-sticky"},
    "next": {"group_protocol": "consumer"},
}
TRANSACTION_TIMEOUT_MS = 10_000
_RECORDS_A_POLL = 200
_UNSENT_MAX = 200
#: How long a call may take when servers are paused; then the client is restarted.
_CALL_SECONDS_MAX = 45


class Notes:
    """The history file. A line is written by one call, which a kill does not tear."""

    def __init__(self, file: Path) -> None:
        self._file = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def add(self, op: str, **fields: object) -> None:
        os.write(self._file, json.dumps({"op": op, **fields}).encode() + b"\n")


class Process:
    """What the clients of the process share."""

    def __init__(self, bootstrap: str, name: str, history: Path, control: Path, seed: str) -> None:
        self.bootstrap, self.name, self._control, self._seed = bootstrap, name, control, seed
        self.notes = Notes(history)
        self.trace = _trace(control.parent / "logs" / f"{name}.trace")

    def has(self, word: str) -> bool:
        return (self._control / word).exists()

    def random(self, role: str) -> random.Random:
        return random.Random(f"{self._seed} {role}")

    def settings(self, **settings: object) -> dict[str, object]:
        fixed = {"bootstrap.servers": self.bootstrap, "log_level": 0, "reconnect.backoff.max.ms": 1000}
        return {**fixed, **{name.replace("_", "."): value for name, value in settings.items()}}


def _trace(file: Path) -> logging.Logger:
    """What librdkafka's members of groups decide, the latest 16 MB of it."""
    handler = RotatingFileHandler(file, maxBytes=8 << 20, backupCount=1, delay=True)
    handler.setFormatter(logging.Formatter("%(asctime)s %(message)s"))
    logger = logging.getLogger("librdkafka")
    logger.addHandler(handler)
    logger.setLevel(logging.DEBUG)
    logger.propagate = False
    return logger


class Sender:
    """Sends values of one client, noting each."""

    def __init__(self, process: Process, client: str) -> None:
        self.client = client
        self._notes = process.notes
        self._count = 0

    def send(
        self,
        producer: Producer,
        topic: str,
        partition: int,
        *,
        key: str | None = None,
        transaction: str | None = None,
        source: str | None = None,
    ) -> None:
        value = f"{self.client}#{self._count}"
        self._count += 1
        fields = {"topic": topic, "partition": partition, "key": key, "value": value}
        self._notes.add("send", client=self.client, txn=transaction, source=source, **fields)
        producer.produce(topic, value.encode(), key, partition, on_delivery=self._note_delivery)

    def _note_delivery(self, error: object, message: Message) -> None:
        value = (message.value() or b"").decode()
        if error is None:
            offset = message.offset()
            self._notes.add("sent", value=value, offset=-1 if offset is None else max(offset, -1))
        else:
            self._notes.add("error", client=self.client, error=f"{value}: {error}")


def produce(process: Process, at: int) -> None:
    """Idempotent producers, one after the other; a new one only after a fatal error."""
    sender = Sender(process, f"{process.name}.producer{at}")
    drawn = process.random("producer")
    producer = Producer(process.settings(enable_idempotence=True, linger_ms=2))
    while not process.has("stop-writing"):
        if len(producer) < _UNSENT_MAX:
            for _ in range(drawn.randrange(1, 6)):
                sender.send(producer, "plain", drawn.randrange(PARTITIONS["plain"]))
            sender.send(producer, "compacted", 0, key=f"k{drawn.randrange(KEYS)}")
            sender.send(producer, "aging", 0)
        producer.poll(0.05)
    if producer.flush(_CALL_SECONDS_MAX):
        raise TimeoutError("records could not be sent")


class Transactions:
    """One transactional producer at a time, and how its transactions end."""

    def __init__(self, process: Process, role: str, transactional_id: str) -> None:
        self.process, self.client = process, f"{process.name}.{role}"
        self._notes = process.notes
        self._id = transactional_id
        self._count = 0
        self.producer = self.initialized()

    def initialized(self) -> Producer:
        settings = self.process.settings(
            transactional_id=self._id, transaction_timeout_ms=TRANSACTION_TIMEOUT_MS, linger_ms=2
        )
        producer = Producer(settings)
        producer.init_transactions(_CALL_SECONDS_MAX)
        return producer

    def begin(self) -> str:
        self._count += 1
        self.producer.begin_transaction()
        return f"{self.client}/{self._count}"

    def commit(self, producer: Producer, name: str) -> bool:
        """Commit: True; or abort where the error asks for that. Raises KafkaException if the producer is done for."""
        self._notes.add("commit", txn=name, t=time.monotonic_ns())
        deadline = time.monotonic() + _CALL_SECONDS_MAX
        while True:
            try:
                producer.commit_transaction(10)
                self._notes.add("ended", txn=name, committed=True)
                return True
            except KafkaException as failure:
                error = failure.args[0]
                if error.txn_requires_abort():
                    self.abort(producer, name)
                    return False
                if not error.retriable() or time.monotonic() > deadline:
                    raise

    def abort(self, producer: Producer, name: str) -> None:
        producer.abort_transaction(_CALL_SECONDS_MAX)
        self._notes.add("ended", txn=name, committed=False)


def transact(process: Process, at: int) -> None:
    drawn = process.random("transactional")
    transactions = Transactions(process, f"transactional{at}", "librdkafka")
    sender = Sender(process, transactions.client)
    while not process.has("stop-writing"):
        producer = transactions.producer
        name = transactions.begin()
        for _ in range(drawn.randrange(1, 9)):
            topic = drawn.choice(("tx", "tx", "plain"))
            sender.send(producer, topic, drawn.randrange(PARTITIONS[topic]), transaction=name)
        choice = drawn.random()
        if choice < 0.1:
            producer.flush(_CALL_SECONDS_MAX)
            transactions.producer = transactions.initialized()  # aborts what is open
            _commit_as_zombie(transactions, producer, name)
            continue
        if choice < 0.2:
            time.sleep(drawn.uniform(0, 2))
        if choice < 0.4:
            transactions.abort(producer, name)
        else:
            transactions.commit(producer, name)
        time.sleep(drawn.uniform(0, 0.1))


def _commit_as_zombie(transactions: Transactions, producer: Producer, name: str) -> None:
    try:
        transactions.commit(producer, name)
    except KafkaException as failure:
        if failure.args[0].fatal():
            transactions.process.notes.add("ended", txn=name, committed=False)


class Member:
    """A consumer of a group that notes what it polls before it does anything with it."""

    def __init__(self, process: Process, group: str, role: str, isolation: str, **settings: object) -> None:
        self.client = f"{process.name}.{role}"
        self._notes, self._group, self._isolation = process.notes, group, isolation
        self._taken: list[Message] = []
        #: Partitions that are kept when others change are not polled again: a commit that failed is tried again.
        self.is_uncommitted = False
        fixed = {"enable.auto.commit": False, "auto.offset.reset": "earliest"}
        settings = process.settings(group_id=group, isolation_level=isolation, check_crcs=True, **settings)
        self.consumer = Consumer({**fixed, **settings, "debug": "cgrp", "log_level": 7}, logger=process.trace)

    def subscribe(self, *topics: str) -> None:
        self.consumer.subscribe(
            list(topics), on_assign=self._note_change, on_revoke=self._note_change, on_lost=self._note_change
        )

    def _note_change(self, _consumer: Consumer, partitions: list[TopicPartition]) -> None:
        self._note_poll(None)
        self._taken.clear()  # whoever has these partitions now begins at what was committed
        self.note_reset(partitions)

    def note_reset(self, partitions: list[TopicPartition]) -> None:
        self._notes.add("reset", client=self.client, partitions=[[each.topic, each.partition] for each in partitions])

    def _note_poll(self, transaction: str | None) -> None:
        if self._taken:
            self.is_uncommitted = True
            records = [[m.topic(), m.partition(), m.offset(), (m.value() or b"").decode()] for m in self._taken]
            fields = {"client": self.client, "group": self._group, "isolation": self._isolation, "txn": transaction}
            self._notes.add("poll", **fields, t=time.monotonic_ns(), records=records)

    def poll(self, transaction: Callable[[], str] | None = None) -> tuple[list[Message], str | None]:
        """What comes within a second, and the transaction that was begun for it."""
        self._taken = []
        message = self.consumer.poll(1)
        while message is not None and len(self._taken) < _RECORDS_A_POLL:
            if message.error() is None:
                self._taken.append(message)
            message = self.consumer.poll(0)
        if message is not None and message.error() is None:
            self._taken.append(message)
        taken = self._taken
        name = transaction() if taken and transaction is not None else None
        self._note_poll(name)
        self._taken = []
        return taken, name


def consume(process: Process, group: str, at: int) -> None:
    member = Member(process, group, f"{group}{at}", ISOLATION[group], **PROTOCOLS[group])
    member.subscribe(*SUBSCRIPTIONS[group])
    try:
        while not process.has("stop"):
            member.poll()
            if member.is_uncommitted:
                try:
                    member.consumer.commit(asynchronous=False)
                    member.is_uncommitted = False
                except KafkaException as failure:
                    process.notes.add("error", client=member.client, error=str(failure))
                    if failure.args[0].code() == KafkaError._NO_OFFSET:
                        member.is_uncommitted = False
    finally:
        member.consumer.close()


def copy(process: Process, at: int) -> None:
    transactions = Transactions(process, f"copier{at}", "librdkafka-copier")
    sender = Sender(process, transactions.client)
    member = Member(process, "copiers", f"copier{at}", "read_committed", session_timeout_ms=SESSION_TIMEOUT_MS)
    member.subscribe("tx")
    try:
        while not process.has("stop"):
            taken, name = member.poll(transactions.begin)
            if name is None:
                continue
            try:
                if not _copy(member, transactions, sender, taken, name):
                    _go_to_committed(member)
            except KafkaException as failure:
                error = failure.args[0]
                process.notes.add("error", client=member.client, error=str(failure))
                if not error.txn_requires_abort():
                    raise
                transactions.abort(transactions.producer, name)
                _go_to_committed(member)
    finally:
        member.consumer.close()


def _copy(member: Member, transactions: Transactions, sender: Sender, taken: list[Message], name: str) -> bool:
    """Whether the copies and the offsets were committed."""
    producer = transactions.producer
    positions: dict[tuple[str, int], int] = {}
    for message in taken:
        topic, partition, offset = message.topic(), message.partition(), message.offset()
        value = (message.value() or b"").decode()
        assert topic is not None
        assert partition is not None
        assert offset is not None
        positions[topic, partition] = offset + 1
        sender.send(producer, "copied", partition, transaction=name, source=value)
    offsets = [TopicPartition(topic, partition, offset) for (topic, partition), offset in positions.items()]
    producer.send_offsets_to_transaction(offsets, member.consumer.consumer_group_metadata(), _CALL_SECONDS_MAX)
    return transactions.commit(producer, name)


def _go_to_committed(member: Member) -> None:
    """What was polled and not committed is polled again."""
    committed = member.consumer.committed(member.consumer.assignment(), timeout=_CALL_SECONDS_MAX)
    for each in committed:
        offset = each.offset if each.offset >= 0 else OFFSET_BEGINNING
        member.consumer.seek(TopicPartition(each.topic, each.partition, offset))
    member.note_reset(committed)


def run_again(process: Process, role: str, session: Callable[[int], Any], until: str) -> None:
    """Keep a client of this role until the end: one that has failed has a successor."""
    at = 0
    while True:
        try:
            session(at)
            break
        except (KafkaException, TimeoutError, SystemError) as failure:
            # confluent_kafka calls back about purged records while its own error is set: a SystemError.
            process.notes.add("error", client=f"{process.name}.{role}{at}", error=str(failure))
            if process.has(until):
                break
            time.sleep(0.2)
        except BaseException as failure:
            process.notes.add("broken", client=f"{process.name}.{role}{at}", error=repr(failure))
            raise
        at += 1
    process.notes.add("finished", client=f"{process.name}.{role}{at}", role=role)


def main(bootstrap: str, name: str, history: str, control: str, seed: str) -> None:
    process = Process(bootstrap, name, Path(history), Path(control), seed)
    sessions: dict[str, tuple[Callable[[int], None], str]] = {
        "producer": (lambda at: produce(process, at), "stop-writing"),
        "transactional": (lambda at: transact(process, at), "stop-writing"),
        "classic": (lambda at: consume(process, "classic", at), "stop"),
        "cooperative": (lambda at: consume(process, "cooperative", at), "stop"),
        "next": (lambda at: consume(process, "next", at), "stop"),
        "copier": (lambda at: copy(process, at), "stop"),
    }
    threads = [
        threading.Thread(target=run_again, args=(process, role, session, until))
        for role, (session, until) in sessions.items()
    ]
    for each in threads:
        each.start()
    for each in threads:
        each.join()


if __name__ == "__main__":
    main(*sys.argv[1:])
