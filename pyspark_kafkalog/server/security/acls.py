"""What a session may do by the root's access control entries, and the requests that list and change the entries.

Whether anything is checked follows Kafka's rule that a broker without an authorizer allows everything. Here an
authorizer is on if one of these is so:

    authorizer.class.name is set       Kafka's own setting; whatever its value, the rules are StandardAuthorizer's
    super.users is set                 it has no other purpose
    there are entries                  an administrator wrote rules, so they hold
    the listener `stays_closed`        it relies on entries (server/config.py): without any, nothing is allowed

A root whose entries were all removed, and with neither setting, is open again: an administrator who relies on
entries sets super.users, without which no client could change them. A copy of a cluster that checks entries has
authorizer.class.name, and a broker's directory whose metadata log tells of an authorizer is not open either, unless the
server is insecure. Both follow the newest commits, or the broker's metadata log.

Denials go to the logger `kafka.authorizer.logger`, as a broker's do, a bounded number a second (`BoundedLog`).
`authorized_operations` is the bit field of Metadata and of descriptions: the operations that a principal may do on a
resource.

DescribeAcls, CreateAcls and DeleteAcls need a permission on the cluster: DESCRIBE, or ALTER. Without an authorizer all
of them answer SECURITY_DISABLED, as a broker's do. Changes of one request are one commit; entries that Kafka refuses
are answered with their error and leave the others alone.

Source of the rules: org.apache.kafka.metadata.authorizer.StandardAuthorizer, kafka.server.AuthHelper,
org.apache.kafka.security.authorizer.AclEntry, kafka.server.AclApis, org.apache.kafka.controller.AclControlManager.
"""

from __future__ import annotations

import itertools
import logging
import random
from collections.abc import Callable, Mapping, Sequence
from typing import Final, TypeVar

from pyspark_kafkalog.errors import InvalidAclError, KafkalogError
from pyspark_kafkalog.metadata.acl import (
    CLUSTER_NAME,
    OPERATIONS,
    Acl,
    AclFilter,
    AclOperation,
    PatternType,
    PermissionType,
    ResourceType,
    add_acls,
    canonical_host,
    check_host,
    remove_acls,
)
from pyspark_kafkalog.metadata.image import MetadataImage
from pyspark_kafkalog.metadata.messages.codec import Message
from pyspark_kafkalog.metadata.messages.metadata_records import MetadataRecord
from pyspark_kafkalog.protocol.error_codes import ErrorCode
from pyspark_kafkalog.protocol.messages.security import (
    AclCreation,
    AclCreationResult,
    AclDescription,
    CreateAclsRequest,
    CreateAclsResponse,
    DeleteAclsFilter,
    DeleteAclsFilterResult,
    DeleteAclsMatchingAcl,
    DeleteAclsRequest,
    DeleteAclsResponse,
    DescribeAclsRequest,
    DescribeAclsResource,
    DescribeAclsResponse,
)
from pyspark_kafkalog.root.brokers.image import BrokerMetadata
from pyspark_kafkalog.root.protocol import Root, native_or_none
from pyspark_kafkalog.security.access_control import AccessControl, Authorizer
from pyspark_kafkalog.server.context import READ_ONLY, AnyRequest, Request, ServerContext, Session
from pyspark_kafkalog.server.request_errors import BoundedLog
from pyspark_kafkalog.storage.names import check_principal

AUDIT_LOG: Final = logging.getLogger("kafka.authorizer.logger")


class AclGuard:
    """The `Guard` of a server over `root` (context.py). Used in the event loop's thread."""

    def __init__(
        self,
        root: Root,
        *,
        monotonic_ms: Callable[[], int],
        broker_metadata: Callable[[], BrokerMetadata] = BrokerMetadata,
        is_insecure: bool = False,
        stays_closed: bool = False,
    ) -> None:
        """`broker_metadata`: the newest of a broker's directory. `stays_closed`: without entries nothing is allowed."""
        self._root = root
        self._native = native_or_none(root)
        self._broker_metadata = broker_metadata
        self._is_insecure = is_insecure
        self._none = Authorizer() if stays_closed else None
        self._audit = BoundedLog(AUDIT_LOG, monotonic_ms)
        # What the authorizer was made from: an image keeps these mappings until a commit changes them.
        self._acls: Mapping[str, Acl] | None = None
        self._settings: Mapping[str, Mapping[str, str]] | None = None
        self._authorizer: Authorizer | None = None

    @property
    def is_on(self) -> bool:
        """Whether there is an authorizer; if not, everything is allowed."""
        return self._current() is not None

    def allows(
        self,
        session: Session,
        operation: AclOperation,
        resource_type: ResourceType,
        name: str,
        *,
        logs_denial: bool = True,
    ) -> bool:
        """Whether the session's principal may do `operation` on the resource; a denial is logged if `logs_denial`."""
        authorizer = self._current()
        if authorizer is None or authorizer.allows(session.principal, operation, resource_type, name, session.host):
            return True
        if logs_denial:
            self._denied(session, operation, f"{_type_name(resource_type)}:LITERAL:{name}")
        return False

    def allows_any(self, session: Session, operation: AclOperation, resource_type: ResourceType) -> bool:
        """Whether it may do `operation` on some resource of the type; a denial is logged."""
        authorizer = self._current()
        if authorizer is None or authorizer.allows_any(session.principal, operation, resource_type, session.host):
            return True
        self._denied(session, operation, f"any {_type_name(resource_type)}")
        return False

    def _denied(self, session: Session, operation: AclOperation, resource: str) -> None:
        self._audit.info(
            "Principal = %s is Denied operation = %s from host = %s on resource = %s",
            session.principal,
            operation.name,
            session.host,
            resource,
        )

    def _current(self) -> Authorizer | None:
        if self._native is not None:
            image = self._native.store.image
            if image.acls is not self._acls or image.broker_configs is not self._settings:
                self._acls, self._settings = image.acls, image.broker_configs
                control = AccessControl(self._root)
                self._authorizer = control.authorizer() if control.has_authorizer() else self._none
            return self._authorizer
        metadata = self._broker_metadata()
        if metadata.acls is not self._acls:
            self._acls = metadata.acls
            is_on = bool(metadata.acls) or (metadata.has_authorizer and not self._is_insecure)
            self._authorizer = Authorizer(metadata.acls.values()) if is_on else self._none
        return self._authorizer


