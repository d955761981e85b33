"""The connection policy of a running server, seen through sockets: who is let in, who is closed out, and how fast."""

from __future__ import annotations

import contextlib
import random
import socket
import ssl
import struct
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from builders.adopted_roots import ID_A, append_to_metadata_log, copy_of, write_metadata_log
from builders.certificates import Authority, common_name
from fakes.scram_client import ScramClient
from kafka_processes.served import serve
from patience import PATIENCE_S, wait_until

from pyspark_kafkalog import LogDir
from pyspark_kafkalog.errors import InvalidOptionError
from pyspark_kafkalog.metadata.acl import Acl, AclOperation, PatternType, PermissionType, ResourceType, acl_record
from pyspark_kafkalog.metadata.messages.metadata_records import NoOpRecord
from pyspark_kafkalog.metadata.users import (
    IP,
    USER,
    ScramMechanism,
    alter_credentials,
    alter_quotas,
    quota_entity,
    upsertion,
)
from pyspark_kafkalog.server.config import Address, ConnectionSettings, SecuritySettings, ServerConfig
from pyspark_kafkalog.server.security import connection_policy
from pyspark_kafkalog.server.security.sasl import SaslSettings
from pyspark_kafkalog.server.security.tls import ClientAuth, TlsSettings

SASL = SaslSettings(("SCRAM-SHA-256", "PLAIN"), failure_delay_ms=0)
METADATA = struct.pack(">hhih", 3, 4, 1, -1) + struct.pack(">i?", -1, False)
API_VERSIONS = struct.pack(">hhih", 18, 0, 2, -1)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """With the topic orders and the user ann."""
    log_dir = LogDir.create(tmp_path / "log")
    log_dir.create_topic("orders", partitions=1)
    made = upsertion("ann", ScramMechanism.SCRAM_SHA_256, "secret", iterations=4096, rng=random.Random(1))
    log_dir.root.native().commit(lambda image: alter_credentials({}, [], [made])[0], operation="make a user")
    return tmp_path / "log"


def config(**security: Any) -> ServerConfig:
    return ServerConfig(listen=Address("127.0.0.1", 0), security=SecuritySettings(is_insecure=True, **security))


def connect(bootstrap: str) -> socket.socket:
    host, _, port = bootstrap.rpartition(":")
    return socket.create_connection((host, int(port)), timeout=PATIENCE_S)


def send(sock: socket.socket, frame: bytes) -> None:
    sock.sendall(struct.pack(">i", len(frame)) + frame)


def receive(sock: socket.socket) -> bytes | None:
    """The next frame; None if the server has closed the connection."""
    found = bytearray()
    size = 4
    try:
        while len(found) < size:
            data = sock.recv(size - len(found))
            if not data:
                return None
            found += data
            if len(found) == 4 == size:
                size += struct.unpack(">i", found)[0]
    except ConnectionResetError:
        return None
    return bytes(found[4:])


def ask(sock: socket.socket, frame: bytes) -> bytes | None:
    send(sock, frame)
    return receive(sock)


def handshake(version: int, mechanism: str = "SCRAM-SHA-256") -> bytes:
    return struct.pack(">hhihh", 17, version, 7, -1, len(mechanism)) + mechanism.encode()


def test_bare_tokens_authenticate_clients_of_handshake_version_0(root: Path) -> None:
    with serve(root, config(sasl=SASL)) as bootstrap, connect(bootstrap) as sock:
        assert ask(sock, API_VERSIONS) is not None
        answer = ask(sock, handshake(0))
        assert answer is not None
        assert answer[4:6] == b"\0\0"
        client = ScramClient("ann", "secret")
        first = ask(sock, client.first())
        assert first is not None
        last = ask(sock, client.final(first))
        assert last is not None
        assert client.accepts(last)
        assert b"orders" in (ask(sock, METADATA) or b"")


