"""What a server does for a root: it writes to it, or it only reads. The role changes while the server runs.

    the root follows a leader     only reads: producers are refused, groups continue in the memory of this server
    it was promoted               writes: groups and transactions have their coordinators in the log

A root is promoted, or begins to follow, by a commit. A few times a second `Roles` looks at the image, which other parts
keep up to date; so does each request, while the root follows, before it might be refused for that.

    stop the groups               who waits is answered, requests for groups shall be sent again
    make and start the new role   it joins the live servers
    take in the groups            members and offsets that were in memory are committed
    use the new role              for requests that come from now on
    stop the old role             what it has submitted is committed, or refused

Connections stay, and their requests under way end in the old role. A role that fails to start is tried again; until
then the log directory is only read. A server that was started for reading only, or over a broker's directory, keeps its
role. A crash in between is one of a server that reads, or of one that writes.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

from pyspark_kafkalog.errors import KafkalogError
from pyspark_kafkalog.protocol.api import ApiKey
from pyspark_kafkalog.server.context import Handler, ServerContext
from pyspark_kafkalog.server.groups.coordinator import GroupCoordinator

if TYPE_CHECKING:
    from pyspark_kafkalog.root.protocol import Root

_LOG: Final = logging.getLogger(__name__)
_LOOK_S: Final = 0.1
#: A failed change is tried again after this time.
_RETRY_S: Final = 1.0
#: A request waits so long for a change that is under way.
_WAIT_S: Final = 10.0


class Service(Protocol):
    """A part of the server that runs beside the connections."""

    async def start(self) -> None: ...

    async def stop(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Role:
    """What answers requests. The services, `groups` among them, are started in their order, and stopped in reverse."""

    context: ServerContext
    handlers: Mapping[ApiKey, Handler]
    groups: GroupCoordinator
    services: Sequence[Service]

    @property
    def writes(self) -> bool:
        return self.context.native is not None

    async def start(self) -> None:
        for each in self.services:
            await each.start()

    async def stop(self) -> None:
        """Also of a role that was started in part, or was stopped."""
        for each in reversed(self.services):
            await each.stop()


class Roles:
    """The present role of one server, a service. Used in the event loop's thread only."""

    def __init__(
        self, root: Root, make: Callable[[bool], Role], refresh: Callable[[], Awaitable[None]], *, only_reads: bool
    ) -> None:
        """`make` makes a role that writes, or only reads. `refresh` brings the root up to date, not too often.

        `only_reads`: the role never changes. Raises KafkalogError, OSError if the first role cannot be made.
        """
        self._root = root
        self._make = make
        self._refresh = refresh
        self._only_reads = only_reads
        if not only_reads:
            root.refresh()
        self._role = make(self._should_write())
        self._has_failed = False
        self._task: asyncio.Task[None] | None = None

    @property
    def current(self) -> Role:
        return self._role

    async def for_request(self) -> Role:
        """The role that answers a request now. One that finds the root promoted waits until this server writes."""
        if self._only_reads or self._role.writes:
            return self._role
        await self._refresh()
        deadline = asyncio.get_running_loop().time() + _WAIT_S
        while self._is_outdated() and asyncio.get_running_loop().time() < deadline:
            await asyncio.sleep(_LOOK_S / 4)
        return self._role

    async def start(self) -> None:
        await self._role.start()
        if not self._only_reads:
            self._task = asyncio.create_task(self._watch())

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
        await self._role.stop()

    def _should_write(self) -> bool:
        return not self._only_reads and self._root.follows is None

    def _is_outdated(self) -> bool:
        return self._has_failed or self._role.writes is not self._should_write()

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(_LOOK_S)
            if self._is_outdated():
                try:
                    await self._change()
                except (KafkalogError, OSError) as error:
                    _LOG.error("this server cannot take its new role, and tries again: %s", error)
                    await asyncio.sleep(_RETRY_S)

    async def _change(self) -> None:
        old = self._role
        self._has_failed = True  # the groups are stopped, so another role has to be there, whatever the root does now
        await old.groups.stop()
        new = self._make(self._should_write())
        try:
            if not new.writes:
                new.groups.own = old.groups.own
            await new.start()
            if new.writes:
                await new.groups.take_in(old.groups.own)
        except BaseException:
            await new.stop()
            raise
        self._role, self._has_failed = new, False
        if new.writes:
            _LOG.warning("%s was promoted: this server writes to it now", self._root.path)
        else:
            _LOG.warning("%s follows %s: this server only reads it now", self._root.path, self._root.follows)
        await old.stop()
