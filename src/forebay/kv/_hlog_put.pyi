from forebay.codec.rows._slices import RowSlices
from forebay.kv._hlog import HashLog
from forebay.kv._merge import MergePlan
from forebay.kv.auto_increment import AutoIncrementSequence

def put_records(
    log: HashLog,
    data: bytes | memoryview,
    start: int,
    count: int,
    plan: MergePlan,
    sequence: AutoIncrementSequence | None,
) -> tuple[bytes, RowSlices, RowSlices, int] | None: ...