def test_failed_bare_token_and_requests_before_authentication_end_the_connection(root: Path) -> None:
    with serve(root, config(sasl=SASL)) as bootstrap:
        for frames in (
            [METADATA],
            [API_VERSIONS, METADATA],
            [handshake(1), METADATA],
            [handshake(1), handshake(1)],
            [handshake(0, "PLAIN"), b"\0ann\0wrong"],
            [handshake(0, "PLAIN"), METADATA],
            [struct.pack(">hhihi", 36, 0, 1, -1, 3) + b"abc"],
        ):
            with connect(bootstrap) as sock:
                for frame in frames[:-1]:
                    assert ask(sock, frame) is not None
                assert ask(sock, frames[-1]) is None


def test_mechanism_that_is_not_enabled_is_answered_with_those_that_are_and_the_connection_closed(root: Path) -> None:
    with serve(root, config(sasl=SASL)) as bootstrap, connect(bootstrap) as sock:
        answer = ask(sock, handshake(1, "GSSAPI"))
        assert answer is not None
        assert struct.unpack(">h", answer[4:6]) == (33,)
        assert b"SCRAM-SHA-256" in answer
        assert receive(sock) is None


def test_unauthenticated_client_may_send_little(root: Path) -> None:
    with serve(root, config(sasl=SASL)) as bootstrap, connect(bootstrap) as sock:
        sock.sendall(struct.pack(">i", 16 * 1024 + 1))
        assert receive(sock) is None


