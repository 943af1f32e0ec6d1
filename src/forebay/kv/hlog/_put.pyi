from forebay.codec.rows._slices import RowSlices
from forebay.kv._merge import MergePlan
from forebay.kv.auto_increment import AutoIncrementSequence
from forebay.kv.hlog._log import HashLog

def put_records(
    log: HashLog,
    data: bytes | memoryview,
    start: int,
    count: int,
    plan: MergePlan,
    sequence: AutoIncrementSequence | None,
) -> tuple[bytes, RowSlices, RowSlices, int] | None: ...
