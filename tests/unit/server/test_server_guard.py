"""The server's guard: when it is on, what it decides, what it logs; and where a server may listen."""

from __future__ import annotations

import logging
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from pyspark_kafkalog import LogDir
from pyspark_kafkalog.errors import InvalidOptionError
from pyspark_kafkalog.metadata.access.acl import Acl, AclOperation, PatternType, PermissionType, ResourceType
from pyspark_kafkalog.server.authorized_operations import authorized_operations
from pyspark_kafkalog.server.context import ServerContext, Session
from pyspark_kafkalog.server.security.guard import AclGuard
from pyspark_kafkalog.server.security.listener import check_listener, check_mechanisms

TOPIC, READ = ResourceType.TOPIC, AclOperation.READ


def acl(name: str = "orders", principal: str = "User:ann", host: str = "*") -> Acl:
    return Acl(TOPIC, name, PatternType.LITERAL, principal, host, READ, PermissionType.ALLOW)


class Clock:
    now_ms = 0

    def __call__(self) -> int:
        return self.now_ms


@pytest.fixture
def log_dir(tmp_path: Path) -> LogDir:
    return LogDir.create(tmp_path / "log")


def session(principal: str = "User:ann", host: str = "10.0.0.1") -> Session:
    return Session(host, 1, principal=principal, is_authenticated=True)


def test_everything_is_allowed_until_entries_super_users_or_an_authorizer_are_set(log_dir: LogDir) -> None:
    guard = AclGuard(log_dir.root, monotonic_ms=Clock())
    assert not guard.is_on
    assert guard.allows(session(), READ, TOPIC, "orders")
    assert guard.allows_any(session(), READ, TOPIC)
    for name, value in (("authorizer.class.name", "some.Authorizer"), ("super.users", "User:root")):
        log_dir.alter_broker_configs(add={name: value})
        assert guard.is_on
        assert not guard.allows(session(), READ, TOPIC, "orders")
        log_dir.alter_broker_configs(delete=[name])
        assert not guard.is_on
    log_dir.access_control().add([acl()])
    assert guard.is_on
    assert guard.allows(session(), READ, TOPIC, "orders")
    assert not guard.allows(session(), READ, TOPIC, "others")
    assert not guard.allows(session("User:bob"), READ, TOPIC, "orders")


def test_entries_of_one_host_apply_to_connections_from_it(log_dir: LogDir) -> None:
    log_dir.access_control().add([acl(host="10.0.0.1")])
    guard = AclGuard(log_dir.root, monotonic_ms=Clock())
    assert guard.allows(session(), READ, TOPIC, "orders")
    assert guard.allows_any(session(), READ, TOPIC)
    assert not guard.allows(session(host="10.0.0.2"), READ, TOPIC, "orders")
    assert not guard.allows_any(session(host="10.0.0.2"), READ, TOPIC)


def test_super_user_may_do_everything_beside_entries(log_dir: LogDir) -> None:
    log_dir.access_control().add([acl()])
    log_dir.alter_broker_configs(add={"super.users": "User:root;User:CN=app,O=Example"})
    guard = AclGuard(log_dir.root, monotonic_ms=Clock())
    assert guard.allows(session("User:root"), AclOperation.ALTER, ResourceType.CLUSTER, "kafka-cluster")
    assert guard.allows(session("User:CN=app,O=Example"), READ, TOPIC, "x")


def test_denials_are_logged_a_bounded_number_a_second(log_dir: LogDir, caplog: pytest.LogCaptureFixture) -> None:
    log_dir.access_control().add([acl()])
    clock = Clock()
    guard = AclGuard(log_dir.root, monotonic_ms=clock)
    with caplog.at_level(logging.INFO, "kafka.authorizer.logger"):
        for _ in range(100):
            guard.allows(session("User:eve"), READ, TOPIC, "orders")
        assert len(caplog.messages) == 20
        clock.now_ms = 1_000
        guard.allows(session("User:eve"), READ, TOPIC, "orders")
        guard.allows(session(), READ, TOPIC, "orders")
    assert len(caplog.messages) == 21
    assert caplog.messages[-1] == (
        "Principal = User:eve is Denied operation = READ from host = 10.0.0.1 on resource = Topic:LITERAL:orders "
        "(80 lines before this one were left out)"
    )


def test_denial_that_refuses_nothing_is_not_logged(log_dir: LogDir, caplog: pytest.LogCaptureFixture) -> None:
    log_dir.access_control().add([acl()])
    guard = AclGuard(log_dir.root, monotonic_ms=Clock())
    context = cast("ServerContext", SimpleNamespace(guard=guard))
    with caplog.at_level(logging.INFO, "kafka.authorizer.logger"):
        assert not guard.allows(session("User:eve"), READ, TOPIC, "orders", logs_denial=False)
        assert authorized_operations(context, session(), TOPIC, "orders", asked=True) == (
            1 << AclOperation.READ | 1 << AclOperation.DESCRIBE
        )
        assert caplog.messages == []
        assert not guard.allows(session("User:eve"), READ, TOPIC, "orders")
    assert len(caplog.messages) == 1


def check(host: str, **settings: bool) -> None:
    defaults = {"has_tls": False, "has_client_certificates": False, "has_sasl": False, "is_insecure": False}
    names = {"127.0.0.1": ["127.0.0.1"], "localhost": ["127.0.0.1", "::1"], "mixed": ["127.0.0.1", "10.0.0.1"]}

    def resolve(name: str) -> list[str]:
        if name == "gone":
            raise OSError(name)
        return names.get(name, [name])

    check_listener(host, resolve=resolve, **{**defaults, **settings})


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.8.8", "localhost", "::1"])
def test_open_listener_is_allowed_on_this_machine(host: str) -> None:
    check(host)


@pytest.mark.parametrize("host", ["", "0.0.0.0", "10.0.0.1", "::", "mixed", "gone", "fe80::1%eth0"])
def test_open_listener_for_other_machines_needs_tls_sasl_or_insecure(host: str) -> None:
    with pytest.raises(InvalidOptionError, match="--insecure"):
        check(host)
    check(host, has_tls=True)
    check(host, has_sasl=True)
    check(host, is_insecure=True)


def test_client_certificates_and_plain_need_tls() -> None:
    with pytest.raises(InvalidOptionError, match="--tls-cert"):
        check("127.0.0.1", has_client_certificates=True)
    with pytest.raises(InvalidOptionError, match="PLAIN"):
        check_mechanisms(["PLAIN"], has_tls=False, is_insecure=False)
    check_mechanisms(["PLAIN"], has_tls=True, is_insecure=False)
    check_mechanisms(["PLAIN"], has_tls=False, is_insecure=True)
    check_mechanisms(["SCRAM-SHA-256"], has_tls=False, is_insecure=False)
