"""Where Spark finds the format "forebay": it imports every top-level module named `pyspark_*` for its `DefaultSource`.

An import that fails would make Spark forget all formats that it finds this way, so this module never fails: without a
working forebay.spark there is no `DefaultSource` here, the log says why, and Spark does not know the format.
"""

from __future__ import annotations

try:
    from forebay.spark.datasource import ForebayDataSource as DefaultSource
except Exception as error:  # noqa: BLE001 - whatever it is, other people's formats must not suffer
    import logging

    logging.getLogger(__name__).warning("the Spark format 'forebay' is not available: %s", error)
else:
    __all__ = ["DefaultSource"]
