"""Compares the outcomes of the cases with the list of known differences."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from .known_differences import KNOWN, LATE_ERRORS, Difference
from .outcomes import Outcome


@dataclass(frozen=True, slots=True)
class Compared:
    """A case and what both sides gave."""

    name: str
    kafka: Outcome
    kafkalog: Outcome


@dataclass
class Tally:
    """The cases of one part: how many, which differ without being listed, which are listed and do not differ."""

    part: str
    cases: int = 0
    both_failed: int = 0
    later: int = 0
    seen: dict[str, int] = field(default_factory=dict)
    unlisted: list[str] = field(default_factory=list)
    vanished: list[str] = field(default_factory=list)

    def add(self, compared: Compared) -> str | None:
        """Count a case in; a line about it where it differs."""
        self.cases += 1
        self.both_failed += bool(compared.kafka.failure and compared.kafkalog.failure)
        self.later += compared.kafka.is_earlier_than(compared.kafkalog)
        difference = compared.kafka.difference(compared.kafkalog)
        known = _known(self.part, compared.name)
        if difference is None:
            if known is not None:
                self.vanished.append(f"{compared.name}: listed as {known.name}, and both sides are the same")
            return None
        if known is None:
            self.unlisted.append(f"{compared.name}: {difference}")
            return f"UNLISTED  {compared.name}: {difference}"
        self.seen[known.name] = self.seen.get(known.name, 0) + 1
        return None

    @property
    def failed(self) -> bool:
        return bool(self.unlisted or self.vanished)


def _known(part: str, name: str) -> Difference | None:
    return next((each for each in KNOWN if each.covers(part, name)), None)


def late_errors_are_gone(tallies: Sequence[Tally]) -> bool:
    """Whether no case of a whole run shows LATE_ERRORS, which no case is listed for."""
    return not any(each.later for each in tallies)


def summary(tallies: Sequence[Tally]) -> Iterable[str]:
    """A table of all parts, then the known differences by how many cases show them, then what fails the run."""
    yield f"{'part':<10}{'cases':>7}{'equal':>7}{'both fail':>11}{'known':>7}{'unlisted':>10}{'vanished':>10}"
    for each in tallies:
        known = sum(each.seen.values())
        equal = each.cases - known - len(each.unlisted)
        counts = f"{each.cases:>7}{equal:>7}{each.both_failed:>11}{known:>7}"
        yield f"{each.part:<10}{counts}{len(each.unlisted):>10}{len(each.vanished):>10}"
    yield ""
    for difference in KNOWN:
        if count := sum(each.seen.get(difference.name, 0) for each in tallies):
            yield f"{count:>4}  {difference.name}: {difference.reason}"
    if later := sum(each.later for each in tallies):
        yield f"{later:>4}  {LATE_ERRORS.name}: {LATE_ERRORS.reason}"
    for each in tallies:
        for line in each.unlisted:
            yield f"UNLISTED  {each.part}: {line}"
        for line in each.vanished:
            yield f"VANISHED  {each.part}: {line}"
