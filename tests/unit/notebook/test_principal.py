"""A LogDir opened for a principal shows what it may describe, and only records that it may read."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from pyspark_kafkalog import LogDir
from pyspark_kafkalog.errors import AuthorizationError
from pyspark_kafkalog.metadata.acl import Acl, AclOperation, PatternType, PermissionType, ResourceType

ANN = "User:ann"


def test_principal_without_read_sees_no_records(tmp_path: Path) -> None:
    log_dir = LogDir.create(tmp_path / "root")
    rights = {"seen": AclOperation.DESCRIBE, "read": AclOperation.READ}
    log_dir.append("hidden", pa.table({"value": ["a"]}), partition=0)
    for topic, right in rights.items():
        log_dir.append(topic, pa.table({"value": ["secret"]}), partition=0)
        entry = Acl(ResourceType.TOPIC, topic, PatternType.LITERAL, ANN, "*", right, PermissionType.ALLOW)
        log_dir.access_control().add([entry])
    mine = LogDir.open(log_dir.path, principal=ANN)
    assert list(mine) == ["read", "seen"]
    assert "hidden" not in mine._repr_html_()
    assert mine["read", 0].at(0).record is not None
    assert len(mine["read", 0]) == 1
    log = mine["seen", 0]
    assert "secret" not in log._repr_html_() + mine["seen"]._repr_html_()
    assert log.segments().num_rows == 1
    looks = [log.to_arrow, log.count, log.batches, lambda: log.at(0), lambda: log.seek("2020-01-01")]
    for look in [*looks, lambda: log["2020-01-01":], lambda: list(log.tail(0, timeout_seconds=0))]:
        with pytest.raises(AuthorizationError):
            look()
    with pytest.raises(AuthorizationError):
        mine["hidden"]
