"""`kafkalog serve` while it runs: one server, or the process that starts several."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import errno
import gc
import logging
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Final

from pyspark_kafkalog.errors import LogDirError
from pyspark_kafkalog.maintenance.jobs.tasks import ending_signals
from pyspark_kafkalog.root.kinds import for_kind
from pyspark_kafkalog.root.protocol import Root, native_or_none
from pyspark_kafkalog.server.config import Address, ConnectionSettings, SecuritySettings, ServerConfig
from pyspark_kafkalog.server.event_loop import monotonic_ms
from pyspark_kafkalog.server.host.process import HostCommits, listening_at, run_until_signal
from pyspark_kafkalog.server.run import Server, open_served_root
from pyspark_kafkalog.server.security.certificates import DEFAULT_RULES
from pyspark_kafkalog.server.security.sasl import SaslSettings
from pyspark_kafkalog.server.security.tls import ClientAuth, TlsSettings
from pyspark_kafkalog.server.workers import HostCommands, supervise
from pyspark_kafkalog.tools.command import UsageError, one_line
from pyspark_kafkalog.tools.output import notice
from pyspark_kafkalog.tools.running import open_log_dir, set_up_log

_LOG: Final = logging.getLogger(__name__)
#: How often a worker looks whether the process that started it still runs.
_SUPERVISOR_POLL_S = 1.0
_NOT_WRITABLE = frozenset({errno.EROFS, errno.EACCES, errno.EPERM})
#: New objects until the youngest are collected; such collections until the next older generation is.
_COLLECTION_THRESHOLDS = (20_000, 10, 20)


def run(options: argparse.Namespace) -> int:
    """Serve until a signal."""
    set_up_log(options.log_format)
    listen = Address.parse(options.listen)
    security = _security(options)
    security.check(listen.host)
    if options.workers < 1:
        raise UsageError(f"--workers must be at least 1, not {options.workers}")
    if options.workers > 1:
        _check_workers(options)
        shared = ServerConfig(listen=listen, flush=options.flush, read_only=options.read_only, security=security)
        with _naming_read_only(options):
            root = _root(options, shared)  # a worker would end for its error again and again
        if shared.open_host is not None:
            shared.check(root)

        _print_banner(root, shared, options, listen, None)
        writes = native_or_none(root) is not None and not options.read_only
        worker = partial(_worker_command, has_fixed_ports=listen.port > 0)
        supervise(options.workers, listen, HostCommands(worker, _committer_command if writes else None))
        return 0
    if options.commits_at is not None:
        commit_for_workers(options)
        return 0
    config = ServerConfig(
        listen=listen,
        shared=None if options.shared is None else Address.parse(options.shared),
        status=None if options.metrics_listen is None else Address.parse(options.metrics_listen),
        advertised=None if options.advertise is None else Address.parse(options.advertise),
        node_id=options.node_id,
        rack=options.rack,
        flush=options.flush,
        commit_interval_ms=options.commit_interval,
        read_only=options.read_only,
        committer=options.committer,
        security=security,
    )
    with _naming_read_only(options):
        root = _root(options, config)
        announce = partial(_print_banner, root, config, options)
        asyncio.run(_serve(root, config, options.supervisor, announce))
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


def _print_banner(
    root: Root, config: ServerConfig, options: argparse.Namespace, address: Address, status_address: Address | None
) -> None:
    """Say on standard error what is served, and how to end it; in a log of JSON as its first message."""
    on_disk = "on disk (fsync)" if config.flush == "fsync" else "with the operating system, as in Kafka (os)"
    kind, flush = for_kind(
        root,
        lambda _: ("a log directory on a file system", on_disk),
        lambda _: ("a log directory in an object store", "in the store"),
        lambda _: ("a Kafka broker's directory", None),
    )
    is_read_only = config.read_only or flush is None
    interval = f", in commits at least {config.commit_interval_ms} ms apart" if config.commit_interval_ms else ""
    workers = f", shared by {options.workers} processes" if options.workers > 1 else ""
    lines = {
        "serving": f"{root.path}, {kind}",
        "clients": f"connect to {address}{workers}",
        "writes": _refusal(root, is_read_only=is_read_only) or f"acknowledged when they are {flush}{interval}",
        "security": _security_text(config.security),
        "metrics": "none; --metrics-listen HOST:PORT" if status_address is None else f"http://{status_address}/metrics",
        "stop": "Ctrl-C or SIGTERM; the last commit is finished first",
    }
    if options.log_format == "json":
        _LOG.info("%s", "; ".join(f"{name}: {text}" for name, text in lines.items()))
        return
    for name, text in lines.items():
        notice(f"{name:<9} {text}")


def _refusal(root: Root, *, is_read_only: bool) -> str:
    """Why writes are refused; empty if they are not."""
    following = None if is_read_only else root.native().store.image.following
    if following is not None:
        return f"refused until kafkalog promote: the log directory follows {following.leader}"
    return "refused: read-only" if is_read_only else ""


def _security_text(security: SecuritySettings) -> str:
    parts = []
    if security.tls is not None:
        auth = security.tls.client_auth
        parts.append("TLS" if auth is ClientAuth.NONE else f"TLS, client certificates {auth.value}")
    if security.sasl is not None:
        parts.append(f"SASL {', '.join(security.sasl.mechanisms)}")
    reach = "everybody may connect (--insecure)" if security.is_insecure else "for clients on this machine"
    return "; ".join(parts) or f"none, {reach}"


def _security(options: argparse.Namespace) -> SecuritySettings:
    """The security that the options ask for. Raises UsageError."""
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
    for name in ("advertise", "node_id", "metrics_listen"):
        if getattr(options, name) is not None:
            raise UsageError(f"--{name.replace('_', '-')} is one server's: leave it out with --workers")


def _worker_command(number: int, shared: Address, committer: Path | None, *, has_fixed_ports: bool) -> list[str]:
    """The command line of this process, changed to that of a worker: a port of its own, and the shared address."""
    own = replace(shared, port=shared.port + 1 + number if has_fixed_ports else 0)
    place = () if committer is None else ("--committer", str(committer))
    return _own_command("--listen", str(own), "--shared", str(shared), *place)


def _committer_command(place: Path) -> list[str]:
    """The command line of this process, changed to that of the workers' committer, which listens at `place`."""
    return _own_command("--commits-at", str(place))


