"""Frames of requests and responses: headers by version, records in place, and what is refused."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from pyspark_kafkalog.errors import CorruptRecordError, InvalidRecordError, UnsupportedApiError
from pyspark_kafkalog.metadata.messages.schema import FrameReader
from pyspark_kafkalog.protocol.api import (
    APIS,
    REQUEST_ELEMENTS_MAX,
    ApiKey,
    decode_response,
    encode_request,
    encode_response,
    joined,
    parse_request,
)
from pyspark_kafkalog.protocol.error_codes import ErrorCode
from pyspark_kafkalog.protocol.messages.cluster import ApiVersion, ApiVersionsResponse, MetadataRequest
from pyspark_kafkalog.protocol.messages.groups import HeartbeatRequest, HeartbeatResponse
from pyspark_kafkalog.protocol.messages.offsets import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
)
from pyspark_kafkalog.protocol.messages.records import (
    FetchableTopicResponse,
    FetchResponse,
    PartitionData,
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)

HEARTBEAT = APIS[ApiKey.HEARTBEAT]
API_VERSIONS = APIS[ApiKey.API_VERSIONS]
#: Heartbeat version 0: api key 12, version 0, correlation id 7, client id "c"; group "g", generation 1, member "m".
HEARTBEAT_0 = bytes.fromhex("000c 0000 00000007 0001 63  0001 67 00000001 0001 6d")
#: Heartbeat version 4, which is flexible: tagged fields after the client id, whose length is no varint.
HEARTBEAT_4 = bytes.fromhex("000c 0004 00000007 0001 63 00  02 67 00000001 02 6d 00 00")


@dataclass(frozen=True)
class FileSlice:
    size_bytes: int


@pytest.mark.parametrize("frame", [HEARTBEAT_0, HEARTBEAT_4])
def test_request_is_parsed_and_encoded_by_the_header_of_its_version(frame: bytes) -> None:
    parsed = parse_request(frame)
    assert (parsed.api.key, parsed.correlation_id, parsed.client_id) == (ApiKey.HEARTBEAT, 7, "c")
    body = parsed.body()
    assert body == HeartbeatRequest(group_id="g", generation_id=1, member_id="m")
    encoded = joined(encode_request(HEARTBEAT, parsed.api_version, 7, "c", body))
    assert encoded == len(frame).to_bytes(4, "big") + frame


def test_null_client_id_is_empty() -> None:
    frame = joined(encode_request(HEARTBEAT, 0, 1, None, HeartbeatRequest()))[4:]
    assert frame[8:10] == b"\xff\xff"
    assert parse_request(frame).client_id == ""


def test_bytes_after_a_request_are_ignored_as_by_kafka() -> None:
    assert parse_request(HEARTBEAT_4 + b"more").body() == parse_request(HEARTBEAT_4).body()


def test_tagged_fields_of_a_header_are_skipped() -> None:
    frame = HEARTBEAT_4[:11] + bytes.fromhex("01 05 02 aabb") + HEARTBEAT_4[12:]
    assert parse_request(frame).body() == parse_request(HEARTBEAT_4).body()


@pytest.mark.parametrize(
    ("version", "sent"), [(0, "00000009 0016"), (3, "00000009 00000000 0016"), (4, "00000009 00 00000000 0016 00")]
)
def test_response_round_trips_with_the_header_of_its_version(version: int, sent: str) -> None:
    response = HeartbeatResponse(error_code=ErrorCode.ILLEGAL_GENERATION)
    frame = joined(encode_response(HEARTBEAT, version, 9, response))
    assert frame == len(bytes.fromhex(sent)).to_bytes(4, "big") + bytes.fromhex(sent)
    assert decode_response(HEARTBEAT, version, frame[4:], HeartbeatResponse) == (9, response)


def test_response_of_api_versions_has_a_header_without_tagged_fields() -> None:
    frame = joined(encode_response(API_VERSIONS, 3, 9, ApiVersionsResponse(error_code=35)))
    assert frame[4:10] == bytes.fromhex("00000009 0023")


@pytest.mark.parametrize("version", [6, 400, -1])
def test_unknown_version_of_api_versions_is_answered_in_version_0(version: int) -> None:
    start = (18).to_bytes(2, "big") + version.to_bytes(2, "big", signed=True) + bytes.fromhex("00000007 ffff 00 ee")
    parsed = parse_request(start)
    assert not parsed.is_supported
    response = ApiVersionsResponse(error_code=35, api_keys=(ApiVersion(api_key=18, max_version=4),))
    assert joined(parsed.encode_response(response))[4:] == bytes.fromhex("00000007 0023 00000001 0012 0000 0004")


@pytest.mark.parametrize(
    ("api_key", "version"), [(12, 5), (12, -1), (0, 2), (0, 14), (1, 3), (4, 0), (7, 0), (500, 0), (-1, 0)]
)
def test_unknown_api_or_version_is_refused(api_key: int, version: int) -> None:
    start = api_key.to_bytes(2, "big", signed=True) + version.to_bytes(2, "big", signed=True)
    with pytest.raises(UnsupportedApiError):
        parse_request(start + HEARTBEAT_0[4:])


@pytest.mark.parametrize("size", range(len(HEARTBEAT_4)))
def test_truncated_request_is_refused(size: int) -> None:
    with pytest.raises(CorruptRecordError):
        parse_request(HEARTBEAT_4[:size]).body()


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
@pytest.mark.parametrize("version", [3, 9, 13])
def test_records_of_a_request_are_views_of_its_frame(kind: type, version: int) -> None:
    partition = PartitionProduceData(index=3, records=b"batch")
    request = ProduceRequest(acks=-1, topic_data=(TopicProduceData(name="t", partition_data=(partition,)),))
    data = joined(encode_request(APIS[ApiKey.PRODUCE], version, 1, "c", request))[4:]
    frame = kind(data)
    found = parse_request(frame).body()
    assert isinstance(found, ProduceRequest)
    records = found.topic_data[0].partition_data[0].records
    assert isinstance(records, memoryview)
    assert records == b"batch"
    assert records.readonly
    assert records.obj is (data if kind is memoryview else frame)


@pytest.mark.parametrize("version", [4, 11, 12, 18])
def test_slices_of_records_are_pieces_of_the_response_in_their_places(version: int) -> None:
    values = (FileSlice(5), b"batch", None, memoryview(b"other"), b"")
    partitions = tuple(PartitionData(partition_index=i, records=each) for i, each in enumerate(values))
    whole = tuple(each.replace(records=b"slice") if i == 0 else each for i, each in enumerate(partitions))
    pieces = encode_response(APIS[ApiKey.FETCH], version, 1, _fetch_response(partitions))
    assert [each for each in pieces if isinstance(each, FileSlice)] == [FileSlice(5)]
    assert any(each is values[3] for each in pieces)
    sent = b"".join(b"slice" if isinstance(each, FileSlice) else bytes(each) for each in pieces)  # type: ignore[arg-type]
    assert sent == joined(encode_response(APIS[ApiKey.FETCH], version, 1, _fetch_response(whole)))
    assert sent[:4] == (len(sent) - 4).to_bytes(4, "big")
    assert decode_response(APIS[ApiKey.FETCH], version, sent[4:], FetchResponse)[1] == _fetch_response(whole)


def _fetch_response(partitions: tuple[PartitionData, ...]) -> FetchResponse:
    return FetchResponse(responses=(FetchableTopicResponse(partitions=partitions),))


def test_slice_of_records_has_no_place_in_a_message_of_bytes() -> None:
    response = _fetch_response((PartitionData(records=FileSlice(5)),))
    with pytest.raises(InvalidRecordError, match="has no bytes"):
        response.encode(4)
    with pytest.raises(InvalidRecordError, match="has no bytes"):
        joined(encode_response(APIS[ApiKey.FETCH], 4, 1, response))


@pytest.mark.parametrize("version", [4, 18])
def test_records_that_no_frame_can_hold_are_refused(version: int) -> None:
    for sizes in ((1 << 31,), (1 << 30, 1 << 30)):
        partitions = tuple(PartitionData(records=FileSlice(size)) for size in sizes)
        with pytest.raises(InvalidRecordError, match="at most 2147483647"):
            encode_response(APIS[ApiKey.FETCH], version, 1, _fetch_response(partitions))


def test_null_topics_of_metadata_differ_from_none() -> None:
    for version in range(1, 14):
        for topics in (None, ()):
            assert MetadataRequest.decode(version, MetadataRequest(topics=topics).encode(version)).topics == topics


def test_produce_is_advertised_from_0_though_it_has_no_such_messages() -> None:
    assert (APIS[ApiKey.PRODUCE].advertised, APIS[ApiKey.PRODUCE].versions) == (range(14), range(3, 14))
    assert APIS[ApiKey.FETCH].advertised == APIS[ApiKey.FETCH].versions == range(4, 19)


def test_error_codes_have_the_numbers_texts_and_retries_of_kafka() -> None:
    assert [int(each) for each in ErrorCode] == list(range(-1, 137))
    assert ErrorCode(3) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert ErrorCode.NOT_COORDINATOR.retriable
    assert not ErrorCode.PRODUCER_FENCED.retriable
    assert all(each.message.endswith(".") for each in ErrorCode)


def test_count_of_elements_that_do_not_fit_the_frame_is_refused_by_its_field() -> None:
    # 5 topics of a name and partitions take 3 bytes each, with their tagged fields.
    frame = bytes.fromhex("0001 000c 00000001 ffff 00") + b"\0" * 25 + bytes.fromhex("06") + b"\x01" * 14
    with pytest.raises(CorruptRecordError, match=r"FetchRequest\.topics of 5 elements"):
        parse_request(frame).body()


@pytest.mark.parametrize(
    ("partition", "match"),
    [
        (PartitionData(high_watermark=1 << 63), r"highWatermark must be of type int64"),
        (PartitionData(partition_index=0, error_code="x"), r"errorCode must be of type int16"),  # type: ignore[arg-type]
    ],
)
def test_value_that_does_not_fit_is_refused_by_its_field(partition: PartitionData, match: str) -> None:
    with pytest.raises(InvalidRecordError, match=match):
        _fetch_response((partition,)).encode(17)


def test_request_of_too_many_elements_is_refused_before_they_are_read() -> None:
    count = REQUEST_ELEMENTS_MAX + 1
    varint = bytes((0x80 | ((count + 1) & 0x7F), 0x80 | (((count + 1) >> 7) & 0x7F), (count + 1) >> 14))
    frame = (
        bytes.fromhex("000f 0005 00000001 ffff 00") + varint + b"\x01" * (count + 9)
    )  # DescribeGroups of empty names
    with pytest.raises(CorruptRecordError, match=r"250001 more in DescribeGroupsRequest\.groups"):
        parse_request(frame).body()
    tags = bytes.fromhex("000f 0005 00000001 ffff") + varint + b"\0" * count * 2
    with pytest.raises(CorruptRecordError, match="250002 more in the tagged fields of a header"):
        parse_request(tags)


def test_elements_of_all_arrays_of_a_message_count_together() -> None:
    topic = OffsetFetchRequestTopics(name="t", partition_indexes=(1, 2, 3))
    request = OffsetFetchRequest(groups=(OffsetFetchRequestGroup(group_id="g", topics=(topic, topic)),))
    data = request.encode(8)
    assert OffsetFetchRequest.decode_from(FrameReader(data, file="x", elements_max=9), 8) == request
    with pytest.raises(CorruptRecordError, match="fewer elements"):
        OffsetFetchRequest.decode_from(FrameReader(data, file="x", elements_max=8), 8)
