"""The server's guard: when it is on, what it decides, what it logs; and where a server may listen."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
from builders.adopted_roots import ID_A, ID_B, append_to_metadata_log, config_record, copy_of, write_metadata_log
from fakes.clock import Clock

from pyspark_kafkalog import LogDir
from pyspark_kafkalog.errors import InvalidOptionError
from pyspark_kafkalog.metadata.acl import (
    Acl,
    AclFilter,
    AclOperation,
    PatternType,
    PermissionType,
    ResourceType,
    acl_record,
)
from pyspark_kafkalog.metadata.messages.metadata_records import (
    AccessControlEntryRecord,
    MetadataRecord,
    NoOpRecord,
    RemoveAccessControlEntryRecord,
)
from pyspark_kafkalog.metadata.root_format import METADATA_DIR
from pyspark_kafkalog.root.brokers import image
from pyspark_kafkalog.root.brokers.image import GrowingMetadata
from pyspark_kafkalog.server.config import Address, SecuritySettings, ServerConfig, check_listener, check_mechanisms
from pyspark_kafkalog.server.context import ServerContext, Session
from pyspark_kafkalog.server.security.acls import AclGuard, authorized_operations
from pyspark_kafkalog.server.security.sasl import SaslSettings
from pyspark_kafkalog.server.security.tls import ClientAuth, TlsSettings

TOPIC, READ = ResourceType.TOPIC, AclOperation.READ


def acl(name: str = "orders", principal: str = "User:ann", host: str = "*") -> Acl:
    return Acl(TOPIC, name, PatternType.LITERAL, principal, host, READ, PermissionType.ALLOW)


@pytest.fixture
def log_dir(tmp_path: Path) -> LogDir:
    return LogDir.create(tmp_path / "log")


def session(principal: str = "User:ann", host: str = "10.0.0.1") -> Session:
    return Session(host, 1, principal=principal, is_authenticated=True)


def test_everything_is_allowed_until_entries_super_users_or_an_authorizer_are_set(log_dir: LogDir) -> None:
    guard = AclGuard(log_dir.root, monotonic_ms=Clock(0))
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
    guard = AclGuard(log_dir.root, monotonic_ms=Clock(0))
    assert guard.allows(session(), READ, TOPIC, "orders")
    assert guard.allows_any(session(), READ, TOPIC)
    assert not guard.allows(session(host="10.0.0.2"), READ, TOPIC, "orders")
    assert not guard.allows_any(session(host="10.0.0.2"), READ, TOPIC)


def test_super_user_may_do_everything_beside_entries(log_dir: LogDir) -> None:
    log_dir.access_control().add([acl()])
    log_dir.alter_broker_configs(add={"super.users": "User:root;User:CN=app,O=Example"})
    guard = AclGuard(log_dir.root, monotonic_ms=Clock(0))
    assert guard.allows(session("User:root"), AclOperation.ALTER, ResourceType.CLUSTER, "kafka-cluster")
    assert guard.allows(session("User:CN=app,O=Example"), READ, TOPIC, "x")


def test_denials_are_logged_a_bounded_number_a_second(log_dir: LogDir, caplog: pytest.LogCaptureFixture) -> None:
    log_dir.access_control().add([acl()])
    clock = Clock(0)
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
    guard = AclGuard(log_dir.root, monotonic_ms=Clock(0))
    context = cast("ServerContext", SimpleNamespace(guard=guard))
    with caplog.at_level(logging.INFO, "kafka.authorizer.logger"):
        assert not guard.allows(session("User:eve"), READ, TOPIC, "orders", logs_denial=False)
        assert authorized_operations(context, session(), TOPIC, "orders", asked=True) == (
            1 << AclOperation.READ | 1 << AclOperation.DESCRIBE
        )
        assert caplog.messages == []
        assert not guard.allows(session("User:eve"), READ, TOPIC, "orders")
    assert len(caplog.messages) == 1


@pytest.fixture
def broker_root(tmp_path: Path) -> Path:
    """A broker's directory with one topic, and a metadata log of one record."""
    root = copy_of("codecs-none", tmp_path)
    write_metadata_log(root, [NoOpRecord()])
    return root


def broker_guard(root: Path, **options: bool) -> tuple[AclGuard, Callable[[], None]]:
    """A guard over a broker's directory, and what looks for changes of it."""
    opened = LogDir.open(root).root
    metadata = GrowingMetadata(opened.directories)
    guard = AclGuard(opened, monotonic_ms=Clock(0), broker_metadata=lambda: metadata.state, **options)
    return guard, lambda: metadata.refresh(opened.directories)


