"""Short requests: what the compiled reader takes is what protobuf would have read, and answers are protobuf's bytes."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.protocol import fluss_pb2 as pb
from forebay.protocol._short import (
    FRAME_BYTES_MAX,
    KEYS_MAX,
    ShortRequest,
    decode,
    decode_values,
    encode_values,
    encode_written,
)
from forebay.protocol.api import ApiKey
from forebay.protocol.frames import FrameType, encode_request, encode_response

INT32, INT64 = st.integers(-(2**31), 2**31 - 1), st.integers(-(2**63), 2**63 - 1)
PARTITIONS = st.none() | INT64
PLACES = st.fixed_dictionaries(
    {"bucket_id": INT32, "partition_id": PARTITIONS, "routing_bucket_count": st.none() | INT32}
)


def framed(key: ApiKey, message: Any, version: int = 1, request_id: int = 7) -> bytes:
    return b"".join(
        bytes(part) for part in encode_request(key, version, request_id, [message.SerializePartialToString()])
    )


def short(key: ApiKey, message: Any) -> ShortRequest | None:
    """The request, read from the middle of a buffer that goes on behind it."""
    frame = framed(key, message)
    found = decode(bytearray(b"before" + frame + b"behind"), 6, 6 + len(frame) + 6)
    if found is not None:
        assert (found.api_key, found.api_version, found.request_id) == (key, 1, 7)
        assert found.end == 6 + len(frame)
    return found


@given(INT32, INT64, INT32, PLACES, st.binary(max_size=100))
def test_an_append_to_one_bucket_is_read_as_protobuf_reads_it(
    acks: int, table_id: int, timeout_ms: int, place: dict[str, Any], records: bytes
) -> None:
    message = pb.ProduceLogRequest(acks=acks, table_id=table_id, timeout_ms=timeout_ms)
    message.buckets_req.add(records=records, **place)
    found = short(ApiKey.PRODUCE_LOG, message)
    assert found is not None
    assert (found.acks, found.timeout_ms, found.records) == (acks, timeout_ms, records)
    assert found.bucket == (table_id, place["bucket_id"], place["partition_id"])


@given(INT64, PLACES, st.binary(max_size=100), st.lists(INT32, max_size=5), st.sampled_from([None, 0, 1, 2]))
def test_a_put_into_one_bucket_is_short_unless_it_asks_for_a_mode(
    table_id: int, place: dict[str, Any], records: bytes, targets: list[int], mode: int | None
) -> None:
    message = pb.PutKvRequest(acks=-1, table_id=table_id, timeout_ms=1000, target_columns=targets, agg_mode=mode)
    message.buckets_req.add(records=records, **place)
    found = short(ApiKey.PUT_KV, message)
    if mode:
        assert found is None
        return
    assert found is not None
    assert (found.acks, found.records, found.targets) == (-1, records, tuple(targets))
    assert found.bucket == (table_id, place["bucket_id"], place["partition_id"])


@given(INT64, PLACES, st.lists(st.binary(max_size=20), max_size=KEYS_MAX + 1))
def test_a_lookup_of_a_few_keys_is_short(table_id: int, place: dict[str, Any], keys: list[bytes]) -> None:
    message = pb.LookupRequest(table_id=table_id)
    message.buckets_req.add(keys=keys, **place)
    found = short(ApiKey.LOOKUP, message)
    if len(keys) > KEYS_MAX:
        assert found is None
        return
    assert found is not None
    assert found.keys == keys
    assert found.bucket == (table_id, place["bucket_id"], place["partition_id"])


def append(**more: Any) -> Any:
    message = pb.ProduceLogRequest(acks=-1, table_id=1, timeout_ms=1000)
    message.buckets_req.add(bucket_id=0, records=b"records")
    message.MergeFrom(pb.ProduceLogRequest(**more))
    return message


def test_what_is_special_is_not_short() -> None:
    two = append()
    two.buckets_req.add(bucket_id=1, records=b"more")
    historical = append()
    historical.buckets_req[0].original_partition_name = "p"
    long = append()
    long.buckets_req[0].records = bytes(FRAME_BYTES_MAX)
    nothing = pb.ProduceLogRequest(acks=-1, table_id=1, timeout_ms=1000)
    assert short(ApiKey.PRODUCE_LOG, append()) is not None
    assert all(short(ApiKey.PRODUCE_LOG, message) is None for message in (two, historical, long, nothing))
    for field in ("acks", "table_id", "timeout_ms"):
        lacking = append()
        lacking.ClearField(field)
        assert short(ApiKey.PRODUCE_LOG, lacking) is None
    for field in ("bucket_id", "records"):
        lacking = append()
        lacking.buckets_req[0].ClearField(field)
        assert short(ApiKey.PRODUCE_LOG, lacking) is None
    inserting = pb.LookupRequest(table_id=1, insert_if_not_exists=True)
    inserting.buckets_req.add(bucket_id=0, keys=[b"k"])
    assert short(ApiKey.LOOKUP, inserting) is None
    assert short(ApiKey.PREFIX_LOOKUP, append()) is None
    frame = framed(ApiKey.PRODUCE_LOG, append())
    assert all(decode(frame, 0, end) is None for end in range(len(frame)))
    assert decode(frame, 0, len(frame) + 1) is None


@given(st.data())
def test_whatever_is_taken_from_changed_bytes_is_what_protobuf_reads(data: st.DataObject) -> None:
    key, message_class = data.draw(
        st.sampled_from([(ApiKey.PRODUCE_LOG, pb.ProduceLogRequest), (ApiKey.PUT_KV, pb.PutKvRequest)])
    )
    message = message_class(acks=-1, table_id=data.draw(INT64), timeout_ms=5)
    message.buckets_req.add(
        bucket_id=3, partition_id=data.draw(PARTITIONS), records=b"records" * data.draw(st.integers(0, 30))
    )
    body = bytearray(message.SerializeToString())
    for _ in range(data.draw(st.integers(0, 3))):
        body[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))
    frame = b"".join(bytes(part) for part in encode_request(key, 1, 7, [bytes(body)]))
    found = decode(frame, 0, len(frame))
    if found is None:
        return
    read = message_class.FromString(bytes(body))
    assert read.IsInitialized()
    (bucket,) = read.buckets_req
    assert (found.acks, found.timeout_ms, found.records) == (read.acks, read.timeout_ms, bucket.records)
    partition = bucket.partition_id if bucket.HasField("partition_id") else None
    assert found.bucket == (read.table_id, bucket.bucket_id, partition)


def body_of(frame: bytes) -> bytes:
    (head,) = encode_response(FrameType.SUCCESS, 7, [frame[9:]])
    assert frame[:9] == bytes(head)[:9]
    return frame[9:]


@given(INT32, PARTITIONS, INT64)
def test_the_answer_to_a_write_has_the_bytes_of_protobuf(bucket_id: int, partition_id: int | None, offset: int) -> None:
    message = append()
    message.buckets_req[0].MergeFrom(pb.PbProduceLogReqForBucket(bucket_id=bucket_id, partition_id=partition_id))
    request = short(ApiKey.PRODUCE_LOG, message)
    assert request is not None
    body = body_of(encode_written(request, offset))
    expected = pb.ProduceLogResponse()
    expected.buckets_resp.add(bucket_id=bucket_id, partition_id=partition_id, base_offset=offset)
    assert body == expected.SerializeToString()
    put = pb.PutKvResponse()
    put.buckets_resp.add(bucket_id=bucket_id, partition_id=partition_id, log_end_offset=offset)
    assert body == put.SerializeToString()


@pytest.mark.parametrize("size", [0, 1, 127, 128, 20_000])
@given(bucket_id=INT32, partition_id=PARTITIONS, values=st.lists(st.none() | st.binary(max_size=20), max_size=5))
def test_the_answer_to_a_lookup_has_the_bytes_of_protobuf(
    size: int, bucket_id: int, partition_id: int | None, values: list[bytes | None]
) -> None:
    values = [bytes(size), *values]
    message = pb.LookupRequest(table_id=1)
    message.buckets_req.add(bucket_id=bucket_id, partition_id=partition_id, keys=[b"k"] * len(values))
    request = short(ApiKey.LOOKUP, message)
    assert request is not None
    expected = pb.LookupResponse()
    answer = expected.buckets_resp.add(bucket_id=bucket_id, partition_id=partition_id)
    for value in values:
        answer.values.add(values=value)
    assert body_of(encode_values(request, values)) == expected.SerializeToString()
    of_several = [b"other", *(value if value is None else b"skip" + value for value in values), b"another"]
    assert body_of(encode_values(request, of_several, 1, 4)) == expected.SerializeToString()
    for first, skipped in ((-1, 0), (3, 0), (0, 6)):
        with pytest.raises(ValueError, match="value"):
            encode_values(request, of_several, first, skipped)


VALUES = st.lists(st.none() | st.binary(max_size=200), max_size=20)


@given(INT32, PARTITIONS, VALUES)
def test_an_answer_to_a_lookup_is_read_as_protobuf_reads_it(
    bucket_id: int, partition_id: int | None, values: list[bytes | None]
) -> None:
    response = pb.LookupResponse()
    answer = response.buckets_resp.add(bucket_id=bucket_id, partition_id=partition_id)
    for value in values:
        answer.values.add(values=value)
    assert decode_values(response.SerializeToString()) == (bucket_id, partition_id, values)
    answer.error_code = 7
    assert decode_values(response.SerializeToString()) is None
    answer.ClearField("error_code")
    response.buckets_resp.add(bucket_id=0)
    assert decode_values(response.SerializeToString()) is None
    assert decode_values(pb.LookupResponse().SerializeToString()) is None


@given(st.data())
def test_whatever_is_read_from_a_changed_answer_is_what_protobuf_reads(data: st.DataObject) -> None:
    response = pb.LookupResponse()
    answer = response.buckets_resp.add(bucket_id=data.draw(st.integers(0, 3)), partition_id=data.draw(PARTITIONS))
    for value in data.draw(VALUES):
        answer.values.add(values=value)
    body = bytearray(response.SerializeToString())
    for _ in range(data.draw(st.integers(1, 3))):
        body[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))
    if data.draw(st.booleans()):
        del body[data.draw(st.integers(0, len(body))) :]
    found = decode_values(body)
    if found is not None:
        judged = pb.LookupResponse.FromString(bytes(body))
        (bucket,) = judged.buckets_resp
        values = [value.values if value.HasField("values") else None for value in bucket.values]
        assert found == (bucket.bucket_id, bucket.partition_id if bucket.HasField("partition_id") else None, values)
        assert not bucket.HasField("error_code")
