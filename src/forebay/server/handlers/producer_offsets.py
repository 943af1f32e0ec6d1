"""Producer offsets: what a sink stores under a producer id, to recover exactly once. They expire."""

from __future__ import annotations

from forebay.base.errors import ErrorCode, InvalidRequest
from forebay.protocol import fluss_pb2 as pb
from forebay.protocol.api import ApiKey
from forebay.protocol.messages import Message, parse
from forebay.server.context import ServerCall, ServerContext, serves

_CREATED, _ALREADY_EXISTS = 0, 1


def _check_producer_id(producer_id: str) -> None:
    if not producer_id.strip():
        raise InvalidRequest("a producer id must not be empty", ErrorCode.INVALID_PRODUCER_ID_EXCEPTION)


@serves(ApiKey.REGISTER_PRODUCER_OFFSETS)
async def register_producer_offsets(context: ServerContext, call: ServerCall) -> Message:
    """Store offsets under a producer id, first writer wins, until they expire (exactly-once recovery of sinks)."""
    request = call.message
    _check_producer_id(request.producer_id)
    ttl_ms = request.ttl_ms if request.HasField("ttl_ms") else context.config.value("coordinator.producer-offsets.ttl")
    now = context.clock.now_ms()
    expires = min(now + ttl_ms, (1 << 63) - 1)  # "for ever" is as long as the clock goes
    stored = pb.GetProducerOffsetsResponse(table_offsets=request.table_offsets)
    created = await context.in_coordinator(
        context.store.put_producer_offsets, request.producer_id, expires, stored.SerializeToString(), now
    )
    return pb.RegisterProducerOffsetsResponse(result=_CREATED if created else _ALREADY_EXISTS)


@serves(ApiKey.GET_PRODUCER_OFFSETS)
async def get_producer_offsets(context: ServerContext, call: ServerCall) -> Message:
    """Return the unexpired offsets of a producer id."""
    producer_id = call.message.producer_id
    _check_producer_id(producer_id)
    stored = await context.in_coordinator(context.store.producer_offsets, producer_id, context.clock.now_ms())
    if stored is None:
        return pb.GetProducerOffsetsResponse()
    expires_ms, offsets = stored
    response = parse(pb.GetProducerOffsetsResponse, offsets)
    response.producer_id = producer_id
    response.expiration_time = expires_ms
    return response


@serves(ApiKey.DELETE_PRODUCER_OFFSETS)
async def delete_producer_offsets(context: ServerContext, call: ServerCall) -> Message:
    """Delete the offsets of a producer id."""
    _check_producer_id(call.message.producer_id)
    await context.in_coordinator(context.store.delete_producer_offsets, call.message.producer_id)
    return pb.DeleteProducerOffsetsResponse()
