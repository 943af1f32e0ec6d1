"""Options of a stream table that its lake table inherits."""

from __future__ import annotations

from collections.abc import Collection

from forebay.base.errors import ErrorCode, InvalidRequest
from forebay.metadata.table import TableDescriptor


def lake_options(
    descriptor: TableDescriptor, prefix: str, reserved: Collection[str], follows_from: str
) -> dict[str, str]:
    """All options of the table by their names in the stream, where those of the format have the prefix `prefix`.

    `reserved` are options of the format that cannot be set, because they follow from `follows_from`; raises
    `InvalidRequest` for them.
    """
    merged = {**descriptor.properties, **descriptor.custom_properties}
    for name in merged:
        if name.removeprefix(prefix) in reserved:
            raise InvalidRequest(
                f"option '{name}' follows from the table's {follows_from}, and cannot be set",
                ErrorCode.INVALID_CONFIG_EXCEPTION,
            )
    return merged
