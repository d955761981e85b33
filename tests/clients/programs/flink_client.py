"""Flink SQL: writes exactly once with each naming of transactions, and reads what is committed. Asserts its counts.

Arguments: the servers, the jar of the connector, a folder for checkpoints.
"""

import sys

from pyflink.common import Configuration
from pyflink.table import EnvironmentSettings, TableEnvironment

ROWS = 20_000
_COLUMNS = "(id BIGINT, v STRING)"


def main(address: str, connector: str, checkpoints: str) -> None:
    settings = Configuration()
    settings.set_string("pipeline.jars", f"file://{connector}")
    settings.set_string("execution.checkpointing.interval", "1s")
    settings.set_string("execution.checkpointing.dir", f"file://{checkpoints}")
    settings.set_string("parallelism.default", "2")
    # Else each row updates the counts, and 40,000 updates come to Python one by one, which takes minutes.
    settings.set_string("table.exec.mini-batch.enabled", "true")
    settings.set_string("table.exec.mini-batch.allow-latency", "1s")
    settings.set_string("table.exec.mini-batch.size", str(ROWS))
    environment = EnvironmentSettings.new_instance().in_streaming_mode().with_configuration(settings).build()
    tables = TableEnvironment.create(environment)
    tables.execute_sql(
        f"CREATE TABLE numbers {_COLUMNS} WITH ('connector'='datagen', 'rows-per-second'='8000',"
        f" 'fields.id.kind'='sequence', 'fields.id.start'='1', 'fields.id.end'='{ROWS}')"
    )
    source = "numbers"
    for naming in ("incrementing", "pooling"):
        create_tables(tables, address, naming)
        tables.execute_sql(f"INSERT INTO to_{naming} SELECT * FROM {source}").wait()
        source = f"from_{naming}"
        counts = tables.execute_sql(f"SELECT count(*), count(DISTINCT id), sum(id) FROM {source}").collect()
        *_, last = counts
        assert tuple(last) == (ROWS, ROWS, ROWS * (ROWS + 1) // 2), last
    print(ROWS, "rows twice")


def create_tables(tables: TableEnvironment, address: str, naming: str) -> None:
    """A sink and a source of the topic that is named like the sink's way to name transactions."""
    options = {
        "connector": "kafka",
        "topic": f"flink-{naming}",
        "properties.bootstrap.servers": address,
        "format": "json",
    }
    sink = {
        "sink.delivery-guarantee": "exactly-once",
        "sink.transactional-id-prefix": f"flink-{naming}",
        "sink.transaction-naming-strategy": naming,
        "properties.transaction.timeout.ms": "60000",
    }
    source = {
        "scan.startup.mode": "earliest-offset",
        "scan.bounded.mode": "latest-offset",
        "properties.group.id": f"flink-{naming}",
        "properties.isolation.level": "read_committed",
    }
    for name, own in ((f"to_{naming}", sink), (f"from_{naming}", source)):
        listed = ", ".join(f"'{key}'='{value}'" for key, value in {**options, **own}.items())
        tables.execute_sql(f"CREATE TABLE {name} {_COLUMNS} WITH ({listed})")


main(*sys.argv[1:4])
