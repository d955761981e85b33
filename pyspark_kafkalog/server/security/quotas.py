"""Quotas of clients, enforced by token buckets, and the requests that list and change them.

What exceeds a rate is answered, and the connection is muted. For a request the most specific quota counts, in Kafka's
order: of user and client id, of the user, of the client id, each before the default of the same kind. All connections
to which the same quota of the same user or client id applies share one bucket. Each server process has its own buckets,
as each broker has its own.

A bucket holds what a client may send at once after a pause: the rate times the ten seconds over which Kafka measures
(quota.window.num 11 samples of 1 s, one of them incomplete). Below zero, the client waits until it is zero again.

DescribeClientQuotas and AlterClientQuotas need DESCRIBE_CONFIGS or ALTER_CONFIGS on the cluster. A request's changes
are one commit; entities whose change Kafka refuses are answered with the error and leave the others alone.

Source of the rules: ClientQuotaManager of org.apache.kafka.server.quota and its DefaultQuotaCallback,
org.apache.kafka.image.ClientQuotasImage, org.apache.kafka.controller.ClientQuotaControlManager.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from pyspark_kafkalog.errors import InvalidConfigError
from pyspark_kafkalog.metadata.acl import CLUSTER_NAME, AclOperation, ResourceType, canonical_ip
from pyspark_kafkalog.metadata.image import MetadataImage
from pyspark_kafkalog.metadata.messages.codec import Message
from pyspark_kafkalog.metadata.messages.metadata_records import MetadataRecord
from pyspark_kafkalog.metadata.users import (
    CLIENT_ID,
    CONNECTION_CREATION_RATE,
    IP,
    REQUEST_PERCENTAGE,
    USER,
    QuotaEntity,
    QuotaFilter,
    Quotas,
    alter_quotas,
    check_filter_types,
    find_quotas,
    quota_entity,
)
from pyspark_kafkalog.protocol.error_codes import ErrorCode
from pyspark_kafkalog.protocol.messages.security import (
    AlterClientQuotasRequest,
    AlterClientQuotasRequestEntryData,
    AlterClientQuotasResponse,
    AlterClientQuotasResponseEntryData,
    ComponentData,
    DescribeClientQuotasRequest,
    DescribeClientQuotasResponse,
    DescribeClientQuotasResponseEntryData,
    EntityData,
    ValueData,
)
from pyspark_kafkalog.root.brokers.image import GrowingMetadata
from pyspark_kafkalog.root.native import NativeRoot
from pyspark_kafkalog.server.context import READ_ONLY, Request, ServerContext, Session
from pyspark_kafkalog.units import INT32_MAX, SECOND_MS

_WINDOW_S: Final = 10
_BUCKETS_MAX: Final = 10_000
#: As in Kafka, one slow request does not shut its client out: the rest throttles the next requests.
_REQUEST_THROTTLE_MS_MAX: Final = SECOND_MS


class TokenBucket:
    """Fills by `rate` a second up to ten seconds' worth, and may be overdrawn."""

    __slots__ = ("_at_ms", "_tokens", "rate")

    def __init__(self, rate: float, now_ms: int) -> None:
        self.rate = rate
        self._tokens = rate * _WINDOW_S
        self._at_ms = now_ms

    def _refill(self, now_ms: int) -> None:
        gained = self.rate * (now_ms - self._at_ms) / SECOND_MS
        self._tokens = min(self._tokens + gained, self.rate * _WINDOW_S)
        self._at_ms = now_ms

    def take(self, amount: float, now_ms: int) -> int:
        """Take `amount`, back if it is negative; the milliseconds until the bucket is no longer overdrawn."""
        self._refill(now_ms)
        self._tokens -= amount
        return self.throttle_ms(now_ms)

    def throttle_ms(self, now_ms: int) -> int:
        """The milliseconds until the bucket is no longer overdrawn."""
        self._refill(now_ms)
        if not self._tokens < 0:  # also for a rate that is no number, which a copied log directory may have
            return 0
        if self.rate <= 0:
            return INT32_MAX
        return math.ceil(min(-self._tokens / self.rate * SECOND_MS, INT32_MAX))

    def try_take(self, amount: float, now_ms: int) -> int:
        """Take `amount` if the bucket has it and return 0; else the milliseconds until it has."""
        throttle_ms = self.take(amount, now_ms)
        if throttle_ms:
            self._tokens += amount
        return throttle_ms

    def is_full(self, now_ms: int) -> bool:
        """Whether it tells nothing more than a new one."""
        self._refill(now_ms)
        return self._tokens >= self.rate * _WINDOW_S


