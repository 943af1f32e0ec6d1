"""The change types, shared by the changelogs of live tables and lake tables.

They are those of Fluss's changelog tables; Paimon and Flink write them +I, -U, +U and -D.
"""

from __future__ import annotations

CHANGE_TYPE_COLUMN = "_change_type"
"""The column with the change type of a row, dictionary-encoded strings: one of `CHANGE_TYPES`."""

INSERT, UPDATE_BEFORE, UPDATE_AFTER, DELETE = CHANGE_TYPES = ("insert", "update_before", "update_after", "delete")
"""The values of that column, in the order of the row kinds +I, -U, +U, -D."""
