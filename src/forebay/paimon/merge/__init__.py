"""Merging of the sorted runs of a primary-key table's bucket: pure functions over Arrow columns.

`merge_function(schema)` determines how rows of one key are merged, `merge_runs` merges sorted runs,
`sort_and_merge_buffer` turns a write buffer into a run, `interval_partition` determines which files need merging.
Suggested reading order: `spec` and `functions` (options), `order` (keys), `windows`, `runs`, `buffers`, `engines`,
`folds`, `nested`; only `spilling` uses the disk, and only for a large number of runs.
"""

from forebay.paimon.merge.buffers import sort_and_merge_buffer, sort_buffer
from forebay.paimon.merge.intervals import interval_partition, partition_ranges
from forebay.paimon.merge.runs import merge_runs
from forebay.paimon.merge.spec import MergeEngine, MergeSpec, merge_function

__all__ = [
    "MergeEngine",
    "MergeSpec",
    "interval_partition",
    "merge_function",
    "merge_runs",
    "partition_ranges",
    "sort_and_merge_buffer",
    "sort_buffer",
]
