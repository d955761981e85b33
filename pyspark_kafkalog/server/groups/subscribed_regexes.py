"""The topics of the regular expressions that groups of the consumer protocol subscribe to (KIP-848).

A new expression is looked up when a member names it, and no other one of its group with it. All expressions of a group
are looked up again every 10 seconds at most, by one heartbeat of the group.

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
from functools import partial
from typing import Final

from pyspark_kafkalog.java_regex.re2_pattern import compile_re2_pattern
from pyspark_kafkalog.metadata.access.acl import AclOperation, ResourceType
from pyspark_kafkalog.protocol.error_codes import ErrorCode
from pyspark_kafkalog.server.context import Request, ServerContext
from pyspark_kafkalog.server.groups.consumer_protocol.consumer_group import ConsumerGroup, ResolvedRegex
from pyspark_kafkalog.server.groups.group_errors import GroupRequestError
from pyspark_kafkalog.server.metadata.known_topics import known_topics
from pyspark_kafkalog.server.turns import in_turns

_LOG: Final = logging.getLogger(__name__)
_REFRESH_MS: Final = 10_000
_GROUPS_MAX: Final = 10_000
_TOGETHER_MAX: Final = 2
#: The CPU time of an expression for each topic, twenty times what most take, and at least for all of them, in seconds.
_TOPIC_S: Final = 20e-6
_LEAST_S: Final = 0.2


class SubscribedRegexes:
    """Looks up expressions for one server. `cpu_s` is the time that the calling thread has used, in seconds."""

    def __init__(self, cpu_s: Callable[[], float] = time.thread_time) -> None:
        self._cpu_s = cpu_s
        self._turns = asyncio.Semaphore(_TOGETHER_MAX)
        self._looked_up_ms: dict[str, int] = {}

    async def resolved(
        self, context: ServerContext, request: Request, group_id: str, group: ConsumerGroup | None, asked: str | None
    ) -> Mapping[str, ResolvedRegex]:
        """The topics of `asked`, if it is new to the group, and those of all its expressions when it is time.

        The member sees the topics that its client may describe. Raises GroupRequestError if `asked` takes too long.
        """
        known = {} if group is None else group.regexes
        wanted = {asked} if asked and asked not in known else set()
        now_ms = context.monotonic_ms()
        if known and now_ms - self._looked_up_ms.get(group_id, 0) >= _REFRESH_MS:
            wanted |= known.keys()
        if not wanted:
            return {}
        if known.keys() <= wanted:
            if len(self._looked_up_ms) >= _GROUPS_MAX:
                self._looked_up_ms.clear()
            self._looked_up_ms[group_id] = now_ms
        topics = known_topics(context)
        names = tuple(topics.names())
        found = {}
        for regex in sorted(wanted):
            try:
                async with self._turns:
                    found[regex] = await context.run(partial(self._matching, names, regex))
            except ValueError as error:
                if regex == asked and asked not in known:
                    raise GroupRequestError(ErrorCode.INVALID_REGULAR_EXPRESSION, str(error)) from None
                _LOG.warning("a subscription of group %s is not looked up again: %s", group_id, error)
        visible = await _visible(context, request, frozenset[str]().union(*found.values()))
        version, looked_up_ms = topics.version, context.clock()
        return {
            regex: ResolvedRegex(matching & visible, version, looked_up_ms)
            async for regex, matching in in_turns(found.items())
        }

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


async def _visible(context: ServerContext, request: Request, names: Collection[str]) -> frozenset[str]:
    """The topics that the client may describe."""
    allows, session = context.guard.allows, request.session
    return frozenset(
        [
            each
            async for each in in_turns(names)
            if allows(session, AclOperation.DESCRIBE, ResourceType.TOPIC, each, logs_denial=False)
        ]
    )
