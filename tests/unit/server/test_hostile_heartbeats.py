"""Signs of servers that are links or pipes: they are no signs, and nothing waits for them."""

from __future__ import annotations

import os
from pathlib import Path

from pyspark_kafkalog.server.cluster import HeartbeatFiles


def test_sign_that_is_pipe_or_link_is_left_out(tmp_path: Path) -> None:
    (tmp_path / "outside").write_text("{}")
    os.mkfifo(tmp_path / ".server-7")
    (tmp_path / ".server-8").symlink_to(tmp_path / "outside")
    assert HeartbeatFiles(tmp_path).read_all() == {}