def _type_name(resource_type: ResourceType) -> str:
    return resource_type.name.title().replace("_", "")


#: The value of the field if the request did not ask for it.
NOT_ASKED: Final = -(1 << 31)


def authorized_operations(
    context: ServerContext, session: Session, resource_type: ResourceType, name: str, *, asked: bool
) -> int:
    """The bit field: bit n for the operation with the number n; NOT_ASKED unless the request has `asked`."""
    if not asked:
        return NOT_ASKED
    allows = context.guard.allows
    allowed = (
        each for each in OPERATIONS[resource_type] if allows(session, each, resource_type, name, logs_denial=False)
    )
    return sum(1 << each for each in allowed)


def authorized_cluster_operations(context: ServerContext, session: Session, *, asked: bool) -> int:
    """The same of the cluster; none for a principal that may not describe it."""
    if asked and not context.guard.allows(session, AclOperation.DESCRIBE, ResourceType.CLUSTER, CLUSTER_NAME):
        return 0
    return authorized_operations(context, session, ResourceType.CLUSTER, CLUSTER_NAME, asked=asked)


_E = TypeVar("_E", ResourceType, PatternType, AclOperation, PermissionType)

_ANY: Final = 1  # of operations and permissions in filters
_RANDOM: Final = random.SystemRandom()


class AclHandlers:
    """The handlers of a server with `guard`."""

    def __init__(self, guard: AclGuard) -> None:
        self._guard = guard

    async def describe(self, context: ServerContext, request: Request[DescribeAclsRequest]) -> Message:
        """DescribeAcls: the entries that a filter matches, by resource."""
        error = self._refusal(request, AclOperation.DESCRIBE)
        if error != ErrorCode.NONE:
            return DescribeAclsResponse(error_code=error, error_message=error.message)
        try:
            chosen = parse_filter(request.body)
        except InvalidAclError as refused:
            return DescribeAclsResponse(error_code=ErrorCode.INVALID_REQUEST, error_message=str(refused))
        await context.run(context.root.refresh)
        entries = await context.run(lambda: AccessControl(context.root).entries(chosen))
        return DescribeAclsResponse(
            error_message=None,
            resources=tuple(
                DescribeAclsResource(
                    resource_type=pattern.resource_type,
                    resource_name=pattern.resource_name or "",
                    pattern_type=pattern.pattern_type,
                    acls=tuple(
                        AclDescription(
                            principal=acl.principal,
                            host=acl.host,
                            operation=acl.operation,
                            permission_type=acl.permission,
                        )
                        for acl in acls
                    ),
                )
                for pattern, acls in itertools.groupby(entries, key=lambda acl: acl.pattern)
            ),
        )

    async def create(self, context: ServerContext, request: Request[CreateAclsRequest]) -> Message:
        """CreateAcls: entries that exist already are left as they are."""
        creations = request.body.creations
        error = self._refusal(request, AclOperation.ALTER)
        native = context.native
        if error != ErrorCode.NONE or native is None:
            code, message = _code_and_message(error)
            refused = AclCreationResult(error_code=code, error_message=message)
            return CreateAclsResponse(results=tuple(refused for _ in creations))
        results, acls = [], []
        for creation in creations:
            try:
                acls.append(parse_creation(creation))
                results.append(AclCreationResult(error_message=None))
            except InvalidAclError as invalid:
                results.append(AclCreationResult(error_code=ErrorCode.INVALID_REQUEST, error_message=str(invalid)))
        if acls:
            await context.run(
                lambda: native.commit(
                    lambda image: add_acls(image.acls.values(), acls, _RANDOM, is_checked=True),
                    operation="add access control entries",
                )
            )
        return CreateAclsResponse(results=tuple(results))

    async def delete(self, context: ServerContext, request: Request[DeleteAclsRequest]) -> Message:
        """DeleteAcls: the entries that each filter matches."""
        filters = request.body.filters
        error = self._refusal(request, AclOperation.ALTER)
        native = context.native
        if error != ErrorCode.NONE or native is None:
            code, message = _code_and_message(error)
            refused = DeleteAclsFilterResult(error_code=code, error_message=message)
            return DeleteAclsResponse(filter_results=tuple(refused for _ in filters))
        chosen = [_parse_filter_or_error(each) for each in filters]
        removed: list[list[Acl]] = []

        def build(image: MetadataImage) -> Sequence[MetadataRecord]:
            removed.clear()
            acl_ids: dict[str, None] = {}
            for each in chosen:
                matched = (
                    {}
                    if isinstance(each, KafkalogError)
                    else {acl_id: acl for acl_id, acl in image.acls.items() if each.matches(acl)}
                )
                acl_ids.update(dict.fromkeys(matched))
                removed.append(sorted(matched.values()))
            return remove_acls(acl_ids)

        await context.run(lambda: native.commit(build, operation="remove access control entries"))
        return DeleteAclsResponse(
            filter_results=tuple(
                DeleteAclsFilterResult(error_code=ErrorCode.INVALID_REQUEST, error_message=str(each))
                if isinstance(each, KafkalogError)
                else DeleteAclsFilterResult(error_message=None, matching_acls=tuple(map(_matching, acls)))
                for each, acls in zip(chosen, removed, strict=True)
            )
        )

    def _refusal(self, request: AnyRequest, operation: AclOperation) -> ErrorCode:
        if not self._guard.allows(request.session, operation, ResourceType.CLUSTER, CLUSTER_NAME):
            return ErrorCode.CLUSTER_AUTHORIZATION_FAILED
        return ErrorCode.NONE if self._guard.is_on else ErrorCode.SECURITY_DISABLED