def _connection_rates(quotas: Quotas) -> dict[str | None, float]:
    """By IP address its new connections a second, None: those of a host without its own. Names of hosts are left out:
    a log directory may have some from a broker."""
    found: dict[str | None, float] = {}
    for ((_, name), *_), values in quotas.items():
        if CONNECTION_CREATION_RATE in values:
            host = None if name is None else canonical_ip(name)
            if name is None or host is not None:
                # Of several ways to write an address the strictest holds.
                rate = values[CONNECTION_CREATION_RATE]
                found[host] = min(rate, found.get(host, rate))
    return found


def newest_quotas(native: NativeRoot | None, broker: GrowingMetadata) -> Callable[[], Quotas]:
    """Gives the quotas of a root with commits as of the newest one, else those of a broker's metadata log."""
    if native is None:
        return lambda: broker.state.client_quotas
    store = native.store
    return lambda: store.image.client_quotas


class ClientQuotas:
    """The quotas of one server process. Used in the event loop's thread.

    `quotas` gives the newest ones; they are looked at again when it gives another object.
    """

    def __init__(self, quotas: Callable[[], Quotas], *, monotonic_ms: Callable[[], int]) -> None:
        self._quotas = quotas
        self._monotonic_ms = monotonic_ms
        self._known: Quotas | None = None
        self._names: frozenset[str] = frozenset()
        self._connection_rates: dict[str | None, float] = {}  # by IP address, None: of hosts without their own
        self._buckets: dict[tuple[str, str | None, str | None], TokenBucket] = {}

    def throttle(self, session: Session, client_id: str, quota: str, amount: float) -> int:
        """Charge `amount` to the quota of that name: the throttle_time_ms of the answer.

        The connection is muted for as long.
        """
        bucket = self._bucket(session, client_id, quota)
        if bucket is None:
            return 0
        now_ms = self._monotonic_ms()
        throttle_ms = bucket.take(amount, now_ms)
        if quota == REQUEST_PERCENTAGE:
            throttle_ms = min(throttle_ms, _REQUEST_THROTTLE_MS_MAX)
        _mute(session, throttle_ms, now_ms)
        return throttle_ms

    def admit(self, session: Session, client_id: str, quota: str, amount: float) -> int:
        """Charge `amount` if nothing has to be made up for, for what is refused and not only delayed (KIP-599).

        0, or the throttle_time_ms of the refusal: the connection is muted for as long.
        """
        bucket = self._bucket(session, client_id, quota)
        if bucket is None:
            return 0
        now_ms = self._monotonic_ms()
        throttle_ms = bucket.throttle_ms(now_ms)
        if throttle_ms:
            _mute(session, throttle_ms, now_ms)
        else:
            bucket.take(amount, now_ms)
        return throttle_ms

    def give_back(self, session: Session, client_id: str, quota: str, amount: float) -> None:
        """Charge `amount` no longer: a throttled Fetch is answered without the records that were charged."""
        bucket = self._bucket(session, client_id, quota)
        if bucket is not None:
            bucket.take(-amount, self._monotonic_ms())

    @property
    def names(self) -> frozenset[str]:
        """The names of the quotas that exist."""
        self._current()
        return self._names

    def connection_creation_rate(self, host: str) -> float | None:
        """The new connections a second of the host's quota; None: it has none."""
        self._current()
        rates = self._connection_rates
        return rates.get(host, rates.get(None))

    def _current(self) -> Quotas:
        quotas = self._quotas()
        if quotas is not self._known:
            self._known = quotas
            self._names = frozenset(name for values in quotas.values() for name in values)
            self._connection_rates = _connection_rates(quotas)
            self._buckets.clear()
        return quotas

    def _bucket(self, session: Session, client_id: str, quota: str) -> TokenBucket | None:
        quotas = self._current()
        if quota not in self._names:
            return None
        user = session.principal.removeprefix("User:")
        found = find_quota(quotas, quota, user, client_id)
        if found is None:
            return None
        rate, shares_user, shares_client_id = found
        key = (quota, user if shares_user else None, client_id if shares_client_id else None)
        bucket = self._buckets.get(key)
        if bucket is None:
            if len(self._buckets) >= _BUCKETS_MAX:
                self._drop_full()
            bucket = self._buckets[key] = TokenBucket(rate, self._monotonic_ms())
        return bucket

    def _drop_full(self) -> None:
        """Names are the clients' choice: keep only buckets that delay a client, and never more than the limit."""
        now_ms = self._monotonic_ms()
        kept = {key: bucket for key, bucket in self._buckets.items() if not bucket.is_full(now_ms)}
        while len(kept) >= _BUCKETS_MAX:
            del kept[next(iter(kept))]
        self._buckets = kept