def test_entries_of_a_brokers_directory_are_those_of_its_growing_metadata_log(
    broker_root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    guard, refresh = broker_guard(broker_root)
    assert guard.allows(session(), READ, TOPIC, "orders")
    append_to_metadata_log(broker_root, 1, [acl_record(ID_A, acl())])
    refresh()
    assert guard.allows(session(), READ, TOPIC, "orders")
    assert not guard.allows(session("User:eve"), READ, TOPIC, "orders")
    append_to_metadata_log(broker_root, 2, [RemoveAccessControlEntryRecord(id=ID_A), acl_record(ID_B, acl("others"))])
    refresh()
    assert not guard.allows(session(), READ, TOPIC, "orders")
    before = guard._current()
    with monkeypatch.context() as patch:
        patch.delattr(image, "read_broker_metadata")
        append_to_metadata_log(broker_root, 4, [NoOpRecord()])
        refresh()
    assert guard._current() is before


def test_metadata_log_that_is_gone_leaves_the_entries_as_they_were(broker_root: Path) -> None:
    append_to_metadata_log(broker_root, 1, [acl_record(ID_A, acl())])
    guard, refresh = broker_guard(broker_root)
    shutil.rmtree(broker_root / METADATA_DIR)
    with pytest.raises(FileNotFoundError):
        refresh()
    assert not guard.allows(session("User:eve"), READ, TOPIC, "orders")


@pytest.mark.parametrize(
    "record",
    [
        config_record(4, "", "super.users", "User:root"),
        config_record(4, "1", "authorizer.class.name", "some.Authorizer"),
        AccessControlEntryRecord(
            id=ID_A,
            resource_type=TOPIC,
            resource_name="orders",
            pattern_type=PatternType.LITERAL,
            principal="User:ann",
            host="*",
            operation=99,
            permission_type=PermissionType.DENY,
        ),
        bytes([1, AccessControlEntryRecord.schema().api_key, 77]),
    ],
    ids=["super users", "authorizer", "entry of a later version", "record of a later version"],
)
def test_directory_of_a_cluster_with_an_authorizer_and_no_readable_entry_is_open_only_when_asked(
    broker_root: Path, record: MetadataRecord | bytes
) -> None:
    append_to_metadata_log(broker_root, 1, [record])
    guard, _ = broker_guard(broker_root)
    assert not guard.allows(session("User:root"), READ, TOPIC, "orders")
    guard, _ = broker_guard(broker_root, is_insecure=True)
    assert guard.allows(session(), READ, TOPIC, "orders")


def test_damaged_metadata_log_may_hide_entries(broker_root: Path) -> None:
    append_to_metadata_log(broker_root, 1, [acl_record(ID_A, acl())])
    log = broker_root / METADATA_DIR / "00000000000000000000.log"
    damaged = bytearray(log.read_bytes())
    damaged[-1] ^= 1
    log.write_bytes(damaged)
    assert not broker_guard(broker_root)[0].allows(session(), READ, TOPIC, "orders")


def test_record_of_a_later_version_that_is_no_entry_hides_none(broker_root: Path) -> None:
    append_to_metadata_log(broker_root, 1, [bytes([1, 127, 0])])
    assert broker_guard(broker_root)[0].allows(session(), READ, TOPIC, "orders")


def test_listener_that_relies_on_entries_allows_nothing_without_them(log_dir: LogDir) -> None:
    guard = AclGuard(log_dir.root, monotonic_ms=Clock(0), stays_closed=True)
    assert not guard.allows(session(), READ, TOPIC, "orders")
    log_dir.access_control().add([acl()])
    assert guard.allows(session(), READ, TOPIC, "orders")
    log_dir.access_control().remove(AclFilter())
    assert not guard.allows(session(), READ, TOPIC, "orders")


@pytest.mark.parametrize(
    ("settings", "is_refused"),
    [
        ({}, True),
        ({"super.users": "User:ANONYMOUS"}, True),
        ({"authorizer.class.name": "x", "allow.everyone.if.no.acl.found": "true"}, True),
        ({"authorizer.class.name": "x"}, False),
        ({"super.users": "User:root"}, False),
    ],
)
def test_tls_alone_protects_a_root_that_checks_entries(
    log_dir: LogDir, settings: dict[str, str], is_refused: bool
) -> None:
    log_dir.alter_broker_configs(add=settings)
    tls = TlsSettings(Path("cert"), Path("key"))
    everywhere = ServerConfig(listen=Address("0.0.0.0", 0), security=SecuritySettings(tls=tls))
    with pytest.raises(InvalidOptionError, match="--insecure") if is_refused else nullcontext():
        everywhere.check(log_dir.root)
    replace(everywhere, listen=Address("127.0.0.1", 0)).check(log_dir.root)
    replace(everywhere, security=SecuritySettings(tls=tls, is_insecure=True)).check(log_dir.root)
    replace(everywhere, security=SecuritySettings(tls=tls, sasl=SaslSettings(("PLAIN",)))).check(log_dir.root)
    for client_auth in ClientAuth:
        certificates = TlsSettings(Path("cert"), Path("key"), Path("ca"), client_auth)
        config = replace(everywhere, security=SecuritySettings(tls=certificates))
        assert (config.open_host is None) == (client_auth is ClientAuth.REQUIRED)


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
