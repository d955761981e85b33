"""Two roots of which one follows the other: the follower in a thread, and the comparison of both."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

from patience import PATIENCE_S

from builders.root_places import RootPlace
from pyspark_kafkalog.errors import LogDirError
from pyspark_kafkalog.log_dir import LogDir
from pyspark_kafkalog.metadata.image import MetadataImage
from pyspark_kafkalog.replication.events import Event, EventKind
from pyspark_kafkalog.replication.follower import Follower, FollowSettings
from pyspark_kafkalog.replication.leader import LeaderEndPoint
from pyspark_kafkalog.replication.root_leader import RootLeader
from pyspark_kafkalog.root.native import NativeRoot
from pyspark_kafkalog.security.open import open_or_create_root, open_root
from pyspark_kafkalog.storage.filesystem import FlushMode
from pyspark_kafkalog.storage.names import TopicPartition


@dataclass
class Following:
    """A follower that runs in a thread, and its events."""

    follower: Follower
    events: list[Event] = field(default_factory=list)
    error: BaseException | None = None

    def kinds(self) -> set[EventKind]:
        return {each.kind for each in self.events}

    def of_kind(self, kind: EventKind) -> list[Event]:
        return [each for each in self.events if each.kind is kind]


def selects_all(topic: str) -> bool:
    return not topic.startswith("__")


def make_follower(
    leader: LeaderEndPoint,
    place: RootPlace,
    events: list[Event],
    *,
    may_cut: bool = False,
    is_once: bool = False,
    gives_up_after_s: float = PATIENCE_S,
    flush: FlushMode = "os",
    is_working: Callable[[], bool] = lambda: False,
    root: NativeRoot | None = None,
    empty_for_s: float = PATIENCE_S,
) -> Follower:
    """A follower of `leader` in `place`, or with `root` as it was opened there."""
    settings = FollowSettings(
        topics=".*",
        selects=selects_all,
        may_cut=may_cut,
        is_once=is_once,
        flush=flush,
        refresh_s=0.1,
        gives_up_after_s=gives_up_after_s,
        empty_for_s=empty_for_s,
    )
    root = root or open_or_create_root(place).native()
    return Follower(leader, root, settings, on_event=events.append, is_working=is_working, rng=random.Random(7))


def copy_once(leader_place: RootPlace, place: RootPlace, *, may_cut: bool = False) -> list[Event]:
    """Follow until all is copied that there is now; returns the events."""
    leader = RootLeader(open_root(leader_place))
    events: list[Event] = []
    make_follower(leader, place, events, may_cut=may_cut, is_once=True).run()
    leader.close()
    return events


@contextmanager
def following(
    leader: LeaderEndPoint, place: RootPlace, *, may_cut: bool = False, root: NativeRoot | None = None
) -> Iterator[Following]:
    """A follower that runs during the block, and ends without an error."""
    found = Following(None)  # type: ignore[arg-type]
    found.follower = make_follower(leader, place, found.events, may_cut=may_cut, root=root)

    def run() -> None:
        try:
            found.follower.run()
        except BaseException as error:
            found.error = error

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield found
    finally:
        found.follower.stop()
        thread.join(PATIENCE_S)
        leader.close()
    assert not thread.is_alive()
    if found.error is not None:
        raise found.error


def ends(log_dir: LogDir) -> dict[TopicPartition, int]:
    """The log end of each partition now."""
    log_dir.refresh()
    return {
        TopicPartition(topic, each.partition): each.log_end_offset
        for topic in log_dir.topics()
        for each in log_dir.topic(topic).partitions
    }


def has_all(leader: LogDir, follower: RootPlace) -> bool:
    """Whether the follower has each partition up to the leader's present end."""
    return has_offsets(follower, ends(leader))


def has_offsets(follower: RootPlace, wanted: Mapping[TopicPartition, int]) -> bool:
    """Whether the follower has each partition up to that end."""
    try:
        found = ends(LogDir.open(follower))
    except LogDirError:  # it is just being created
        return False
    return all(found.get(name) == end for name, end in wanted.items())


def batches_of(log_dir: LogDir, name: TopicPartition) -> list[bytes]:
    """The batches of a partition from its log start on."""
    of = log_dir.partition(name.topic, name.partition)
    reader = log_dir.reader(name.topic, name.partition)
    found: list[bytes] = []
    for run in reader.runs(of.log_start_offset, of.high_watermark):
        for batch in run.batches:
            start = int(batch["position"]) - run.position
            found.append(bytes(run.data[start : start + int(batch["size_bytes"])]))
    return found


def image_of(log_dir: LogDir) -> MetadataImage:
    return log_dir.root.native().store.image


def check_equal(leader: RootPlace, follower: RootPlace) -> None:
    """Both roots have the same topics, configurations, batches, log starts, last stable offsets and access control."""
    ours, theirs = LogDir.open(follower), LogDir.open(leader)
    assert set(theirs.topics()) <= set(ours.topics())
    for topic in theirs.topics():
        mine, other = ours.topic(topic), theirs.topic(topic)
        assert mine.topic_id == other.topic_id
        assert dict(mine.configs) == dict(other.configs)
        assert len(mine.partitions) == len(other.partitions)
        for one, two in zip(mine.partitions, other.partitions, strict=True):
            assert one.log_start_offset == two.log_start_offset
            assert one.high_watermark == two.high_watermark
            assert one.last_stable_offset == two.last_stable_offset
            name = TopicPartition(topic, one.partition)
            assert batches_of(ours, name) == batches_of(theirs, name)
    assert set(image_of(ours).acls.values()) == set(image_of(theirs).acls.values())
    assert image_of(ours).client_quotas == image_of(theirs).client_quotas
    assert image_of(ours).group_configs == image_of(theirs).group_configs
