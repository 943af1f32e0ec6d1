"""The log of one table bucket: segments, indexes, writers' state, recovery, and the checkpoints of a data directory.

Read `tablet` first: it has the rules and the threads. `docs/format/log_segment.md` describes the files.
"""