def test_tls_to_a_plain_port_and_plain_to_a_tls_port_fail_at_once(root: Path, tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    server = authority.sign("server", common_name("server"))
    context = ssl.create_default_context(cafile=str(authority.certificate))
    with serve(root, config()) as bootstrap, connect(bootstrap) as sock, pytest.raises(OSError):  # noqa: PT011
        context.wrap_socket(sock, server_hostname="localhost")
    with serve(root, config(tls=TlsSettings(server.certificate, server.key))) as bootstrap:
        with connect(bootstrap) as sock:
            send(sock, METADATA)
            rest = b"".join(iter(lambda: _received(sock), b""))
            assert len(rest) <= 7  # at most the alert of TLS
        with context.wrap_socket(connect(bootstrap), server_hostname="localhost") as tls:
            assert b"orders" in (ask(tls, METADATA) or b"")


def certificate_of(bootstrap: str, authority: Authority) -> bytes | None:
    """What the server shows a new connection."""
    context = ssl.create_default_context(cafile=str(authority.certificate))
    with context.wrap_socket(connect(bootstrap), server_hostname="localhost") as tls:
        return tls.getpeercert(binary_form=True)


def test_replaced_certificate_is_shown_to_new_connections_without_a_restart(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(connection_policy, "_REFRESH_INTERVAL_MS", 20)
    authority = Authority(tmp_path)
    first, second = (authority.sign(name, common_name("server")) for name in ("server", "renewed"))
    context = ssl.create_default_context(cafile=str(authority.certificate))
    with (
        serve(root, config(tls=TlsSettings(first.certificate, first.key))) as bootstrap,
        context.wrap_socket(connect(bootstrap), server_hostname="localhost") as old,
    ):
        first.certificate.write_bytes(second.certificate.read_bytes())  # the key does not belong to it yet
        wait_until(lambda: "new connections get the last good certificate" in caplog.text)
        assert certificate_of(bootstrap, authority) == first.der
        second.key.replace(first.key)
        wait_until(lambda: certificate_of(bootstrap, authority) == second.der)
        assert b"orders" in (ask(old, METADATA) or b"")


def test_rules_make_principals_of_subjects_and_refuse_the_others(root: Path, tmp_path: Path) -> None:
    LogDir.open(root).alter_broker_configs(add={"super.users": "User:app"})
    authority = Authority(tmp_path)
    server = authority.sign("server", common_name("server"))
    mapping = "RULE:^CN=([a-z]+)$/$1/"
    settings = TlsSettings(server.certificate, server.key, authority.certificate, ClientAuth.REQUIRED, mapping)
    with serve(root, config(tls=settings)) as bootstrap:
        seen = {}
        for name in ("app", "other", "7"):
            own = authority.sign(f"client-{name}", common_name(name))
            context = ssl.create_default_context(cafile=str(authority.certificate))
            context.load_cert_chain(own.certificate, own.key)
            with context.wrap_socket(connect(bootstrap), server_hostname="localhost") as tls:
                answer = ask(tls, METADATA)
                seen[name] = answer if answer is None else b"orders" in answer
    assert seen == {"app": True, "other": False, "7": None}


@pytest.mark.parametrize(("host", "denied"), [("127.0.0.1", "127.0.0.0/8"), ("::1", "::1")])
def test_client_of_a_dual_stack_listener_is_denied_by_the_entry_for_its_address(
    root: Path, host: str, denied: str
) -> None:
    everyone = Acl(
        ResourceType.TOPIC, "orders", PatternType.LITERAL, "User:*", "*", AclOperation.DESCRIBE, PermissionType.ALLOW
    )
    seen = []
    for entry in (everyone, replace(everyone, host=denied, permission=PermissionType.DENY)):
        LogDir.open(root).access_control().add([entry])
        security = SecuritySettings(is_insecure=True)
        with serve(root, ServerConfig(listen=Address("::", 0), security=security)) as bootstrap:
            port = int(bootstrap.rpartition(":")[2])
            with socket.create_connection((host, port), timeout=PATIENCE_S) as client:
                seen.append(b"orders" in (ask(client, METADATA) or b""))
    assert seen == [True, False]


def test_entries_that_a_running_broker_adds_hold_for_connected_clients(tmp_path: Path) -> None:
    served = copy_of("codecs-none", tmp_path)
    write_metadata_log(served, [NoOpRecord()])
    other = Acl(ResourceType.TOPIC, "*", PatternType.LITERAL, "User:ann", "*", AclOperation.READ, PermissionType.ALLOW)
    with serve(served, ServerConfig(listen=Address("127.0.0.1", 0))) as bootstrap, connect(bootstrap) as client:
        assert b"codecs-none" in (ask(client, METADATA) or b"")
        append_to_metadata_log(served, 1, [NoOpRecord()])
        append_to_metadata_log(served, 2, [acl_record(ID_A, other)])
        wait_until(lambda: b"codecs-none" not in (ask(client, METADATA) or b""))


def _received(sock: socket.socket) -> bytes:
    try:
        return sock.recv(100)
    except ConnectionResetError:
        return b""


def test_connection_above_the_limit_is_closed_and_the_others_stay(root: Path) -> None:
    limits = ConnectionSettings(connections_max=2, per_host_max=2)
    with serve(root, config(connections=limits)) as bootstrap, connect(bootstrap) as first:
        assert ask(first, METADATA) is not None
        with connect(bootstrap) as second:
            assert ask(second, METADATA) is not None
            with connect(bootstrap) as third:
                assert receive(third) is None
        assert ask(first, METADATA) is not None


def test_throttled_fetch_is_answered_without_records(root: Path) -> None:
    import pyarrow as pa

    log_dir = LogDir.open(root)
    log_dir.append("orders", pa.table({"value": ["x" * 5_000] * 4}))
    anonymous = quota_entity([(USER, "ANONYMOUS")])
    log_dir.root.native().commit(
        lambda image: alter_quotas({}, anonymous, {"consumer_byte_rate": 100.0}), operation="set a quota"
    )
    fetch = struct.pack(">hhih", 1, 4, 3, -1) + struct.pack(">iiiib", -1, 0, 1, 1 << 20, 0)
    fetch += struct.pack(">ih", 1, 6) + b"orders" + struct.pack(">iiqi", 1, 0, 0, 1 << 20)
    with serve(root, config()) as bootstrap, connect(bootstrap) as sock:
        answer = ask(sock, fetch)
        assert answer is not None
        throttle_ms, topics = struct.unpack(">ii", answer[4:12])
        assert throttle_ms > 100_000
        assert topics == 0


def test_request_beyond_its_time_is_answered_with_the_time_to_wait(root: Path) -> None:
    anonymous = quota_entity([(USER, "ANONYMOUS")])
    LogDir.open(root).root.native().commit(
        lambda image: alter_quotas({}, anonymous, {"request_percentage": 0.0001}), operation="set a quota"
    )
    with serve(root, config()) as bootstrap, connect(bootstrap) as sock:
        answer = ask(sock, METADATA)
        assert answer is not None
        assert struct.unpack(">i", answer[4:8]) == (1_000,)


def test_open_server_refuses_to_listen_for_other_machines(root: Path) -> None:
    open_to_all = ServerConfig(listen=Address("0.0.0.0", 0))
    with pytest.raises(InvalidOptionError, match="--insecure"), serve(root, open_to_all):
        pass
    passwords = ServerConfig(listen=Address("127.0.0.1", 0), security=SecuritySettings(sasl=SASL))
    with pytest.raises(InvalidOptionError, match="PLAIN"), serve(root, passwords):
        pass


def connect_from(bootstrap: str, source: str) -> socket.socket:
    port = int(bootstrap.rpartition(":")[2])
    return socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S, source_address=(source, 0))


@pytest.mark.parametrize("begun", [b"", b"\x16", b"\0\0\0"], ids=["silent", "part of TLS", "part of a size"])
@pytest.mark.parametrize("has_tls", [False, True], ids=["sasl", "tls"])
def test_clients_that_never_say_who_they_are_keep_no_others_out(
    root: Path, tmp_path: Path, has_tls: bool, begun: bytes
) -> None:
    authority = Authority(tmp_path)
    server = authority.sign("server", common_name("server"))
    limits = ConnectionSettings(connections_max=8)
    settings = config(
        connections=limits,
        tls=TlsSettings(server.certificate, server.key) if has_tls else None,
        sasl=None if has_tls else SASL,
    )
    with serve(root, settings) as bootstrap, contextlib.ExitStack() as opened:
        for source in ("127.0.0.2", "127.0.0.3"):
            for _ in range(10):
                silent = opened.enter_context(connect_from(bootstrap, source))
                with contextlib.suppress(ConnectionError):
                    silent.sendall(begun)
        for source in ("127.0.0.1", "127.0.0.2", "127.0.0.1"):
            sock = opened.enter_context(connect_from(bootstrap, source))
            if has_tls:
                context = ssl.create_default_context(cafile=str(authority.certificate))
                context.check_hostname = False
                sock = opened.enter_context(context.wrap_socket(sock))
            assert ask(sock, API_VERSIONS) is not None
            if not has_tls:
                assert ask(sock, handshake(0)) is not None
                client = ScramClient("ann", "secret")
                first = ask(sock, client.first())
                assert first is not None
                assert client.accepts(ask(sock, client.final(first)) or b"")


@pytest.mark.parametrize("listen", ["127.0.0.1", "::"])
def test_connection_above_its_hosts_rate_is_closed_later_and_not_answered(root: Path, listen: str) -> None:
    host = quota_entity([(IP, "127.0.0.2")])
    LogDir.open(root).root.native().commit(
        lambda image: alter_quotas({}, host, {"connection_creation_rate": 1.0}), operation="set a quota"
    )
    served = replace(config(), listen=Address(listen, 0))
    with serve(root, served) as bootstrap, contextlib.ExitStack() as opened:
        first = opened.enter_context(connect_from(bootstrap, "127.0.0.2"))
        assert ask(first, API_VERSIONS) is not None  # by now the server has read the quota
        sockets = [opened.enter_context(connect_from(bootstrap, "127.0.0.2")) for _ in range(25)]
        answers = [ask(each, API_VERSIONS) for each in sockets]
        assert answers[:9].count(None) == 0
        assert answers.count(None) >= 5
        other = opened.enter_context(connect_from(bootstrap, "127.0.0.3"))
        assert ask(other, API_VERSIONS) is not None
