"""`kafkalog serve`: let Kafka clients read and write a log directory, without a broker.

Producers, consumers, Kafka Streams, Connect and Kafka's own tools connect to it as to a broker. A log directory that
does not exist is created. A broker's directory, stopped or running, is served read-only. Several servers may serve one
log directory, beside Spark jobs and maintenance; each of them can be killed at any time. The address is printed once
the server listens. SIGTERM, SIGHUP and Ctrl-C end it after its last commit, with exit code 0.

examples:
  kafkalog serve --path /data/log --listen 127.0.0.1:9092
  kafkalog serve --path /data/log --listen 127.0.0.1:9092 --workers 4
  kafkalog serve --path /data/log --listen 0.0.0.0:9093 --advertise log.example.com:9093 \\
    --tls-cert server.pem --tls-key server.key --sasl SCRAM-SHA-256
  kafkalog serve --path s3://bucket/log --listen 127.0.0.1:9092
  kafkalog serve --path /var/lib/kafka/data --listen 127.0.0.1:9092 --read-only
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import errno
import gc
import os
import sys
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark_kafkalog.errors import LogDirError
from pyspark_kafkalog.maintenance.jobs.tasks import ending_signals
from pyspark_kafkalog.root.protocol import Root
from pyspark_kafkalog.server.security.certificates import DEFAULT_RULES
from pyspark_kafkalog.server.security.tls import ClientAuth, TlsSettings
from pyspark_kafkalog.tools.command import UsageError, add_path_or_remote_storage, add_read_to_log_end, one_line
from pyspark_kafkalog.tools.running import add_log_format, open_log_dir, set_up_log

if TYPE_CHECKING:
    from pyspark_kafkalog.server.config import Address, SecuritySettings, ServerConfig

#: How often a worker looks whether the process that started it still runs.
_SUPERVISOR_POLL_S = 1.0
_NOT_WRITABLE = frozenset({errno.EROFS, errno.EACCES, errno.EPERM})
#: New objects until the youngest are collected; such collections until the next older generation is.
_COLLECTION_THRESHOLDS = (20_000, 10, 20)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What to serve, and how."""
    add_path_or_remote_storage(parser)
    add_read_to_log_end(parser)
    parser.add_argument(
        "--listen", default="127.0.0.1:9092", metavar="HOST:PORT", help="listen there (default: 127.0.0.1:9092)"
    )
    parser.add_argument(
        "--advertise", metavar="HOST:PORT", help="the address that clients connect to (default: where it listens)"
    )
    parser.add_argument(
        "--workers",
        type=int,
        default=1,
        metavar="N",
        help="processes, each with a core of its own; they share the port of --listen, and have the N ports after it "
        "(default: 1)",
    )
    parser.add_argument(
        "--status", metavar="HOST:PORT", help="serve /metrics for Prometheus and /health there (default: nowhere)"
    )
    add_log_format(parser)
    # What a worker is started with: the address that all of them share, and the process that started it.
    parser.add_argument("--shared", metavar="HOST:PORT", help=argparse.SUPPRESS)
    parser.add_argument("--supervisor", type=int, metavar="PID", help=argparse.SUPPRESS)
    parser.add_argument(
        "--node-id", type=int, metavar="ID", help="the server's broker id (default: made from its address)"
    )
    parser.add_argument("--rack", metavar="RACK", help="the zone of the server, for clients that prefer one")
    parser.add_argument("--read-only", action="store_true", help="refuse all writes")
    parser.add_argument(
        "--flush",
        choices=("fsync", "os"),
        default="fsync",
        help="answer a write when it is on disk, or when the operating system has it, as Kafka does (default: fsync)",
    )
    _add_security(parser)


def _add_security(parser: argparse.ArgumentParser) -> None:
    """Who may connect."""
    group = parser.add_argument_group(
        "security",
        "without client certificates, SASL or access control entries the server listens on this machine only",
    )
    group.add_argument("--tls-cert", metavar="FILE", type=Path, help="PEM file of the server's certificate and chain")
    group.add_argument("--tls-key", metavar="FILE", type=Path, help="PEM file of its key")
    group.add_argument(
        "--tls-client-ca", metavar="FILE", type=Path, help="PEM file of the authorities of client certificates"
    )
    group.add_argument(
        "--tls-client-auth",
        choices=("none", "requested", "required"),
        help="client certificates (default: required with --tls-client-ca)",
    )
    group.add_argument(
        "--tls-principal-mapping-rules",
        metavar="RULES",
        help="who a client is by the subject of its certificate, such as 'RULE:^CN=(.*?),.*$/$1/L,DEFAULT': Kafka's "
        "ssl.principal.mapping.rules (default: DEFAULT, the subject itself)",
    )
    group.add_argument(
        "--sasl",
        metavar="MECHANISM[,...]",
        help="SCRAM-SHA-256, SCRAM-SHA-512, PLAIN; users are made by kafkalog configs --entity-type users",
    )
    group.add_argument(
        "--max-reauth-ms",
        type=int,
        default=0,
        metavar="MS",
        help="clients authenticate again so often (default: never)",
    )
    group.add_argument("--insecure", action="store_true", help="let everybody in, and passwords travel without TLS")
    group.add_argument("--max-connections", type=int, metavar="N", help="of all clients together (default: 10000)")
    group.add_argument(
        "--max-connections-per-ip", type=int, metavar="N", help="of one host (default: three quarters of all)"
    )


