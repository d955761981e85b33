"""`MetadataObserver`: keeps a copy of a cluster's metadata log up to date, one step after the other.

A step asks the active controller for what follows the copy, and takes what is committed:

    records      those below the high watermark are checked and appended
    a snapshot   the controllers have no records from there on: it is fetched in pieces, and the log begins at its end
    diverging    the copy has records that the controllers have not: they are cut off

Committed records never change while a majority of the controllers keep their disks; after a recovery from less, they
can, and then the copy follows. When much has come since the last snapshot, the controllers' newest one is fetched,
and what it contains is removed, so the copy stays small.

A kill at any point loses nothing: the next process continues where the files end.

Source of the rules: org.apache.kafka.raft.KafkaRaftClient (handleFetchResponse, handleFetchSnapshotResponse), KIP-595,
KIP-630.

`observing` does this in a thread, as long as a block runs. A disk that is full or fails, and controllers that do not
answer, are reported and tried again; after an error of the disk the copy is opened again, which brings it to what is on
disk.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from pyspark_kafkalog.errors import DiskFormatError, LeaderUnavailableError
from pyspark_kafkalog.protocol.client_settings import ClientSettings
from pyspark_kafkalog.record.header import Buffer
from pyspark_kafkalog.record.scan import scan_batches, verify_crcs
from pyspark_kafkalog.replication.cluster.connections import OpenClient
from pyspark_kafkalog.replication.metadata.controllers import ActiveController, SnapshotName
from pyspark_kafkalog.replication.metadata.log_copy import SEGMENT_BYTES, MetadataLogCopy
from pyspark_kafkalog.storage.filesystem import LOCAL, FileSystem
from pyspark_kafkalog.threads import start
from pyspark_kafkalog.units import MIB

_LOG: Final = logging.getLogger(__name__)

#: Kafka's own metadata.log.max.record.bytes.between.snapshots.
_BYTES_BETWEEN_SNAPSHOTS: Final = 20 * MIB
_WAIT_MS: Final = 500
_RECORDS: Final = "<FETCH response of __cluster_metadata>"
#: Between two looks at records that are not committed yet.
_UNCOMMITTED_PAUSE_S: Final = 0.05
_RETRY_S: Final = 1.0
#: How long a step looks for the leader, so that a request to stop takes effect.
_STEP_MS: Final = 5_000
#: How long an election may take.
_CATCH_UP_S: Final = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservedMetadata:
    """How far the copy is: its log end, and the controllers' high watermark, -1 if unknown; who leads."""

    end_offset: int
    high_watermark: int
    leader_id: int
    leader_epoch: int

    @property
    def is_caught_up(self) -> bool:
        return 0 <= self.high_watermark <= self.end_offset