def _code_and_message(error: ErrorCode) -> tuple[ErrorCode, str]:
    """Of a refusal; NONE: of one by a server that only reads."""
    return (ErrorCode.POLICY_VIOLATION, READ_ONLY) if error == ErrorCode.NONE else (error, error.message)


def parse_creation(creation: AclCreation) -> Acl:
    """The entry of a request. Raises InvalidAclError for one that a broker refuses.

    A broker does not ask whether the operation fits the type of resource, and neither does this.
    """
    acl = Acl(
        _member(ResourceType, creation.resource_type),
        creation.resource_name,
        _member(PatternType, creation.resource_pattern_type),
        creation.principal,
        canonical_host(creation.host),
        _member(AclOperation, creation.operation),
        _member(PermissionType, creation.permission_type),
    )
    if acl.resource_type == ResourceType.ANY:
        raise InvalidAclError(f"Invalid resourceType {acl.resource_type.name}")
    if acl.pattern_type not in (PatternType.LITERAL, PatternType.PREFIXED):
        raise InvalidAclError(f"Invalid patternType {acl.pattern_type.name}")
    if acl.resource_type == ResourceType.CLUSTER and acl.resource_name != CLUSTER_NAME:
        raise InvalidAclError(f"The only valid name for the CLUSTER resource is {CLUSTER_NAME}")
    if not acl.resource_name:
        raise InvalidAclError("Invalid empty resource name")
    check_principal(acl.principal)
    check_host(acl.host)
    return acl


def parse_filter(request: DescribeAclsRequest | DeleteAclsFilter) -> AclFilter:
    """The filter of a request. Raises InvalidAclError for numbers that Kafka 4.1 does not know."""
    return AclFilter(
        _member(ResourceType, request.resource_type_filter),
        request.resource_name_filter,
        _member(PatternType, request.pattern_type_filter),
        request.principal_filter,
        request.host_filter,
        None if request.operation == _ANY else _member(AclOperation, request.operation),
        None if request.permission_type == _ANY else _member(PermissionType, request.permission_type),
    )


def _parse_filter_or_error(request: DeleteAclsFilter) -> AclFilter | KafkalogError:
    try:
        return parse_filter(request)
    except InvalidAclError as error:
        return error


def _member(enum: type[_E], number: int) -> _E:
    try:
        return enum(number)
    except ValueError:
        raise InvalidAclError(f"Unknown {enum.__name__} {number}") from None


def _matching(acl: Acl) -> DeleteAclsMatchingAcl:
    return DeleteAclsMatchingAcl(
        error_message=None,
        resource_type=acl.resource_type,
        resource_name=acl.resource_name,
        pattern_type=acl.pattern_type,
        principal=acl.principal,
        host=acl.host,
        operation=acl.operation,
        permission_type=acl.permission,
    )