def _own_command(*changes: str) -> list[str]:
    command = [sys.executable, "-m", "pyspark_kafkalog", *sys.argv[1:]]
    return [*command, "--workers", "1", *changes, "--supervisor", str(os.getpid())]


def commit_for_workers(options: argparse.Namespace) -> None:
    """Be the committer of the workers that connect to the socket of `options`, until a signal."""
    config = ServerConfig(flush=options.flush, committer=options.commits_at)
    with listening_at(options.commits_at) as listener:
        commits = HostCommits(
            listener,
            lambda: open_served_root(options.path, config).native().committer(flush=options.flush),
            monotonic_ms=monotonic_ms,
            interval_ms=options.commit_interval,
            is_orphaned=lambda: os.getppid() != options.supervisor,
        )
        _collect_seldom()
        run_until_signal(commits, ending_signals())


def _root(options: argparse.Namespace, config: ServerConfig) -> Root:
    """The root to serve; one that does not exist is created, if it may be written."""
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


async def _serve(
    root: Root, config: ServerConfig, supervisor: int | None, announce: Callable[[Address, Address | None], None]
) -> None:
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in ending_signals():
        loop.add_signal_handler(number, stopped.set)
    server = Server(root, config)
    address = await server.start()
    _collect_seldom()
    if supervisor is None:
        announce(address, server.status_address)
        sys.stdout.write(f"{address}\n")
        sys.stdout.flush()
    while not stopped.is_set() and supervisor in (None, os.getppid()):
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(stopped.wait(), None if supervisor is None else _SUPERVISOR_POLL_S)
    await server.stop()