def run(options: argparse.Namespace) -> int:
    """Serve until a signal."""
    from pyspark_kafkalog.server.config import Address, ServerConfig

    set_up_log(options.log_format)
    listen = Address.parse(options.listen)
    security = _security(options)
    security.check(listen.host)
    if options.workers < 1:
        raise UsageError(f"--workers must be at least 1, not {options.workers}")
    if options.workers > 1:
        _check_workers(options)
        shared = ServerConfig(listen=listen, read_only=options.read_only, security=security)
        with _naming_read_only(options):
            root = _root(options, shared)  # a worker would end for its error again and again
        if shared.open_host is not None:
            shared.check(root)
        from pyspark_kafkalog.server.workers import supervise

        supervise(options.workers, listen, partial(_worker_command, has_fixed_ports=listen.port > 0))
        return 0
    config = ServerConfig(
        listen=listen,
        shared=None if options.shared is None else Address.parse(options.shared),
        status=None if options.status is None else Address.parse(options.status),
        advertised=None if options.advertise is None else Address.parse(options.advertise),
        node_id=options.node_id,
        rack=options.rack,
        flush=options.flush,
        read_only=options.read_only,
        security=security,
    )
    with _naming_read_only(options):
        asyncio.run(_serve(_root(options, config), config, options.supervisor))
    return 0


@contextlib.contextmanager
def _naming_read_only(options: argparse.Namespace) -> Iterator[None]:
    """Let the error of a place that cannot be written name the option with which it can be served."""
    try:
        yield
    except OSError as error:
        causes = (error, error.__cause__)
        is_denied = any(isinstance(each, OSError) and each.errno in _NOT_WRITABLE for each in causes)
        if options.read_only or not is_denied or str(options.path) not in str(error):
            raise
        raise LogDirError(f"{one_line(error)}; a place that cannot be written is served with --read-only") from error


def _security(options: argparse.Namespace) -> SecuritySettings:
    """The security that the options ask for. Raises UsageError."""
    from pyspark_kafkalog.server.config import ConnectionSettings, SecuritySettings
    from pyspark_kafkalog.server.security.sasl import SaslSettings

    tls = None
    if (options.tls_cert is None) != (options.tls_key is None):
        raise UsageError("--tls-cert and --tls-key belong together")
    if options.tls_cert is not None:
        default = ClientAuth.NONE if options.tls_client_ca is None else ClientAuth.REQUIRED
        client_auth = default if options.tls_client_auth is None else ClientAuth(options.tls_client_auth)
        mapping = options.tls_principal_mapping_rules or DEFAULT_RULES
        tls = TlsSettings(options.tls_cert, options.tls_key, options.tls_client_ca, client_auth, mapping)
    elif any((options.tls_client_ca, options.tls_client_auth, options.tls_principal_mapping_rules)):
        raise UsageError("the options --tls-client-* and --tls-principal-* need --tls-cert and --tls-key")
    sasl = None
    if options.sasl is not None:
        mechanisms = tuple(each.strip() for each in options.sasl.split(","))
        sasl = SaslSettings(mechanisms, max_reauth_ms=options.max_reauth_ms)
    elif options.max_reauth_ms:
        raise UsageError("--max-reauth-ms needs --sasl: only clients with SASL authenticate again")
    limits = {"connections_max": options.max_connections, "per_host_max": options.max_connections_per_ip}
    return SecuritySettings(
        tls=tls,
        sasl=sasl,
        is_insecure=options.insecure,
        connections=ConnectionSettings(**{name: value for name, value in limits.items() if value is not None}),
    )


def _check_workers(options: argparse.Namespace) -> None:
    """Raise UsageError for options that only one server can have."""
    for name in ("advertise", "node_id", "status"):
        if getattr(options, name) is not None:
            raise UsageError(f"--{name.replace('_', '-')} is one server's: leave it out with --workers")


def _worker_command(number: int, shared: Address, *, has_fixed_ports: bool) -> list[str]:
    """The command line of this process, changed to that of a worker: a port of its own, and the shared address."""
    own = replace(shared, port=shared.port + 1 + number if has_fixed_ports else 0)
    return [
        sys.executable,
        "-m",
        "pyspark_kafkalog",
        *sys.argv[1:],
        *("--workers", "1", "--listen", str(own), "--shared", str(shared), "--supervisor", str(os.getpid())),
    ]


def _root(options: argparse.Namespace, config: ServerConfig) -> Root:
    """The root to serve; one that does not exist is created, if it may be written."""
    from pyspark_kafkalog.server.run import open_served_root

    is_brokers = options.path is None or options.remote_storage is not None or options.read_to_log_end
    if is_brokers or config.read_only or "," in str(options.path):
        return open_log_dir(options).root
    return open_served_root(options.path, config)


def _collect_seldom() -> None:
    """Have what a server consists of left out of garbage collections, and those begin after more new objects.

    A full collection stops all threads. With the modules of a server it traverses 300,000 objects, which takes 0.1 s of
    a core, and a request of a hundred thousand elements causes several. Nearly all that a request takes is freed
    without any collection, by counting references.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(*_COLLECTION_THRESHOLDS)


async def _serve(root: Root, config: ServerConfig, supervisor: int | None) -> None:
    from pyspark_kafkalog.server.run import Server

    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in ending_signals():
        loop.add_signal_handler(number, stopped.set)
    server = Server(root, config)
    address = await server.start()
    _collect_seldom()
    if supervisor is None:
        sys.stdout.write(f"{address}\n")
        sys.stdout.flush()
    while not stopped.is_set() and supervisor in (None, os.getppid()):
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(stopped.wait(), None if supervisor is None else _SUPERVISOR_POLL_S)
    await server.stop()
