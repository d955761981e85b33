"""Requests to the admin handlers of a server, without a connection: a root, and a principal with some permissions.

    admin = AdminRequests(LogDir.create(place).root)
    admin.ask(ApiKey.CREATE_TOPICS, CreateTopicsRequest(topics=(...)), CreateTopicsResponse)

Requests and responses go through their encoded forms, in the newest version unless another is given.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from fakes.unlimited import unlimited
from pyspark_kafkalog.metadata.acl import AclOperation, ResourceType
from pyspark_kafkalog.protocol.api import APIS, ApiKey
from pyspark_kafkalog.protocol.messages.api_message import ApiMessage
from pyspark_kafkalog.root.native import NativeRoot
from pyspark_kafkalog.root.protocol import Root
from pyspark_kafkalog.server.context import ClientRates, Node, Request, ServerContext, Session
from pyspark_kafkalog.server.roles import STATELESS_HANDLERS
from pyspark_kafkalog.storage.names import TopicPartition

R = TypeVar("R", bound=ApiMessage)
Denied = Collection[tuple[AclOperation, ResourceType, str]]


class OneServer:
    """A cluster of the servers 5 and 7; this is 5."""

    node_id = 5
    cluster_id = "kafkalog-tests-cluster"

    def nodes(self) -> tuple[Node, ...]:
        return Node(5, "127.0.0.1", 9005, "zone-a"), Node(7, "127.0.0.1", 9007)

    def listed(self) -> tuple[Node, ...]:
        return self.nodes()

    def leader(self, topic_id: str, partition: int, client_id: str) -> Node:
        return self.nodes()[partition % 2]

    def coordinator(self, topic: str, partition: int) -> Node:
        return self.nodes()[0]


class Permissions:
    """Allows everything but what is `denied`."""

    def __init__(self, denied: Denied) -> None:
        self._denied = set(denied)

    def allows(
        self,
        session: Session,
        operation: AclOperation,
        resource_type: ResourceType,
        name: str,
        *,
        logs_denial: bool = True,
    ) -> bool:
        return (operation, resource_type, name) not in self._denied


class Notified:
    """The partitions whose changes were announced to waiting requests."""

    def __init__(self) -> None:
        self.partitions: set[TopicPartition] = set()

    def notify(self, partitions: frozenset[TopicPartition] | None) -> None:
        self.partitions |= partitions or set()


class AdminRequests:
    """Sends requests to the handlers of one server over `root`."""

    def __init__(self, root: Root, *, denied: Denied = (), quotas: ClientRates | None = None) -> None:
        self.root = root
        self.notified = Notified()
        self._denied = denied
        self._limits = unlimited() if quotas is None else unlimited(quotas=quotas)

    def ask(self, key: ApiKey, body: ApiMessage, response: type[R], *, version: int | None = None) -> R:
        """The response to one request."""
        version = APIS[key].versions[-1] if version is None else version
        body = type(body).decode(version, body.encode(version))
        with ThreadPoolExecutor(1) as executor:
            context = self._context(executor)
            request = Request(key, version, "tests", body, Session("127.0.0.1", 4000))
            answer = asyncio.run(_handled(STATELESS_HANDLERS[key], context, request))
        return response.decode(version, answer.encode(version))

    def _context(self, executor: ThreadPoolExecutor) -> ServerContext:
        parts: dict[str, Any] = {
            "root": self.root,
            "native": self.root if isinstance(self.root, NativeRoot) else None,
            "cluster": OneServer(),
            "committer": None,
            "guard": Permissions(self._denied),
            "waiters": self.notified,
            "executor": executor,
            "clock": lambda: 0,
            "monotonic_ms": lambda: 0,
            **self._limits,
        }
        return ServerContext(**parts)


async def _handled(handler: Callable[..., Any], context: ServerContext, request: Request) -> Any:
    return await handler(context, request)
