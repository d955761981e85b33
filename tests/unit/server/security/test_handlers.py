"""The admin APIs of entries, credentials and quotas: what they change, answer and refuse."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
from fakes.unlimited import unlimited

from pyspark_kafkalog import LogDir
from pyspark_kafkalog.metadata.messages.codec import Message
from pyspark_kafkalog.protocol.api import APIS, ApiKey
from pyspark_kafkalog.protocol.error_codes import ErrorCode
from pyspark_kafkalog.protocol.messages.security import (
    AclCreation,
    AlterClientQuotasRequest,
    AlterClientQuotasRequestEntryData,
    AlterUserScramCredentialsRequest,
    ComponentData,
    CreateAclsRequest,
    DeleteAclsFilter,
    DeleteAclsRequest,
    DescribeAclsRequest,
    DescribeClientQuotasRequest,
    DescribeUserScramCredentialsRequest,
    EntityData,
    OpData,
    SaslAuthenticateRequest,
    SaslHandshakeRequest,
    ScramCredentialDeletion,
    ScramCredentialUpsertion,
    UserName,
)
from pyspark_kafkalog.server.context import Request, ServerContext, Session
from pyspark_kafkalog.server.roles import security_handlers
from pyspark_kafkalog.server.security.acls import AclGuard

ROOT, EVE = "User:root", "User:eve"
TOPIC, GROUP, CLUSTER = 2, 3, 4
LITERAL, PREFIXED, MATCH, ANY = 3, 4, 2, 1
READ, WRITE, ALLOW = 3, 4, 3


class Server:
    """The handlers over a root whose super user is User:root."""

    def __init__(self, log_dir: LogDir, executor: ThreadPoolExecutor) -> None:
        self.log_dir = log_dir
        native = log_dir.root.native()
        unused = cast("Any", None)
        guard = AclGuard(log_dir.root, monotonic_ms=lambda: 0)
        self.context = ServerContext(
            root=log_dir.root,
            native=native,
            cluster=unused,
            committer=unused,
            guard=guard,
            waiters=unused,
            executor=executor,
            clock=lambda: 0,
            monotonic_ms=lambda: 0,
            **unlimited(),
        )
        self.handlers = security_handlers(guard, None)

    def ask(self, key: ApiKey, body: Message, principal: str = ROOT) -> Any:
        session = Session("10.0.0.1", 1, principal=principal, is_authenticated=True)
        version = max(APIS[key].versions)
        response = asyncio.run(self.handlers[key](self.context, Request(key, version, "app", body, session)))
        assert response is not None
        # As a client gets it.
        return type(response).decode(version, response.encode(version))


@pytest.fixture(scope="module")
def executor() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(1) as pool:
        yield pool


@pytest.fixture
def server(tmp_path: Path, executor: ThreadPoolExecutor) -> Server:
    log_dir = LogDir.create(tmp_path / "log")
    log_dir.alter_broker_configs(add={"super.users": ROOT})
    return Server(log_dir, executor)


def creation(name: str = "orders", **fields: Any) -> AclCreation:
    values = {
        "resource_type": TOPIC,
        "resource_pattern_type": LITERAL,
        "principal": "User:ann",
        "host": "*",
        "operation": READ,
        "permission_type": ALLOW,
    }
    return AclCreation(resource_name=name, **{**values, **fields})


def everything(**fields: Any) -> dict[str, Any]:
    values = {
        "resource_type_filter": ANY,
        "resource_name_filter": None,
        "pattern_type_filter": ANY,
        "principal_filter": None,
        "host_filter": None,
        "operation": ANY,
        "permission_type": ANY,
    }
    return {**values, **fields}


def test_entries_are_created_described_by_resource_and_deleted(server: Server) -> None:
    given = (creation(), creation(operation=WRITE), creation("ord", resource_pattern_type=PREFIXED), creation())
    created = server.ask(ApiKey.CREATE_ACLS, CreateAclsRequest(creations=given))
    assert [each.error_code for each in created.results] == [0, 0, 0, 0]
    assert [each.error_message for each in created.results] == [None] * 4
    found = server.ask(ApiKey.DESCRIBE_ACLS, DescribeAclsRequest(**everything()))
    assert [(each.resource_name, each.pattern_type, len(each.acls)) for each in found.resources] == [
        ("ord", PREFIXED, 1),
        ("orders", LITERAL, 2),
    ]
    chosen = DeleteAclsFilter(**everything(resource_type_filter=TOPIC, operation=READ))
    unknown = DeleteAclsFilter(**everything(operation=99))
    deleted = server.ask(ApiKey.DELETE_ACLS, DeleteAclsRequest(filters=(chosen, unknown, chosen)))
    assert [each.error_code for each in deleted.filter_results] == [0, ErrorCode.INVALID_REQUEST, 0]
    assert {each.resource_name for each in deleted.filter_results[0].matching_acls} == {"ord", "orders"}
    assert [acl.operation for acl in server.log_dir.access_control().entries()] == [WRITE]


@pytest.mark.parametrize(
    "fields",
    [
        {"resource_type": ANY},
        {"resource_type": 99},
        {"resource_pattern_type": MATCH},
        {"operation": ANY},
        {"permission_type": ANY},
        {"resource_type": CLUSTER},
        {"name": ""},
        {"principal": "ann"},
    ],
)
def test_entry_that_a_broker_refuses_is_refused_and_others_are_not(server: Server, fields: dict[str, Any]) -> None:
    request = CreateAclsRequest(creations=(creation(**fields), creation("good")))
    created = server.ask(ApiKey.CREATE_ACLS, request)
    assert [each.error_code for each in created.results] == [ErrorCode.INVALID_REQUEST, 0]
    assert [acl.resource_name for acl in server.log_dir.access_control().entries()] == ["good"]


def test_without_an_authorizer_entries_are_disabled_and_without_permission_everything_is_refused(
    server: Server,
) -> None:
    describe, create = DescribeAclsRequest(**everything()), CreateAclsRequest(creations=(creation(),))
    delete = DeleteAclsRequest(filters=(DeleteAclsFilter(**everything()),))

    def codes(principal: str) -> list[int]:
        return [
            server.ask(ApiKey.DESCRIBE_ACLS, describe, principal).error_code,
            server.ask(ApiKey.CREATE_ACLS, create, principal).results[0].error_code,
            server.ask(ApiKey.DELETE_ACLS, delete, principal).filter_results[0].error_code,
        ]

    assert codes(EVE) == [ErrorCode.CLUSTER_AUTHORIZATION_FAILED] * 3
    server.log_dir.alter_broker_configs(delete=["super.users"])
    assert codes(EVE) == [ErrorCode.SECURITY_DISABLED] * 3


def test_server_that_only_reads_refuses_changes(server: Server) -> None:
    server.context = replace(server.context, native=None)
    code = ErrorCode.POLICY_VIOLATION
    assert server.ask(ApiKey.CREATE_ACLS, CreateAclsRequest(creations=(creation(),))).results[0].error_code == code
    delete = DeleteAclsRequest(filters=(DeleteAclsFilter(**everything()),))
    assert server.ask(ApiKey.DELETE_ACLS, delete).filter_results[0].error_code == code
    users = AlterUserScramCredentialsRequest(deletions=(ScramCredentialDeletion(name="ann", mechanism=1),))
    assert server.ask(ApiKey.ALTER_USER_SCRAM_CREDENTIALS, users).results[0].error_code == code
    assert server.ask(ApiKey.ALTER_CLIENT_QUOTAS, quotas("ann", producer_byte_rate=1.0)).entries[0].error_code == code
    assert server.ask(ApiKey.DESCRIBE_ACLS, DescribeAclsRequest(**everything())).error_code == 0


def upsertion(name: str, mechanism: int = 1, iterations: int = 4096) -> ScramCredentialUpsertion:
    return ScramCredentialUpsertion(
        name=name, mechanism=mechanism, iterations=iterations, salt=b"salt", salted_password=b"salted"
    )


def test_credentials_are_set_described_and_removed(server: Server) -> None:
    request = AlterUserScramCredentialsRequest(
        upsertions=(upsertion("ann"), upsertion("bob", 2, 8192), upsertion("carl", iterations=1), upsertion("", 1))
    )
    altered = server.ask(ApiKey.ALTER_USER_SCRAM_CREDENTIALS, request)
    unacceptable = ErrorCode.UNACCEPTABLE_CREDENTIAL
    assert {each.user: each.error_code for each in altered.results} == {
        "ann": 0,
        "bob": 0,
        "carl": unacceptable,
        "": unacceptable,
    }
    found = server.ask(ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS, DescribeUserScramCredentialsRequest(users=None))
    assert [(each.user, [(i.mechanism, i.iterations) for i in each.credential_infos]) for each in found.results] == [
        ("ann", [(1, 4096)]),
        ("bob", [(2, 8192)]),
    ]
    named = DescribeUserScramCredentialsRequest(users=tuple(UserName(name=n) for n in ("ann", "eve", "bob", "bob")))
    found = server.ask(ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS, named)
    assert [each.error_code for each in found.results] == [
        0,
        ErrorCode.RESOURCE_NOT_FOUND,
        ErrorCode.DUPLICATE_RESOURCE,
    ]
    request = AlterUserScramCredentialsRequest(
        deletions=(ScramCredentialDeletion(name="ann", mechanism=1), ScramCredentialDeletion(name="eve", mechanism=1))
    )
    altered = server.ask(ApiKey.ALTER_USER_SCRAM_CREDENTIALS, request)
    assert [each.error_code for each in altered.results] == [0, ErrorCode.RESOURCE_NOT_FOUND]
    assert {user for user, _ in server.log_dir.root.native().store.image.scram_credentials} == {"bob"}
    refused = server.ask(ApiKey.ALTER_USER_SCRAM_CREDENTIALS, request, EVE)
    assert {each.error_code for each in refused.results} == {ErrorCode.CLUSTER_AUTHORIZATION_FAILED}
    hidden = server.ask(ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS, named, EVE)
    assert hidden.error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    assert hidden.results == ()


def quotas(user: str | None, *, validate_only: bool = False, **values: float | None) -> AlterClientQuotasRequest:
    ops = tuple(OpData(key=key, value=value or 0.0, remove=value is None) for key, value in values.items())
    entry = AlterClientQuotasRequestEntryData(entity=(EntityData(entity_type="user", entity_name=user),), ops=ops)
    return AlterClientQuotasRequest(entries=(entry,), validate_only=validate_only)


def test_quotas_are_set_described_and_removed(server: Server) -> None:
    def described(*components: ComponentData, strict: bool = True) -> dict[str | None, dict[str, float]]:
        request = DescribeClientQuotasRequest(components=components, strict=strict)
        found = server.ask(ApiKey.DESCRIBE_CLIENT_QUOTAS, request)
        assert found.error_code == 0
        return {each.entity[0].entity_name: {value.key: value.value for value in each.values} for each in found.entries}

    any_user = ComponentData(entity_type="user", match_type=2, match=None)
    default_user = ComponentData(entity_type="user", match_type=1, match=None)
    for request in (
        quotas("ann", producer_byte_rate=1024.0, request_percentage=50.5),
        quotas(None, consumer_byte_rate=7.0),
        quotas("bob", validate_only=True, consumer_byte_rate=7.0),
        quotas("ann", request_percentage=None),
    ):
        assert server.ask(ApiKey.ALTER_CLIENT_QUOTAS, request).entries[0].error_code == 0
    assert described(any_user) == {"ann": {"producer_byte_rate": 1024.0}, None: {"consumer_byte_rate": 7.0}}
    assert described(default_user) == {None: {"consumer_byte_rate": 7.0}}
    refused = server.ask(ApiKey.ALTER_CLIENT_QUOTAS, quotas("ann", producer_byte_rate=-1.0)).entries[0]
    assert refused.error_code == ErrorCode.INVALID_REQUEST
    assert refused.entity[0].entity_name == "ann"
    refused = server.ask(ApiKey.ALTER_CLIENT_QUOTAS, quotas("ann", producer_byte_rate=1.0), EVE).entries[0]
    assert refused.error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED


@pytest.mark.parametrize(
    ("component", "code"),
    [
        (ComponentData(entity_type="group", match_type=2, match=None), ErrorCode.UNSUPPORTED_VERSION),
        (ComponentData(entity_type="", match_type=2, match=None), ErrorCode.INVALID_REQUEST),
        (ComponentData(entity_type="user", match_type=0, match=None), ErrorCode.INVALID_REQUEST),
        (ComponentData(entity_type="user", match_type=1, match="ann"), ErrorCode.INVALID_REQUEST),
        (ComponentData(entity_type="user", match_type=9, match=None), ErrorCode.INVALID_REQUEST),
    ],
)
def test_filter_that_a_broker_refuses_is_refused(server: Server, component: ComponentData, code: ErrorCode) -> None:
    request = DescribeClientQuotasRequest(components=(component,))
    assert server.ask(ApiKey.DESCRIBE_CLIENT_QUOTAS, request).error_code == code
    refused = server.ask(ApiKey.DESCRIBE_CLIENT_QUOTAS, request, EVE)
    assert refused.error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED


def test_listener_without_sasl_says_so(server: Server) -> None:
    illegal = ErrorCode.ILLEGAL_SASL_STATE
    assert server.ask(ApiKey.SASL_HANDSHAKE, SaslHandshakeRequest(mechanism="PLAIN")).error_code == illegal
    assert server.ask(ApiKey.SASL_AUTHENTICATE, SaslAuthenticateRequest(auth_bytes=b"x")).error_code == illegal
