"""Parts of a server's context that count and limit nothing."""

from __future__ import annotations

from typing import Any

from pyspark_kafkalog.server.context import Session


class NoTraffic:
    """Counts nothing."""

    def produced(self, topic: str, *, records: int, size_bytes: int) -> None:
        pass

    def produce_failed(self, topic: str) -> None:
        pass

    def fetched(self, topic: str, *, size_bytes: int) -> None:
        pass


class UnlimitedRates:
    """No quotas exist."""

    def throttle(self, session: Session, client_id: str, quota: str, amount: float) -> int:
        return 0

    admit = throttle

    def give_back(self, session: Session, client_id: str, quota: str, amount: float) -> None:
        pass


class UnlimitedMemory:
    """There is room for all records."""

    is_short = False

    async def take(self, size_bytes: int, owners: tuple[str, ...]) -> bool:
        return True

    def give_back(self, size_bytes: int, owners: tuple[str, ...]) -> None:
        pass


def unlimited(**parts: Any) -> dict[str, Any]:
    """The parts of a ServerContext that count and limit, but for those that are given."""
    return {"traffic": NoTraffic(), "quotas": UnlimitedRates(), "record_memory": UnlimitedMemory(), **parts}
