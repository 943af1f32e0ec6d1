from collections.abc import Sequence

import pyarrow as pa

def statistics_block(record_batch: pa.RecordBatch, positions: Sequence[int]) -> bytes: ...
