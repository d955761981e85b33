"""The commands that keep running, and promote, with their options; what they do is loaded when they run."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Final

from pyspark_kafkalog.root.native import promote
from pyspark_kafkalog.tools.command import (
    Command,
    add_path,
    add_path_or_remote_storage,
    add_read_to_log_end,
    later,
    local_path,
    positive,
)
from pyspark_kafkalog.tools.running import add_log_format, open_log_dir
from pyspark_kafkalog.units import plural

#: Requests of Kafka's clients time out after 30 s, and some of them take two commits.
_COMMIT_INTERVAL_MAX_MS: Final = 10_000
_SERVE_HELP: Final = """\
`kafkalog serve`: let Kafka clients read and write a log directory, without a broker.

Producers, consumers, Kafka Streams, Connect and Kafka's own tools connect to it as to a broker. A log directory that
does not exist is created. A broker's directory, stopped or running, is served read-only. Several servers may serve one
log directory, beside Spark jobs and maintenance; each of them can be killed at any time. The address is printed once
the server listens; standard error shows what is served, with which security, and how to stop it. SIGTERM, SIGHUP and
Ctrl-C end it after its last commit, with exit code 0.

examples:
  kafkalog serve --path /data/log --listen 127.0.0.1:9092
  kafkalog serve --path /data/log --listen 127.0.0.1:9092 --workers 4
  kafkalog serve --path /data/log --listen 0.0.0.0:9093 --advertise log.example.com:9093 \\
    --tls-cert server.pem --tls-key server.key --sasl SCRAM-SHA-256
  kafkalog serve --path s3://bucket/log --listen 127.0.0.1:9092
  kafkalog serve --path /var/lib/kafka/data --listen 127.0.0.1:9092 --read-only
"""


_FOLLOW_HELP: Final = """\
`kafkalog follow`: keep a log directory as a replica of a Kafka cluster, or of another log directory.

Batches are copied as they are: with offsets, leader epochs, codecs, producers, transactions; topics with their ids,
partitions and configurations; groups with their offsets; access control entries and quotas. Spark reads the copy like
any log directory, while it follows. No other process may write to it before `kafkalog promote`.

The leader is a list of brokers, or the path or URL of a log directory, also of a broker's. The log directory of --path
is created if it does not exist. It gets a cluster id of its own, not the leader's: clients and followers recognize a
cluster by that id, and these are two; `kafkalog export` gives a copy for a broker the id that it needs.

The command resumes after any crash at the last commit. A new copy whose leader does not answer within five seconds is
not created; an existing one waits as long as the leader or the disk is not available. With --once the command ends when
all is copied that the leader had at the start, or after a minute without progress. SIGTERM and Ctrl-C end it, with what
was fetched committed.

With --spark, as in jobs/follow.py, tasks of Spark fetch the partitions that are far behind, in ranges of offsets. They
write to files in the log directory, or put objects into its store; the driver commits them in order.

Where the leader has lost records that were copied, or has others, the partition is stopped and reported, or with
--on-divergence truncate cut back to where both agree. What retention has deleted at the leader before it was copied is
reported as a gap.

A log directory that has topics and takes writes, also one that was promoted, follows only with --demote: it refuses
writes from then on.

With --controllers (the listener of the controllers, not of the brokers) also the cluster's metadata log is copied, byte
for byte, to a directory of its own: `kafkalog topics`, `configs`, `acls` and `metadata-quorum` answer from it.

examples:
  kafkalog follow --from broker1:9092,broker2:9092 --path /data/copy --topic 'orders|payments'
  kafkalog follow --from broker1:9093 --command-config client.properties --path s3://bucket/copy
  kafkalog follow --from /data/log --path s3://bucket/second-place --once --report follow.json
  kafkalog follow --from broker1:9092 --path /data/copy --controllers controller1:9093 --metadata-path /data/metadata
  kafkalog follow --from /data/new-leader --path /data/former-leader --demote --on-divergence truncate
  kafkalog follow --from broker1:9092 --path /data/copy --max-rate 50000000 --metrics-listen 127.0.0.1:9309
"""


_PROMOTE_HELP: Final = """\
`kafkalog promote`: let a log directory that follows a leader take writes.

The log directory no longer follows. Every partition gets a leader epoch above those of the leader, so that records
which the former leader still takes are recognized as diverging. Stop `kafkalog follow` first, when it has caught up:
records that it has not copied yet are not here. Transactions that were open stay open; `kafkalog transactions` lists
them.

examples:
  kafkalog promote --path /data/copy
"""


_METRICS_HELP: Final = """\
`kafkalog metrics`: serve a log directory's metrics under Kafka's names, for Prometheus.

Names are those that the usual rules of Prometheus' JMX exporter give to a broker's beans, such as kafka_log_log_size
for kafka.log:type=Log,name=Size, so that dashboards for brokers find them. Every scrape reads the current state of the
directory. kafka_log_logmanager_offlinelogdirectorycount is 1 while the log directory cannot be read, or another one
(with another cluster id or directory id) is in its place. SIGTERM and Ctrl-C end the command with exit code 0. Port 0
selects a free port. The address is printed once the server listens.

examples:
  kafkalog metrics --path /data/log --metrics-listen 127.0.0.1:9308
  kafkalog metrics --path /data/log --metrics-listen 0.0.0.0:9308
  kafkalog metrics --path /data/log --once | grep records_lag
