# Where the fields lie with which every log batch begins, in all versions ("magic"): see docs/format/log_batch.md.
cdef enum:
    LENGTH_AT = 8
    LENGTH_OVERHEAD = 12       # a batch is `length` plus this long
    MAGIC_AT = 12
    MAGIC_MAX = 2
    HEADER_BYTES = 48          # 52 in magic 1, 56 in magic 2
