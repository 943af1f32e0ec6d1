"""The health of one table, by the format of its lake (`forebay.lakes.health` says what that is).

The formats are imported when a table of theirs is opened.
"""

from __future__ import annotations

from collections.abc import Mapping

from forebay.base.errors import UnsupportedOperation
from forebay.lakes.health import LakeHealth
from forebay.paimon import Catalog


def paimon_health(catalog: Catalog, path: str) -> LakeHealth:
    """The health of a table of a Paimon catalog, as its files are now. Raises `NotFound`."""
    from forebay.lakes.paimon_health import PaimonHealth

    return PaimonHealth(catalog.renewed().cached_table(path))


def iceberg_health(options: Mapping[str, str], path: str) -> LakeHealth:
    """The health of a table of the Iceberg catalog with pyiceberg's `options`.

    Raises `NotFound`, and `UnsupportedOperation` without pyiceberg.
    """
    try:
        from forebay.lakes.iceberg_health import IcebergHealth
    except ModuleNotFoundError as e:
        raise UnsupportedOperation("Iceberg lakes need pip install 'forebay[iceberg]'") from e
    return IcebergHealth(options, path)
