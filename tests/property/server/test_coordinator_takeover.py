"""Two servers whose coordinators are frozen, killed and stopped at any step: each record is copied exactly once.

See tests/support/simulations/coordinators.py for what happens, and what must hold.
"""

from __future__ import annotations

import random
import uuid
from pathlib import Path

import pytest
from builders.root_places import client_address, forget, memory_root
from fakes.faulty_store import FaultyStore, MemoryBucket
from simulations.coordinators import CoordinatorSimulation
from tiers import SEED, rest_full

pytestmark = pytest.mark.slow


def seeded(number: int, monkeypatch: pytest.MonkeyPatch) -> random.Random:
    """Chance of the run's seed and of the number, also for ids."""
    ids = random.Random(f"{SEED} {number} ids")
    monkeypatch.setattr(uuid, "uuid4", lambda: uuid.UUID(int=ids.getrandbits(128), version=4))
    return random.Random(f"{SEED} {number}")


@pytest.mark.parametrize("is_next", [False, True], ids=["classic", "consumer"])
@pytest.mark.parametrize("number", rest_full(range(20)))
def test_each_record_is_copied_once_whoever_coordinates(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, is_next: bool
) -> None:
    root = tmp_path / "root"
    simulation = CoordinatorSimulation(root, (root, root), seeded(number, monkeypatch), is_next=is_next)
    try:
        simulation.run()
    finally:
        print(simulation.counts)
        simulation.close()


@pytest.mark.parametrize("number", rest_full(range(20)))
def test_each_record_is_copied_once_over_an_object_store(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    bucket = MemoryBucket()
    url = memory_root(FaultyStore(bucket))
    servers = [client_address(url, FaultyStore(bucket)) for _ in range(2)]
    simulation = CoordinatorSimulation(url, servers, seeded(number, monkeypatch), is_next=number % 2 == 0)
    try:
        simulation.run()
    finally:
        print(simulation.counts)
        simulation.close()
        forget(url)
