"""Where Spark finds the format "forebay-paimon": one module of the name `pyspark_*` for each format (pyspark_forebay).

This module never fails, for the reason given there.
"""

from __future__ import annotations

try:
    from forebay.spark.lake_datasource import PaimonDataSource as DefaultSource
except Exception as error:  # noqa: BLE001 - whatever it is, other people's formats must not suffer
    import logging

    logging.getLogger(__name__).warning("the Spark format 'forebay-paimon' is not available: %s", error)
else:
    __all__ = ["DefaultSource"]