"""


def _add_serve(parser: argparse.ArgumentParser) -> None:
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
        "--metrics-listen",
        metavar="HOST:PORT",
        help="serve /metrics for Prometheus and /health there (default: nowhere)",
    )
    parser.add_argument("--status", dest="metrics_listen", help=argparse.SUPPRESS)
    add_log_format(parser)
    # What workers and their committer are started with: the address that all workers share, the process that started
    # them, and the committer's socket, for a worker and for the committer itself.
    parser.add_argument("--shared", metavar="HOST:PORT", help=argparse.SUPPRESS)
    parser.add_argument("--supervisor", type=int, metavar="PID", help=argparse.SUPPRESS)
    parser.add_argument("--committer", type=Path, metavar="SOCKET", help=argparse.SUPPRESS)
    parser.add_argument("--commits-at", type=Path, metavar="SOCKET", help=argparse.SUPPRESS)
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
    parser.add_argument(
        "--commit-interval",
        type=_interval_ms,
        default=0,
        metavar="MS",
        help="begin commits at least so far apart, which bounds the PUTs to an object store; writes wait so much "
        "longer at most (default: 0, at once)",
    )
    _add_security(parser)


def _interval_ms(text: str) -> int:
    """The argparse type of the commit interval."""
    if not text.isdecimal() or int(text) > _COMMIT_INTERVAL_MAX_MS:
        raise argparse.ArgumentTypeError(f"must be 0 to {_COMMIT_INTERVAL_MAX_MS} ms, not {text}")
    return int(text)


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


def _add_follow(parser: argparse.ArgumentParser) -> None:
    """The leader, the root, and how to follow."""
    parser.add_argument(
        "--from",
        dest="leader",
        required=True,
        metavar="LEADER",
        help="HOST:PORT[,HOST:PORT ...] of brokers, or the path or URL of a log directory",
    )
    add_path(parser, "the log directory that follows; it is created if it does not exist")
    parser.add_argument(
        "--topic",
        dest="topics",
        default=".*",
        metavar="TOPIC",
        help="a topic, or a regular expression of topics (default: all)",
    )
    parser.add_argument("--topics", help=argparse.SUPPRESS)
    parser.add_argument("--once", action="store_true", help="copy what the leader has now, and end")
    parser.add_argument(
        "--on-divergence",
        choices=("stop", "truncate"),
        default="stop",
        help="where the leader has lost records that were copied, or has others: stop the partition, or cut it back "
        "(default: stop)",
    )
    parser.add_argument(
        "--demote",
        action="store_true",
        help="let a log directory follow that has topics and takes writes, such as the former leader of a promoted one",
    )
    parser.add_argument(
        "--max-rate",
        type=positive,
        metavar="BYTES_PER_S",
        help="copy at most so many bytes a second (default: no bound)",
    )
    parser.add_argument(
        "--spark",
        action="store_true",
        help="fetch ahead in tasks of Spark what is far behind: in an existing session, spark-submit's or a new one",
    )
    parser.add_argument(
        "--flush",
        choices=("fsync", "os"),
        default="fsync",
        help="commit when records are on disk, or when the operating system has them (default: fsync)",
    )
    parser.add_argument(
        "--command-config", type=Path, metavar="FILE", help="properties of the connection to brokers: TLS, SASL, rack"
    )
    parser.add_argument("--report", type=Path, metavar="FILE", help="keep a report in JSON there, over all runs")
    parser.add_argument(
        "--metrics-listen", metavar="HOST:PORT", help="serve metrics for Prometheus there (default: nowhere)"
    )
    parser.add_argument(
        "--controllers", metavar="HOST:PORT", help="also copy the metadata log of these controllers (--metadata-path)"
    )
    parser.add_argument(
        "--metadata-path",
        type=local_path,
        metavar="DIR",
        help="the directory of that copy, which tools read with --path DIR",
    )
    add_log_format(parser)


def _promote(options: argparse.Namespace) -> int:
    log_dir = open_log_dir(options)
    promoted = promote(log_dir.root.native())
    print(
        f"{log_dir.path} no longer follows {promoted.following.leader}, and accepts writes: "
        f"{plural(promoted.partitions_count, 'partition')} with a new leader epoch"
    )
    return 0


def _add_metrics(parser: argparse.ArgumentParser) -> None:
    """`--path`, and either the address to listen on or `--once`."""
    add_path(parser)
    add_read_to_log_end(parser)
    how = parser.add_mutually_exclusive_group(required=True)
    how.add_argument(
        "--metrics-listen",
        metavar="HOST:PORT",
        help="serve them at http://HOST:PORT/metrics until SIGTERM, SIGINT or SIGHUP",
    )
    how.add_argument("--port", help=argparse.SUPPRESS)
    how.add_argument("--once", action="store_true", help="print them once and exit")
    parser.add_argument("--host", default="127.0.0.1", help=argparse.SUPPRESS)
    parser.add_argument(
        "--lag-seconds",
        action="store_true",
        help="also kafkalog_group_lag_seconds; each scrape reads a batch of each partition that a group is behind in",
    )


COMMANDS: Final = {
    "follow": Command(_FOLLOW_HELP, _add_follow, later("processes.follow:run")),
    "promote": Command(_PROMOTE_HELP, add_path, _promote),
    "serve": Command(_SERVE_HELP, _add_serve, later("processes.serve:run")),
    "metrics": Command(_METRICS_HELP, _add_metrics, later("processes.metrics:run")),
}
