"""The topics of the regular expressions that groups of the consumer protocol subscribe to (KIP-848).

A new expression is looked up when a member names it, and no other one of its group with it. All expressions of a group
are looked up again by a heartbeat of the group, at most every 10 seconds, when something that decides their topics has
changed: topics were created or deleted, or access control entries changed. Without a change they are looked up again
after `group.consumer.regex.refresh.interval.ms`.

RE2 matches a name in linear time, but with an expression made for it this may take milliseconds a name. So threads
match expressions in turn, at most two at a time, and each has a limited time of CPU for all topics. A new expression
that takes longer is refused, and one that a group already has keeps its topics. A broker has no such limit.

Source of the rules: GroupMetadataManager.maybeUpdateRegularExpressions of org.apache.kafka.coordinator.group.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Final

from pyspark_kafkalog.groups.consumer_group import ConsumerGroup, ResolvedRegex
from pyspark_kafkalog.java_regex.patterns import compile_re2_pattern
from pyspark_kafkalog.metadata.acl import AclOperation, ResourceType
from pyspark_kafkalog.protocol.error_codes import ErrorCode
from pyspark_kafkalog.root.brokers.read_only import ReadOnlyRoot
from pyspark_kafkalog.server.context import AnyRequest, ServerContext
from pyspark_kafkalog.server.event_loop import in_turns
from pyspark_kafkalog.server.metadata import known_topics
from pyspark_kafkalog.server.request_errors import RequestError

_LOG: Final = logging.getLogger(__name__)
_REFRESH_MIN_MS: Final = 10_000
_GROUPS_MAX: Final = 10_000
_TOGETHER_MAX: Final = 2
#: The CPU time of an expression for each topic, twenty times what most take, and at least for all of them, in seconds.
_TOPIC_S: Final = 20e-6
_LEAST_S: Final = 0.2


@dataclass(slots=True)
class _LookUp:
    """The last time that all expressions of a group were looked up, and in which state of the root."""

    at_ms: int
    state: int
    is_stored: bool = False


@dataclass(frozen=True, slots=True)
class Resolved:
    """The expressions that a heartbeat has looked up, and their topics."""

    regexes: Mapping[str, ResolvedRegex]
    _of_group: _LookUp | None = None

    def stored(self) -> None:
        """The group has these topics now. If it never gets them, they are looked up again by a later heartbeat."""
        if self._of_group is not None:
            self._of_group.is_stored = True


NOTHING_RESOLVED: Final = Resolved({})


class SubscribedRegexes:
    """Looks up expressions for one server. `cpu_s` is the time that the calling thread has used, in seconds."""

    def __init__(self, cpu_s: Callable[[], float] = time.thread_time) -> None:
        self._cpu_s = cpu_s
        self._turns = asyncio.Semaphore(_TOGETHER_MAX)
        self._of_groups: dict[str, _LookUp] = {}
        # What decides the topics of expressions, and a number that grows with each change of it.
        self._decisive: tuple[object, ...] = ()
        self._state = 0

    async def resolved(
        self, context: ServerContext, request: AnyRequest, group_id: str, group: ConsumerGroup | None, asked: str | None
    ) -> Resolved:
        """The topics of `asked`, if it is new to the group, and those of all its expressions when it is time.

        The member sees the topics that its client may describe. Raises RequestError if `asked` takes too long.
        """
        known: Mapping[str, ResolvedRegex] = {} if group is None else group.regexes
        subscribed: Mapping[str, int] = {} if group is None else group.index.regexes
        wanted = {asked} if asked and asked not in known else set()
        is_due = self._is_due(context, group_id, all_known=len(subscribed) <= len(known))
        if is_due:
            wanted |= subscribed.keys()
        if not wanted:
            return NOTHING_RESOLVED
        of_group = self._begun(context, group_id) if is_due or not known else None
        topics = known_topics(context)
        names = tuple(topics.names())
        found = {}
        for regex in sorted(wanted):
            try:
                async with self._turns:
                    found[regex] = await context.run(partial(self._matching, names, regex))
            except ValueError as error:
                if regex == asked and asked not in known:
                    raise RequestError(ErrorCode.INVALID_REGULAR_EXPRESSION, str(error)) from None
                _LOG.warning("a subscription of group %s is not looked up again: %s", group_id, error)
        visible = await _visible(context, request, frozenset[str]().union(*found.values()))
        version, looked_up_ms = topics.version, context.clock()
        regexes = {
            regex: ResolvedRegex(matching & visible, version, looked_up_ms)
            async for regex, matching in in_turns(found.items())
        }
        return Resolved(regexes, of_group)

    def _is_due(self, context: ServerContext, group_id: str, *, all_known: bool) -> bool:
        """Whether all expressions of the group are to be looked up; `all_known`: each has been, some time."""
        last = self._of_groups.get(group_id)
        if last is None:
            return True
        passed_ms = context.monotonic_ms() - last.at_ms
        return passed_ms >= _REFRESH_MIN_MS and (
            not (all_known and last.is_stored)
            or last.state != self._state_of(context)
            or passed_ms >= context.broker_config().group_consumer_regex_refresh_interval_ms
        )

    def _begun(self, context: ServerContext, group_id: str) -> _LookUp:
        if len(self._of_groups) >= _GROUPS_MAX:
            self._of_groups.clear()
        begun = self._of_groups[group_id] = _LookUp(context.monotonic_ms(), self._state_of(context))
        return begun

    def _state_of(self, context: ServerContext) -> int:
        decisive = _decisive(context)
        if decisive != self._decisive:
            self._decisive = decisive
            self._state += 1
        return self._state

    def _matching(self, names: Collection[str], regex: str) -> frozenset[str]:
        """The names that match. Raises ValueError for an expression that is refused."""
        matches = compile_re2_pattern(regex)
        limit_s = max(_LEAST_S, _TOPIC_S * len(names))
        end_s = self._cpu_s() + limit_s
        found = []
        for name in names:
            if matches(name):
                found.append(name)
            if self._cpu_s() > end_s:
                raise ValueError(
                    f"the regular expression {regex[:100]!r} takes more than {limit_s:.1f} s to match "
                    f"{len(names)} topics: use one without repetitions in others, or the names of the topics"
                )
        return frozenset(found)


def _decisive(context: ServerContext) -> tuple[object, ...]:
    """What decides the topics of expressions. Comparing it is quick: an image keeps a mapping that does not change."""
    root = context.root
    if isinstance(root, ReadOnlyRoot):
        return (frozenset(root.topics()),)
    image = root.native().store.image
    return image.topic_names, image.acls, image.broker_configs


async def _visible(context: ServerContext, request: AnyRequest, names: Collection[str]) -> frozenset[str]:
    """The topics that the client may describe."""
    allows, session = context.guard.allows, request.session
    return frozenset(
        [
            each
            async for each in in_turns(names)
            if allows(session, AclOperation.DESCRIBE, ResourceType.TOPIC, each, logs_denial=False)
        ]
    )
