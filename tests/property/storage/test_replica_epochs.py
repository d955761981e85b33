"""Where the leader epochs of two replicas differ, against a look at each offset."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pyspark_kafkalog.root.brokers.broker_directories import epoch_differences
from pyspark_kafkalog.storage.artefacts.checkpoint_file import EpochEntry

OFFSET_MAX = 12


@st.composite
def entries(draw: st.DrawFn) -> list[EpochEntry]:
    """Epochs and start offsets that rise, as in leader-epoch-checkpoint."""
    count = draw(st.integers(0, 5))
    starts = sorted(draw(st.sets(st.integers(0, OFFSET_MAX), min_size=count, max_size=count)))
    epochs = sorted(draw(st.sets(st.integers(0, 6), min_size=count, max_size=count)))
    return [EpochEntry(epoch, start) for epoch, start in zip(epochs, starts, strict=True)]


def epoch_of(found: list[EpochEntry], offset: int) -> int | None:
    return next((each.epoch for each in reversed(found) if each.start_offset <= offset), None)


@given(entries(), entries(), st.integers(0, OFFSET_MAX), st.integers(0, OFFSET_MAX + 3))
def test_first_difference_is_the_first_offset_with_different_epochs(
    ours: list[EpochEntry], others: list[EpochEntry], start_offset: int, end_offset: int
) -> None:
    differing = [
        (offset, epoch_of(ours, offset), epoch_of(others, offset))
        for offset in range(start_offset, end_offset)
        if None not in (epoch_of(ours, offset), epoch_of(others, offset))
        and epoch_of(ours, offset) != epoch_of(others, offset)
    ]
    found = list(epoch_differences(ours, others, start_offset, end_offset))
    assert found[:1] == differing[:1]
    assert {each[0] for each in found} <= {each[0] for each in differing}