def _mute(session: Session, throttle_ms: int, now_ms: int) -> None:
    if throttle_ms:
        session.mute_until_ms = max(session.mute_until_ms, now_ms + throttle_ms)


def find_quota(quotas: Quotas, quota: str, user: str, client_id: str) -> tuple[float, bool, bool] | None:
    """The rate that applies, and whether users and client ids have a bucket of their own each; None: no quota."""
    for user_name, client_name in _LEVELS:
        parts: list[tuple[str, str | None]] = []
        if client_name is not _NO_PART:
            parts.append((CLIENT_ID, client_id if client_name is _GIVEN else None))
        if user_name is not _NO_PART:
            parts.append((USER, user if user_name is _GIVEN else None))
        entity: QuotaEntity = tuple(parts)
        values: Mapping[str, float] | None = quotas.get(entity)
        if values is not None and quota in values:
            return values[quota], user_name is not _NO_PART, client_name is not _NO_PART
    return None


_GIVEN: Final = "given"
_DEFAULT_PART: Final = "default"
_NO_PART: Final = "none"
#: User and client id of an entity, the most specific first.
_LEVELS: Final = (
    (_GIVEN, _GIVEN),
    (_GIVEN, _DEFAULT_PART),
    (_GIVEN, _NO_PART),
    (_DEFAULT_PART, _GIVEN),
    (_DEFAULT_PART, _DEFAULT_PART),
    (_DEFAULT_PART, _NO_PART),
    (_NO_PART, _GIVEN),
    (_NO_PART, _DEFAULT_PART),
)


_EXACT: Final = 0
_DEFAULT: Final = 1
_ANY_NAME: Final = 2


async def handle_describe_client_quotas(
    context: ServerContext, request: Request[DescribeClientQuotasRequest]
) -> Message:
    """DescribeClientQuotas: the entities that a filter selects, with their quotas."""
    if not context.guard.allows(request.session, AclOperation.DESCRIBE_CONFIGS, ResourceType.CLUSTER, CLUSTER_NAME):
        return _refused(ErrorCode.CLUSTER_AUTHORIZATION_FAILED, ErrorCode.CLUSTER_AUTHORIZATION_FAILED.message)
    body = request.body
    for component in body.components:
        if component.entity_type and component.entity_type not in (USER, CLIENT_ID, IP):
            return _refused(ErrorCode.UNSUPPORTED_VERSION, f"Unsupported entity type {component.entity_type}")
    try:
        chosen = parse_filter(body.components, strict=body.strict)
    except InvalidConfigError as error:
        return _refused(ErrorCode.INVALID_REQUEST, str(error))
    native = context.root.native()
    await context.run(native.refresh)
    return DescribeClientQuotasResponse(
        error_message=None,
        entries=tuple(
            DescribeClientQuotasResponseEntryData(
                entity=_entity_data(entity),
                values=tuple(ValueData(key=key, value=value) for key, value in values.items()),
            )
            for entity, values in find_quotas(native.store.image.client_quotas, chosen)
        ),
    )


