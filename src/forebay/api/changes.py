"""The words for changes, the same for the changelog of a live table and of a lake table.

They are those of Fluss's changelog tables; Paimon and Flink write +I, -U, +U and -D for the same.
"""

from __future__ import annotations

CHANGE_TYPE_COLUMN = "_change_type"
"""The column that says what a row is, a dictionary of texts: one of `CHANGE_TYPES`."""

INSERT, UPDATE_BEFORE, UPDATE_AFTER, DELETE = CHANGE_TYPES = ("insert", "update_before", "update_after", "delete")
"""The values of that column, in the order of the row kinds +I, -U, +U, -D."""