class MetadataObserver:
    """The copy in the directory `path` of the metadata log behind `controllers` (host:port,host:port)."""

    def __init__(
        self,
        controllers: str,
        path: Path,
        settings: ClientSettings | None = None,
        *,
        bytes_between_snapshots: int = _BYTES_BETWEEN_SNAPSHOTS,
        segment_bytes: int = SEGMENT_BYTES,
        open_client: OpenClient | None = None,
        fs: FileSystem = LOCAL,
        monotonic_s: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """Connects, and opens or creates the copy, whose files have up to `segment_bytes`.

        Raises LeaderUnavailableError, AuthenticationError, InvalidConfigError, LogDirError, OSError.
        """
        settings = settings or ClientSettings()
        asked = replace(settings, default_api_timeout_ms=min(settings.default_api_timeout_ms, _STEP_MS))
        self._controller = ActiveController(
            controllers, asked, open_client=open_client, monotonic_s=monotonic_s, sleep=sleep
        )
        self._monotonic_s = monotonic_s
        self._sleep = sleep
        self._bytes_between_snapshots = bytes_between_snapshots
        self._snapshot_asked_bytes = 0
        self._leader = (-1, -1)
        try:
            self._copy = MetadataLogCopy.open(path, self._controller.cluster_id(), fs=fs, segment_bytes=segment_bytes)
        except BaseException:
            self._controller.close()
            raise

    def close(self) -> None:
        """Release the copy and close the connections."""
        self._controller.close()
        self._copy.close()

    def step(self, *, wait_ms: int = _WAIT_MS) -> ObservedMetadata:
        """Take what the controllers have next; waits up to `wait_ms` for it.

        Raises LeaderUnavailableError, also for records that come damaged; AuthenticationError, OSError.
        """
        copy, controller = self._copy, self._controller
        found = controller.fetch(copy.end_offset, copy.last_epoch, wait_ms=wait_ms)
        self._note_leader()
        if found.snapshot is not None:
            self._take_snapshot(found.snapshot)
        elif found.diverging is not None:
            before = copy.end_offset
            copy.truncate_for(found.diverging)
            _LOG.warning(
                "the controllers have other records than this copy: it was cut from offset %d to %d",
                before,
                copy.end_offset,
            )
        elif len(found.records):
            try:
                self._take_records(found.records, found.high_watermark)
            except DiskFormatError as error:
                raise LeaderUnavailableError(f"records of {controller.name} came damaged: {error}") from error
            self._take_newer_snapshot()
        return ObservedMetadata(
            end_offset=copy.end_offset,
            high_watermark=found.high_watermark,
            leader_id=controller.leader_id,
            leader_epoch=controller.leader_epoch,
        )

    def catch_up(self) -> ObservedMetadata:
        """Steps until the copy has all that was committed. Raises as `step`, of the controllers only if no step gets on
        for a minute."""
        end_offset, since_s = self._copy.end_offset, self._monotonic_s()
        while True:
            try:
                observed = self.step(wait_ms=0)
                if observed.is_caught_up:
                    return observed
                failed = LeaderUnavailableError(f"{self._controller.name} does not know what is committed")
                pause_s = _UNCOMMITTED_PAUSE_S
            except LeaderUnavailableError as error:
                failed, pause_s = error, _RETRY_S
            if self._copy.end_offset != end_offset:
                end_offset, since_s = self._copy.end_offset, self._monotonic_s()
                continue
            if self._monotonic_s() - since_s > _CATCH_UP_S:
                raise failed
            self._sleep(pause_s)

    def run(self, *, is_stopping: Callable[[], bool], report: Callable[[ObservedMetadata | Exception], None]) -> None:
        """Steps until `is_stopping`; reports each, and errors of the controllers, after which it continues.

        Raises as `step`, except LeaderUnavailableError.
        """
        while not is_stopping():
            try:
                report(self.step())
            except LeaderUnavailableError as error:
                report(error)
                self._sleep(_RETRY_S)

    def _note_leader(self) -> None:
        leader = (self._controller.leader_id, self._controller.leader_epoch)
        if leader != self._leader and leader[0] >= 0:
            self._copy.write_leader(*leader)
            self._leader = leader

    def _take_records(self, records: Buffer, high_watermark: int) -> None:
        scan = scan_batches(records, file=_RECORDS)
        committed = scan.batches[: int((scan.batches["last_offset"] < high_watermark).sum())]
        if not len(committed):
            if scan.fault is not None:
                raise scan.fault
            self._sleep(_UNCOMMITTED_PAUSE_S)
            return
        data = memoryview(records)[: int(committed["size_bytes"].sum())]
        verify_crcs(data, committed, data_position=0, file=_RECORDS)
        if int(committed["base_offset"][0]) != self._copy.end_offset:
            raise LeaderUnavailableError(
                f"{self._controller.name} answered FETCH of the metadata log from offset {self._copy.end_offset} with "
                f"records from {int(committed['base_offset'][0])} on"
            )
        self._copy.append(data, committed)

    def _take_newer_snapshot(self) -> None:
        """If much has come since the last snapshot: the newest one of the controllers, where they have removed records.

        The controllers name it in answer to a fetch of the beginning of the log, once they have deleted that.
        """
        grown_bytes = self._copy.bytes_since_snapshot - self._snapshot_asked_bytes
        if grown_bytes < self._bytes_between_snapshots:
            return
        self._snapshot_asked_bytes = self._copy.bytes_since_snapshot
        found = self._controller.fetch(0, 0, wait_ms=0).snapshot
        has = self._copy.snapshot
        if found is not None and found.end_offset <= self._copy.end_offset:
            if has is None or found.end_offset > has.end_offset:
                self._take_snapshot(found)
            self._snapshot_asked_bytes = self._copy.bytes_since_snapshot

    def _take_snapshot(self, name: SnapshotName) -> None:
        copy, leader_id = self._copy, self._controller.leader_id
        position = copy.begin_snapshot(name, leader_id)
        while True:
            piece = self._controller.fetch_snapshot(name, position)
            if piece is None or self._controller.leader_id != leader_id:
                copy.drop_snapshot()  # the next step finds out what there is to fetch, and from whom
                return
            copy.add_to_snapshot(position, piece.data)
            position += len(piece.data)
            if position == piece.size_bytes:
                break
        try:
            copy.finish_snapshot(name)
        except DiskFormatError as error:
            raise LeaderUnavailableError(f"a snapshot of {self._controller.name} came damaged: {error}") from error


@contextmanager
def observing(
    controllers: str,
    path: Path,
    settings: ClientSettings | None = None,
    *,
    report: Callable[[ObservedMetadata | Exception], None],
) -> Iterator[None]:
    """Keep the copy in the directory `path` up to date while the block runs; `report` is called in another thread.

    Raises what `MetadataObserver` raises if the copy cannot be begun.
    """
    first = MetadataObserver(controllers, path, settings)
    is_ending = threading.Event()

    def observe() -> None:
        observer: MetadataObserver | None = first
        while not is_ending.is_set():
            try:
                if observer is None:
                    observer = MetadataObserver(controllers, path, settings)
                observer.run(is_stopping=is_ending.is_set, report=report)
            except OSError as error:  # among them those of the network
                report(error)
                if observer is not None:
                    observer.close()
                    observer = None
                is_ending.wait(_RETRY_S)
        if observer is not None:
            observer.close()

    thread = threading.Thread(target=observe, name="kafkalog-metadata", daemon=True)
    start(thread)
    try:
        yield
    finally:
        is_ending.set()
        thread.join()
