"""Merging of the sorted runs of a primary-key table's bucket: pure functions over Arrow columns.

`merge_function(schema)` says how rows of one key become one, `merge_runs` merges sorted runs, `sort_and_merge_buffer`
makes a run of a write buffer, `interval_partition` says which files must be merged at all. Reading order of the
modules: `spec` and `functions` (options), `order` (keys), `windows`, `runs`, `buffers`, `engines`, `folds`, `nested`;
`spilling` is the only one that touches a disk, and only where there are very many runs.
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
