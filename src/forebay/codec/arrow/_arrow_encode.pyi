from typing import Any

import pyarrow as pa

def encode_message(record_batch: pa.RecordBatch, prefix: bytes, codec: Any = None, codec_id: int = -1) -> bytearray: ...
