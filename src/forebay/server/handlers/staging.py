"""Transactions: begun, staged, committed, aborted, listed (`forebay.server.transactions.manager`).

A Forebay extension of the protocol, with its own API keys (docs/protocol.md).
"""

from __future__ import annotations

import asyncio
from typing import Any

from forebay.base.errors import InvalidRequest
from forebay.metadata.table import TableBucket
from forebay.protocol import fluss_pb2 as pb
from forebay.protocol.api import ApiKey
from forebay.protocol.messages import Message, partition_id_of
from forebay.server.context import ServerCall, ServerContext, serves
from forebay.server.metadata_store import StoredCommit
from forebay.server.transactions.transaction import CommitAuthor, TransactionDescription, TransactionState

_OPERATION_CHARS_MAX = 100


@serves(ApiKey.BEGIN_TRANSACTION)
async def begin_transaction(context: ServerContext, call: ServerCall) -> Message:
    """Begin a version of an application, or say that it is committed."""
    request = call.message
    begun = await context.in_coordinator(context.transactions.begin, request.application, request.version, request.join)
    is_committed = begun.state == TransactionState.COMMITTED
    return pb.BeginTransactionResponse(
        transaction_id=begun.transaction_id, committed_ms=begun.changed_ms if is_committed else None
    )


@serves(ApiKey.STAGE_ROWS)
async def stage_rows(context: ServerContext, call: ServerCall) -> Message:
    """Stage rows of an attempt. Requests of one attempt are checked together, and staged in order of arrival."""
    request = call.message
    context.limits.check_items(len(request.buckets_req), "buckets")
    batches = [
        (TableBucket(request.table_id, message.bucket_id, partition_id_of(message)), payload)
        for message, payload in zip(request.buckets_req, call.payloads, strict=True)
    ]
    targets = tuple(request.target_columns)
    checking = asyncio.create_task(context.in_io(context.transactions.check, batches, targets))
    checking.add_done_callback(_may_go_unheard)
    try:
        async with context.stage_turn(request.transaction_id, request.attempt):
            await checking
            await context.in_io(
                context.transactions.stage,
                request.transaction_id,
                request.attempt,
                request.sequence,
                batches,
                targets,
            )
    finally:
        checking.cancel()
    return pb.StageRowsResponse()


def _may_go_unheard(done: asyncio.Future[Any]) -> None:
    """Let asyncio not log an error that no task awaits any more."""
    if not done.cancelled():
        done.exception()


@serves(ApiKey.FINISH_STAGE)
async def finish_stage(context: ServerContext, call: ServerCall) -> Message:
    """Make an attempt durable."""
    request = call.message
    async with context.stage_turn(request.transaction_id, request.attempt):
        size = await context.in_io(
            context.transactions.finish, request.transaction_id, request.attempt, request.requests
        )
    return pb.FinishStageResponse(size_bytes=size)


@serves(ApiKey.COMMIT_TRANSACTION)
async def commit_transaction(context: ServerContext, call: ServerCall) -> Message:
    """Commit the rows of some attempts; respond when they are all written."""
    request = call.message
    context.limits.check_items(len(request.attempts), "attempts")
    context.limits.check_items(sum(len(each.buckets) for each in request.unchanged_since), "buckets")
    unchanged_since = {
        each.table_id: {
            TableBucket(each.table_id, message.bucket_id, partition_id_of(message)): message.log_offset
            for message in each.buckets
        }
        for each in request.unchanged_since
    }
    for condition in request.unchanged_since:
        for each in condition.buckets:
            if each.log_epoch not in ("", context.epochs.current.epoch):
                bucket = TableBucket(condition.table_id, each.bucket_id, partition_id_of(each))
                async with context.using(bucket):
                    context.epochs.check(bucket, each.log_offset, each.log_epoch)
    author = CommitAuthor(call.principal or "", _operation(request.operation))
    committing = context.transactions.commit(request.transaction_id, tuple(request.attempts), unchanged_since, author)
    waiting: asyncio.Future[int] = asyncio.wrap_future(committing)
    waiting.add_done_callback(_may_go_unheard)  # of a client that has gone
    return pb.CommitTransactionResponse(committed_ms=await asyncio.shield(waiting))


def _operation(name: str) -> str:
    """The name that a client gives to what it does. Raises `InvalidRequest` for one that cannot be shown."""
    if len(name) > _OPERATION_CHARS_MAX or not name.isprintable():
        raise InvalidRequest(
            f"{name[:_OPERATION_CHARS_MAX]!r} cannot be the name of an operation: it has up to {_OPERATION_CHARS_MAX} "
            "printable characters"
        )
    return name


@serves(ApiKey.ABORT_TRANSACTION)
async def abort_transaction(context: ServerContext, call: ServerCall) -> Message:
    """End a transaction, and drop its rows."""
    await context.in_coordinator(context.transactions.abort, call.message.transaction_id)
    return pb.AbortTransactionResponse()


@serves(ApiKey.LIST_TRANSACTIONS)
async def list_transactions(context: ServerContext, call: ServerCall) -> Message:
    """Return the transactions, of one application if requested, or the history of a table."""
    request = call.message
    response = pb.ListTransactionsResponse()
    if request.HasField("commits_of_table"):
        commits = await context.in_coordinator(context.transactions.commits, request.commits_of_table)
        response.commits.extend(map(_commit_to_pb, commits))
        return response
    transactions = context.transactions.describe(request.application if request.HasField("application") else None)
    response.transactions.extend(map(transaction_to_pb, transactions))
    return response


def _commit_to_pb(each: StoredCommit) -> pb.PbTableCommit:
    return pb.PbTableCommit(
        number=each.number,
        committed_ms=each.committed_ms,
        transaction_id=each.transaction_id,
        application=each.application,
        version=each.version,
        user=each.user,
        operation=each.operation,
        rows=each.rows,
    )


def transaction_to_pb(each: TransactionDescription) -> pb.PbTransactionInfo:
    """Return a transaction's description as the message of ListTransactions."""
    return pb.PbTransactionInfo(
        transaction_id=each.transaction_id,
        application=each.application,
        version=each.version,
        state=int(each.state),
        changed_ms=each.changed_ms,
        stages=each.stages,
        staged_bytes=each.staged_bytes,
    )
