"""`Follower`: follows a leader with a root until it is stopped, or until it has caught up.

    begin      describe the leader; the root says that it follows, which ends an earlier follower of the same root
    refresh    every few seconds, and when an answer says that a topic has changed: describe the leader again; create
               topics, add partitions, change configurations; follow what is new
    assign     when leaders may have moved: which source answers for which partition
    compare    where a partition does not fit its leader's: by leader epochs; cut, start elsewhere, or stop it
    end        fetchers end after the fetch that is under way, and what waits is committed

This is the controller's thread, which alone asks the leader for anything but records (fetch_loop.py). A crash at any
point leaves the root as its last commit has it; the next follower resumes there.
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from pyspark_kafkalog.errors import (
    CommitStateUnknownError,
    FollowingEndedError,
    FollowingRootError,
    KafkalogError,
    LeaderUnavailableError,
)
from pyspark_kafkalog.metadata.image import MetadataImage
from pyspark_kafkalog.metadata.invariants import check_follower
from pyspark_kafkalog.metadata.messages.metadata_records import MetadataRecord
from pyspark_kafkalog.replication.events import Event, EventKind
from pyspark_kafkalog.replication.fetch_loop import Fetcher, FollowerCommitter, RateLimit
from pyspark_kafkalog.replication.follower_state import AwaitedCommit, Followed, FollowerState, Phase
from pyspark_kafkalog.replication.leader import LeaderDescription, LeaderEndPoint, LeaderTopic, SelectsTopic
from pyspark_kafkalog.replication.partition_state import (
    Cut,
    EpochSearch,
    Probe,
    Resolution,
    StartOver,
    agreed_end_offset,
    resolve,
    retry_delay_ms,
)
from pyspark_kafkalog.replication.root_leader import LocalLog, LocalLogs
from pyspark_kafkalog.replication.topics_plan import UNANSWERED_EPOCH, TopicsPlan, plan_topics
from pyspark_kafkalog.root.commit.changes import FollowerAppend, FollowerChange, StartAt, Truncation
from pyspark_kafkalog.root.native import NativeRoot, begin_following
from pyspark_kafkalog.storage.filesystem import FlushMode, is_out_of_space
from pyspark_kafkalog.storage.names import INTERNAL_TOPICS, TopicPartition
from pyspark_kafkalog.threads import Workers, start
from pyspark_kafkalog.units import MIB

_BUFFER_BYTES: Final = 64 * MIB
_FILE_COMMIT_INTERVAL_S: Final = 0.005
#: A commit to an object store is a request that costs money.
_OBJECT_COMMIT_INTERVAL_S: Final = 0.1
_REFRESH_S: Final = 5.0
_LOG: Final = logging.getLogger(__name__)
_TURN_S: Final = 0.2
#: After a description that an answer has asked for, the next one waits so long.
_REFRESH_AGAIN_S: Final = 0.25
_PLANS_MAX: Final = 1000
_LOADED_AT_ONCE: Final = 8
_REFUSED: Final = (EventKind.TOPIC_RECREATED, EventKind.TOPIC_REFUSED, EventKind.TOPIC_UNREADABLE)
#: So long a leader without any topic is asked again, if topics are expected of it.
_EMPTY_FOR_S: Final = 10.0
#: With `is_once`: how long nothing may move, and how often a commit may fail.
_GIVES_UP_AFTER_S: Final = 60.0
_GIVES_UP_AFTER_FAILURES: Final = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class FollowSettings:
    """How to follow. `topics` is the regular expression that `selects` was made from.

    `may_cut`: records below this root's high watermark are dropped where the leader has others. `is_once`: end when all
    is copied that the leader had at the beginning. `max_bytes_per_s` None: no bound.
    """

    topics: str
    selects: SelectsTopic
    may_cut: bool = False
    is_once: bool = False
    max_bytes_per_s: int | None = None
    buffer_bytes: int = _BUFFER_BYTES
    flush: FlushMode = "fsync"
    refresh_s: float = _REFRESH_S
    gives_up_after_s: float = _GIVES_UP_AFTER_S
    empty_for_s: float = _EMPTY_FOR_S


class Follower:
    """Follows `leader` with `root`. `run` once; `stop` from any thread or signal handler.

    `is_working` says whether records are on their way that the leader does not answer with yet; then nothing is stuck.
    """

    def __init__(
        self,
        leader: LeaderEndPoint,
        root: NativeRoot,
        settings: FollowSettings,
        *,
        on_event: Callable[[Event], None],
        is_working: Callable[[], bool] = lambda: False,
        monotonic_s: Callable[[], float] = time.monotonic,
        rng: random.Random | None = None,
    ) -> None:
        self._leader = leader
        self._is_working = is_working
        self._root = root
        self._settings = settings
        self._on_event = on_event
        self._monotonic_s = monotonic_s
        self._rng = rng if rng is not None else random.SystemRandom()
        self._logs = LocalLogs(root)
        self.shared = FollowerState(
            buffer_bytes=settings.buffer_bytes,
            commit_interval_s=_FILE_COMMIT_INTERVAL_S if root.directories else _OBJECT_COMMIT_INTERVAL_S,
            monotonic_s=monotonic_s,
            rng=self._rng,
            on_event=on_event,
            is_once=settings.is_once,
        )
        self._rate = RateLimit(settings.max_bytes_per_s, monotonic_s)
        self._fetchers: dict[str, Fetcher] = {}
        self._cluster_id = ""
        self._following_id = ""
        self._had_records = False
        self._is_selection_noted = False
        self._noted: frozenset[Event] = frozenset()
        #: By partition the last loss that was noted, which is tried again until it is committed.
        self._losses: dict[TopicPartition, Event] = {}
        self._refreshed_s = float("-inf")
        self._assigned_s = float("-inf")
        self._failures = 0
        #: Since when the leader names no topics; None while it does.
        self._empty_since_s: float | None = None
        self._is_described = False

    @property
    def cluster_id(self) -> str:
        """The leader's; empty before it was described."""
        return self._cluster_id

    def refused_topics(self) -> list[Event]:
        """Why topics are not followed that the leader has, as of its last description."""
        return sorted((each for each in self._noted if each.kind in _REFUSED), key=lambda each: each.topic)

    def stop(self) -> None:
        """Let `run` end soon, with what was fetched committed."""
        self.shared.end()

    def run(self) -> None:
        """Follow until stopped, or with `is_once` until caught up.

        Raises FollowingRootError if the root follows another leader, FollowingEndedError when it does not follow with
        this follower any more; with `is_once` LeaderUnavailableError, or what prevents commits, after a while.
        """
        description = self._first_description()
        if description is None:
            return
        self._cluster_id = description.cluster_id
        self._check_demotion(description)
        self._following_id = self._begin()
        if not self._following_id:
            return
        following = self._root.store.image.following
        self._had_records = following is not None and following.had_records
        writer = self._root.follower(self._following_id, flush=self._settings.flush, on_kept=self._note_cut)
        committer = FollowerCommitter(
            writer,
            self.shared,
            rng=self._rng,
            gives_up_after=_GIVES_UP_AFTER_FAILURES if self._settings.is_once else None,
            on_event=self._on_event,
        )
        start(committer)
        try:
            self._control(description)
        except BaseException as error:
            self.shared.fail(error)
        finally:
            self.shared.end()
            for each in (*self._fetchers.values(), committer):
                each.join()
            writer.close()
        if self.shared.failure is not None:
            raise self.shared.failure

    def _first_description(self) -> LeaderDescription | None:
        deadline_s = self._monotonic_s() + self._settings.gives_up_after_s
        while not self.shared.is_stopping:
            try:
                return self._describe()
            except LeaderUnavailableError as error:
                if self._settings.is_once and self._monotonic_s() > deadline_s:
                    raise
                self._note_unavailable(error)
                self.shared.pause(retry_delay_ms(self._failures, self._rng) / 1000)
        return None

    def _check_demotion(self, description: LeaderDescription) -> None:
        """Look whether a root that takes writes can follow, before it begins to refuse writes.

        Raises FollowingRootError if a topic of it cannot follow the leader's of that name, and as LocalLogs.load.
        """
        image = self._logs.refresh()
        if image.following is not None:
            return
        plan = self._plan(image, description)
        for event in plan.events:
            if event.kind is EventKind.TOPIC_RECREATED:
                raise FollowingRootError(
                    f"{self._root.path} still takes writes: its topic {event.topic} cannot follow {self._leader.name}: "
                    f"{event.detail}; leave the topic out with --topic, delete it here, or replace it with "
                    "--on-divergence truncate"
                )
        for topic in (image.topics[name] for name in plan.followed if name in image.topics):
            for partition in topic.partitions:
                name = TopicPartition(topic.name, partition.partition)
                self._logs.load(name, topic.topic_id, is_verified=True)

    def _describe(self) -> LeaderDescription:
        """What the leader has now.

        Raises LeaderUnavailableError also for one without topics, for some seconds, if this root has some or `is_once`
        would end at once: a broker that has just started may answer before it knows them from its controller.
        """
        description = self._leader.describe(self._selects)
        if description.has_topics:
            self._empty_since_s = None
            return description
        if self._empty_since_s is None:
            self._empty_since_s = self._monotonic_s()
        are_expected = self._settings.is_once or bool(self._root.store.image.topics)
        if are_expected and self._monotonic_s() - self._empty_since_s < self._settings.empty_for_s:
            raise LeaderUnavailableError(f"{self._leader.name} names no topics: it may have just started")
        return description

    def _begin(self) -> str:
        """Let the root follow the leader, once its disk has room for that; empty if the follower ends before."""
        failures = 0
        while not self.shared.is_stopping:
            try:
                return begin_following(
                    self._root, leader=self._leader.name, cluster_id=self._cluster_id, topics=self._settings.topics
                )
            except (OSError, CommitStateUnknownError) as error:
                failures += 1
                is_passing = isinstance(error, CommitStateUnknownError) or is_out_of_space(error)
                if not is_passing or (self._settings.is_once and failures == _GIVES_UP_AFTER_FAILURES):
                    raise
                if failures == 1:
                    self._on_event(Event(kind=EventKind.COMMIT_ERROR, detail=str(error)))
                self.shared.pause(retry_delay_ms(failures, self._rng) / 1000)
        return ""

    def _selects(self, topic: str) -> bool:
        """The topics asked for, and those in which groups and transactions are kept."""
        return topic in INTERNAL_TOPICS or self._settings.selects(topic)

    def _note_unavailable(self, error: LeaderUnavailableError) -> None:
        self._failures += 1
        if self._failures == 1:
            self._on_event(Event(kind=EventKind.LEADER_UNAVAILABLE, detail=str(error)))

    def _control(self, description: LeaderDescription) -> None:
        """Take turns until the follower ends."""
        self._apply(description)
        progress, moved_s = self._progress(), self._monotonic_s()
        while not self.shared.is_stopping:
            self._take_turn()
            if not self._settings.is_once:
                self.shared.wait(_TURN_S)
                continue
            if self._is_done():
                self._begin_epochs()
                return
            before, progress = progress, self._progress()
            if progress != before:
                moved_s = self._monotonic_s()
            elif self._monotonic_s() - moved_s > self._settings.gives_up_after_s:
                if not self._is_working():
                    raise self._stuck()
                moved_s = self._monotonic_s()
            self.shared.wait(_TURN_S / 10)

    def _take_turn(self) -> None:
        now_s = self._monotonic_s()
        wanted_s = _REFRESH_AGAIN_S if self.shared.questions(Phase.DESCRIBE) else self._settings.refresh_s
        if now_s - self._refreshed_s >= wanted_s or not self._is_described:
            self._refresh()
        are_moved = self.shared.questions(Phase.MOVED)
        if now_s - self._assigned_s >= _REFRESH_AGAIN_S and (self.shared.take_stale_sources() or are_moved):
            self._assign(are_moved)
        for followed in self.shared.questions(Phase.RELOAD):
            self._reload(followed)
        for followed in self.shared.questions(Phase.COMPARE):
            self._compare(followed)

    # With --once

    def _progress(self) -> tuple[int, int]:
        totals = self.shared.totals()
        return totals.copied_bytes, sum(each.has_reached_target for each in self.shared.partitions())

    def _is_done(self) -> bool:
        return self._is_described and all(
            each.has_reached_target or each.phase is Phase.STOPPED for each in self.shared.partitions()
        )

    def _stuck(self) -> LeaderUnavailableError:
        late = [each for each in self.shared.partitions() if not each.has_reached_target]
        names = ", ".join(str(each.name) for each in late[:10])
        why = next((each.last_error for each in late if each.last_error), "no source answers for them")
        return LeaderUnavailableError(
            f"nothing was copied for {self._settings.gives_up_after_s:.0f} s; {len(late)} partitions are behind, such "
            f"as {names}: {why}"
        )

    # Topics

    def _refresh(self) -> None:
        self._refreshed_s = self._monotonic_s()
        try:
            description = self._describe()
        except LeaderUnavailableError as error:
            self._note_unavailable(error)
            return
        if description.cluster_id != self._cluster_id:
            self._note_unavailable(
                LeaderUnavailableError(
                    f"{self._leader.name} is another cluster now: {description.cluster_id}, not {self._cluster_id}"
                )
            )
            return
        self._failures = 0
        self._apply(description)

    def _apply(self, description: LeaderDescription) -> None:
        """Make the root's topics those of the description, and follow their partitions."""
        self._refreshed_s = self._monotonic_s()
        try:
            plan = self._commit_plans(description)
            if plan is None:
                return
            self._follow(plan.followed)
            self._note_selection(plan.followed)
        except (KafkalogError, OSError) as error:
            if isinstance(error, FollowingEndedError) or self._settings.is_once:
                raise
            self._on_event(Event(kind=EventKind.COMMIT_ERROR, detail=f"topics cannot be changed: {error}"))
            return
        self._is_described = True

    def _commit_plans(self, description: LeaderDescription) -> TopicsPlan | None:
        """Commit plans until one is complete, and return it; None if the follower ends."""
        noted: list[Event] = []
        for _ in range(_PLANS_MAX):
            image = self._logs.refresh()
            # Commits find it out too, but a follower of an idle leader makes none.
            check_follower(image, self._following_id)
            plan = self._plan(image, description)
            if plan.records:
                replaced = [each for each in plan.events if each.kind is EventKind.TOPIC_REPLACED]
                if replaced:
                    self._note_new(replaced)
                    self._noted |= frozenset(replaced)
                    self._empty_replaced(image, replaced)

                def records(newest: MetadataImage) -> Sequence[MetadataRecord]:
                    return self._plan(newest, description).records

                if self.shared.request(AwaitedCommit(records=records)) is None:
                    return None
            noted += plan.events
            if plan.is_complete:
                break
        self._note_new(noted)
        self._noted = frozenset(noted)
        self._logs.refresh()
        return plan

    def _note_new(self, events: Sequence[Event]) -> None:
        for event in events:
            if event not in self._noted:
                self._on_event(event)

    def _plan(self, image: MetadataImage, description: LeaderDescription) -> TopicsPlan:
        return plan_topics(image, description, self._selects, may_replace=self._settings.may_cut, rng=self._rng)

    def _empty_replaced(self, image: MetadataImage, replaced: Sequence[Event]) -> None:
        """Cut all records of topics that are about to be replaced, as nothing is dropped without being kept first."""
        changes: list[FollowerChange] = []
        for event in replaced:
            topic = image.topic(event.topic)
            for partition in topic.partitions:
                name = TopicPartition(topic.name, partition.partition)
                self.shared.remove(name)
                state = partition.state
                if state.log_start_offset < state.log_end_offset:
                    changes.append(
                        Truncation(
                            topic_partition=name,
                            topic_id=topic.topic_id,
                            expected_end_offset=state.log_end_offset,
                            end_offset=state.log_start_offset,
                        )
                    )
        for result in self.shared.request(AwaitedCommit(changes)) or () if changes else ():
            if isinstance(result, KafkalogError):
                raise result

    def _note_selection(self, followed: Collection[str]) -> None:
        """Warn once if the topics asked for select none: the name may be mistyped."""
        if not self._is_selection_noted and not any(map(self._settings.selects, followed)):
            _LOG.warning("%s has no topic that --topic %s selects", self._leader.name, self._settings.topics)
        self._is_selection_noted = True

    def _follow(self, topics: Mapping[str, LeaderTopic]) -> None:
        """Follow the partitions of these topics, and no others."""
        wanted = {
            TopicPartition(topic.name, number): (topic.topic_id, epoch)
            for topic in topics.values()
            for number, epoch in enumerate(topic.leader_epochs)
        }
        self._add({name: found for name, found in wanted.items() if self.shared.find(name) is None})
        for name, (topic_id, epoch) in wanted.items():
            self._follow_partition(name, topic_id, epoch)
        for followed in self.shared.partitions():
            if followed.name.topic not in topics and followed.phase is not Phase.STOPPED:
                followed.is_without_topic = True
                self._stop(followed, "its topic is not followed any more")
        self._begin_epochs()

    def _add(self, wanted: Mapping[TopicPartition, tuple[str, int]]) -> None:
        """Follow new partitions. Each of them is looked at, which in an object store takes a request or two."""

        def load(name: TopicPartition) -> LocalLog:
            return self._logs.load(name, wanted[name][0], is_verified=False)

        with Workers(_LOADED_AT_ONCE) as pool:
            for name, loaded in zip(wanted, pool.map(load, wanted), strict=True):
                followed = _followed(loaded, wanted[name][1])
                committed = loaded.committed
                followed.is_new = committed.leader_epoch == UNANSWERED_EPOCH and committed.log_end_offset == 0
                self.shared.add(followed)

    def _follow_partition(self, name: TopicPartition, topic_id: str, leader_epoch: int) -> None:
        followed = self.shared.find(name)
        if followed is not None and followed.state.topic_id != topic_id:
            self.shared.remove(name)
            self._add({name: (topic_id, leader_epoch)})
            followed = None
        if followed is None:
            return
        if leader_epoch > followed.leader_epoch >= 0:
            self._note(EventKind.LEADER_CHANGED, name, f"leader epoch {leader_epoch}, before {followed.leader_epoch}")
            self.shared.note_stale_sources()
        followed.leader_epoch = max(followed.leader_epoch, leader_epoch)
        if followed.phase is Phase.STOPPED and followed.is_without_topic:
            self.shared.restart(followed, _followed(self._logs.load(name, topic_id, is_verified=False), leader_epoch))
        elif followed.phase is Phase.DESCRIBE:
            self.shared.resume(followed, delay_s=_REFRESH_AGAIN_S)

    def _begin_epochs(self) -> None:
        """Let leader epochs begin here too that have no records yet, so that promotion knows of them.

        Only the leader knows whether such an epoch begins at the end of this log: what is not committed there can be of
        an earlier one.
        """
        asked: dict[Followed, tuple[int, int]] = {}
        changes: list[FollowerAppend] = []
        for followed in self.shared.partitions():
            epoch = followed.leader_epoch
            state = followed.state
            is_known = epoch <= followed.committed_epoch or followed.asked == (epoch, state.end_offset)
            if is_known or followed.lag or followed.pending:
                continue
            try:
                end = self._leader.epoch_end(state.position(epoch), epoch)
            except LeaderUnavailableError:
                return
            asked[followed] = epoch, state.end_offset
            if end is not None and (end.epoch, end.end_offset) == (epoch, state.end_offset):
                changes.append(
                    FollowerAppend(
                        topic_partition=followed.name,
                        topic_id=state.topic_id,
                        data=b"",
                        expected_end_offset=state.end_offset,
                        leader_epoch=epoch,
                    )
                )
        if changes:
            # One that is refused has got records meanwhile, and its epoch with them.
            self.shared.request(AwaitedCommit(changes))
        for followed, question in asked.items():
            followed.asked = question

    # Sources

    def _assign(self, are_moved: Sequence[Followed]) -> None:
        self._assigned_s = self._monotonic_s()
        names = [each.name for each in self.shared.partitions() if each.phase is not Phase.STOPPED]
        try:
            sources = self._leader.sources(names)
        except LeaderUnavailableError as error:
            self._note_unavailable(error)
            self.shared.note_stale_sources()
            self.shared.pause(retry_delay_ms(self._failures, self._rng) / 1000)
            return
        if sum(map(len, sources.values())) < len(names):
            self.shared.note_stale_sources()  # some partitions have no leader for the moment
        self.shared.assign(sources)
        for followed in are_moved:
            self.shared.resume(followed, delay_s=_REFRESH_AGAIN_S)
        for source in sources:
            if source not in self._fetchers:
                self._fetchers[source] = Fetcher(
                    source,
                    self._leader,
                    self.shared,
                    share_bytes=self._settings.buffer_bytes // (len(sources) + 1),
                    rate=self._rate,
                    on_event=self._on_event,
                )
                start(self._fetchers[source])

    # Questions

    def _reload(self, followed: Followed) -> None:
        try:
            self._logs.refresh()
            loaded = self._logs.load(followed.name, followed.state.topic_id, is_verified=False)
        except (KafkalogError, OSError) as error:
            self.shared.delay(followed, str(error))
            return
        self.shared.restart(followed, _followed(loaded, followed.leader_epoch))

    def _compare(self, followed: Followed) -> None:
        """Find out how far the logs agree, and do what follows from it."""
        try:
            self._logs.refresh()
            local = self._logs.load(followed.name, followed.state.topic_id, is_verified=True)
            resolution = self._resolve(followed, local)
            if isinstance(resolution, Cut):
                self._cut(followed, local, resolution)
            elif isinstance(resolution, StartOver):
                self._start_over(followed, local, resolution)
            elif isinstance(resolution, Probe):
                self.shared.compare_batch(followed, resolution)
            elif followed.probe is not None:
                self.shared.restart(followed, _followed(local, followed.leader_epoch))
            else:
                self.shared.resume(followed, delay_s=_REFRESH_AGAIN_S)
        except CommitStateUnknownError as error:
            self.shared.delay(followed, str(error))
        except FollowingEndedError:
            raise
        except (KafkalogError, OSError) as error:
            self.shared.delay(followed, str(error))

    def _resolve(self, followed: Followed, local: LocalLog) -> Resolution:
        position = local.state.position(followed.leader_epoch)
        start_offset, high_watermark = self._leader.range_of(position)
        agreed = agreed_end_offset(
            local.epochs, local.state.end_offset, lambda epoch: self._leader.epoch_end(position, epoch)
        )
        compare, probe = followed.compare, followed.probe
        assert compare is not None
        search: EpochSearch | None = None
        if probe is not None and compare.is_same is not None:
            search = probe.search.after(probe.batch, is_same=compare.is_same)
        return resolve(
            local.state,
            local.epochs,
            leader_start_offset=start_offset,
            leader_high_watermark=high_watermark,
            agreed_offset=agreed,
            has_other_batch=compare.has_other_batch,
            search=search,
            read=lambda offset: self._logs.batch_at(followed.name, offset),
        )

    def _cut(self, followed: Followed, local: LocalLog, cut: Cut) -> None:
        assert followed.compare is not None
        name, end_offset = followed.name, local.state.end_offset
        self._note_loss(EventKind.DIVERGED, name, followed.compare.reason, cut.end_offset, end_offset)
        if not self._settings.may_cut:
            self._stop(
                followed, f"{followed.compare.reason}; --on-divergence truncate cuts from offset {cut.end_offset}"
            )
            return
        change = Truncation(
            topic_partition=name,
            topic_id=local.state.topic_id,
            expected_end_offset=end_offset,
            end_offset=cut.end_offset,
        )
        self._change(followed, change)

    def _start_over(self, followed: Followed, local: LocalLog, start: StartOver) -> None:
        end_offset = local.state.end_offset
        if start.start_offset < end_offset:
            detail = "the leader ends below this log, which has no records and starts again"
            self._note_loss(EventKind.DIVERGED, followed.name, detail, start.start_offset, end_offset)
        elif end_offset or not followed.is_new:
            detail = "deleted at the leader before they were copied"
            if not local.state.is_empty:
                detail += f"; those from {local.state.log_start_offset} on are deleted here, too"
            self._note_loss(EventKind.GAP, followed.name, detail, end_offset, start.start_offset)
        change = StartAt(
            topic_partition=followed.name,
            topic_id=local.state.topic_id,
            expected_end_offset=end_offset,
            start_offset=start.start_offset,
            # Of what it has deleted, the leader cannot say whether it was the same.
            keeps_records=self._had_records and not followed.is_verified,
        )
        self._change(followed, change)

    def _change(self, followed: Followed, change: FollowerChange) -> None:
        """Commit a change by itself, and resume after it, unless the follower ends. Raises why it is refused."""
        results = self.shared.request(AwaitedCommit([change]))
        if results is None:
            return
        (result,) = results
        if isinstance(result, KafkalogError):
            raise result
        self._logs.refresh()
        loaded = self._logs.load(followed.name, followed.state.topic_id, is_verified=False)
        self.shared.restart(followed, _followed(loaded, followed.leader_epoch))
        self._losses.pop(followed.name, None)

    def _stop(self, followed: Followed, reason: str) -> None:
        self.shared.stop_partition(followed, reason)
        self._note(EventKind.PARTITION_STOPPED, followed.name, reason)

    def _note_cut(self, name: TopicPartition, first_offset: int, end_offset: int, file: str) -> None:
        """Before the commit that drops the records, so that a kill between them leaves no cut without its event."""
        self._note(EventKind.CUT, name, f"kept in {file}", first_offset, end_offset)

    def _note_loss(
        self, kind: EventKind, name: TopicPartition, detail: str, first_offset: int, end_offset: int
    ) -> None:
        """Before the commit that follows from it, and once, however often that is tried."""
        event = _event(kind, name, detail, first_offset, end_offset)
        if self._losses.get(name) != event:
            self._losses[name] = event
            self._on_event(event)

    def _note(
        self, kind: EventKind, name: TopicPartition, detail: str, first_offset: int = -1, end_offset: int = -1
    ) -> None:
        self._on_event(_event(kind, name, detail, first_offset, end_offset))


def _event(kind: EventKind, name: TopicPartition, detail: str, first_offset: int, end_offset: int) -> Event:
    return Event(
        kind=kind,
        detail=detail,
        topic=name.topic,
        partition=name.partition,
        first_offset=first_offset,
        end_offset=end_offset,
    )


def _followed(loaded: LocalLog, leader_epoch: int) -> Followed:
    return Followed(
        state=loaded.state,
        committed_start_offset=loaded.committed.log_start_offset,
        committed_end_offset=loaded.committed.log_end_offset,
        committed_epoch=loaded.committed.leader_epoch,
        leader_epoch=leader_epoch,
    )
