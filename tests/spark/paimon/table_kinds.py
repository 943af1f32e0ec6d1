"""Properties of the kinds of lake tables that row-level commands change."""

from __future__ import annotations

KINDS = {
    "append": "",
    "buckets": "'bucket'='2', 'bucket-key'='id'",
    "key": "'primary-key'='id', 'bucket'='2'",
    "dynamic": "'primary-key'='id', 'bucket'='-1'",
    "sequence": "'primary-key'='id', 'bucket'='2', 'sequence.field'='amount'",
    "partial": """'primary-key'='id', 'bucket'='1', 'merge-engine'='partial-update',
                  'partial-update.remove-record-on-delete'='true'""",
}