def _refused(code: ErrorCode, message: str) -> Message:
    return DescribeClientQuotasResponse(error_code=code, error_message=message, entries=None)


def parse_filter(components: Sequence[ComponentData], *, strict: bool) -> QuotaFilter:
    """The filter of a request. Raises InvalidConfigError."""
    check_filter_types([each.entity_type for each in components])
    exact: dict[str, str | None] = {}
    types: list[str] = []
    for each in components:
        if each.match_type not in (_EXACT, _DEFAULT, _ANY_NAME):
            raise InvalidConfigError(f"Unknown match type {each.match_type}")
        if (each.match is None) == (each.match_type == _EXACT):
            what = "set match string to null" if each.match is None else "also specified a match string"
            raise InvalidConfigError(f"Request specified match type {each.match_type}, but {what}.")
        if each.match_type == _ANY_NAME:
            types.append(each.entity_type)
        else:
            exact[each.entity_type] = each.match
    return QuotaFilter(exact, types, strict)


async def handle_alter_client_quotas(context: ServerContext, request: Request[AlterClientQuotasRequest]) -> Message:
    """AlterClientQuotas: set or remove quotas; with `validate_only` nothing is changed."""
    body = request.body
    if not context.guard.allows(request.session, AclOperation.ALTER_CONFIGS, ResourceType.CLUSTER, CLUSTER_NAME):
        error = InvalidConfigError(ErrorCode.CLUSTER_AUTHORIZATION_FAILED.message)
        return _answer(body, [error] * len(body.entries), ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    if context.native is None:
        error = InvalidConfigError(READ_ONLY)
        return _answer(body, [error] * len(body.entries), ErrorCode.POLICY_VIOLATION)
    results: list[InvalidConfigError | None] = []

    def build(image: MetadataImage) -> Sequence[MetadataRecord]:
        results.clear()
        records: list[MetadataRecord] = []
        seen: set[QuotaEntity] = set()
        for entry in body.entries:
            try:
                records += _alteration(image, entry, seen)
                results.append(None)
            except InvalidConfigError as error:
                results.append(error)
        return [] if body.validate_only else records

    native = context.native
    await context.run(lambda: native.commit(build, operation="alter client quotas"))
    return _answer(body, results, ErrorCode.INVALID_REQUEST)


def _alteration(
    image: MetadataImage, entry: AlterClientQuotasRequestEntryData, seen: set[QuotaEntity]
) -> list[MetadataRecord]:
    entity = quota_entity([(each.entity_type, each.entity_name) for each in entry.entity])
    changes: dict[str, float | None] = {}
    for op in entry.ops:
        if op.key in changes:
            raise InvalidConfigError(f"Duplicate quota key {op.key} not updating quota for this entity")
        changes[op.key] = None if op.remove else op.value
    if entity in seen:
        raise InvalidConfigError("Ignoring duplicate entity")
    seen.add(entity)
    return alter_quotas(image.client_quotas, entity, changes)


def _answer(
    body: AlterClientQuotasRequest, results: Sequence[InvalidConfigError | None], code: ErrorCode
) -> AlterClientQuotasResponse:
    return AlterClientQuotasResponse(
        entries=tuple(
            AlterClientQuotasResponseEntryData(
                error_code=ErrorCode.NONE if error is None else code,
                error_message=None if error is None else str(error),
                entity=entry.entity,
            )
            for entry, error in zip(body.entries, results, strict=True)
        )
    )


def _entity_data(entity: QuotaEntity) -> tuple[EntityData, ...]:
    return tuple(EntityData(entity_type=entity_type, entity_name=name) for entity_type, name in entity)
