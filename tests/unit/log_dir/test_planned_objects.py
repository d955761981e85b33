"""What a task on an object root notices of commits that were made after its read was planned."""

from __future__ import annotations

from faulty_store import FaultyStore

from pyspark_kafkalog.metadata.objects.boundary import START_KEY, encode_start, has_commits_from
from pyspark_kafkalog.metadata.objects.layout import commit_key
from pyspark_kafkalog.root.bootstrap import create_object_root


def test_commit_after_a_plan_is_noticed_also_when_it_was_removed_again() -> None:
    store = FaultyStore()
    metadata = create_object_root(store)
    assert metadata.identity is not None
    end = metadata.image.next_offset
    assert not has_commits_from(store, end)
    assert has_commits_from(store, 0)
    store.delete([commit_key(0)])
    assert not has_commits_from(store, end)
    store.put(START_KEY, encode_start(end + 1, metadata.identity.directory_id or ""))
    assert has_commits_from(store, 0)
    assert has_commits_from(store, end)


def test_boundary_that_cannot_be_read_counts_as_a_later_commit() -> None:
    store = FaultyStore()
    metadata = create_object_root(store)
    store.put(START_KEY, b"garbage")
    assert has_commits_from(store, metadata.image.next_offset)
    store.delete([START_KEY])
    assert has_commits_from(store, metadata.image.next_offset)
