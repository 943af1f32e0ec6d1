from forebay.codec._slices import RowSlices
from forebay.kv._hlog import HashLog

def put_records(
    log: HashLog,
    data: bytes | memoryview,
    start: int,
    count: int,
    schema_id: int,
    full_image: bool,
    deletes_ignored: bool,
) -> tuple[bytes, RowSlices, RowSlices, int] | None: ...
