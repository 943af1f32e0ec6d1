"""Lake formats by name, found by their entry points in the group `forebay.lakes`.

A package adds a format in its pyproject.toml; the object is a callable that creates a `LakeStorage` from options:

    [project.entry-points."forebay.lakes"]
    paimon = "forebay.lakes.paimon:PaimonLakeStorage"

Options are a cluster's settings below `datalake.<format>.` without that prefix, as in Fluss (`datalake_options`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib.metadata import EntryPoint, entry_points

from forebay.base.errors import UnsupportedOperation
from forebay.lake.storage import LakeStorage
from forebay.metadata.table_options import LAKE_ENTRY_POINTS

_factories: dict[str, Callable[[Mapping[str, str]], LakeStorage]] = {}
"""Formats that were requested before: to find one, Python reads the metadata of every installed package."""


def lake_formats() -> tuple[str, ...]:
    """The names of the installed formats."""
    return tuple(sorted({entry.name for entry in entry_points(group=LAKE_ENTRY_POINTS)}))


def create_lake_storage(name: str, options: Mapping[str, str]) -> LakeStorage:
    """The lake of format `name`. Raises `UnsupportedOperation`, with the installed formats or the missing package."""
    factory = _factories.get(name.lower())
    if factory is not None:
        return factory(options)
    for entry in entry_points(group=LAKE_ENTRY_POINTS):
        if entry.name == name.lower():
            factory = _factories[entry.name] = _loaded(entry)
            return factory(options)
    raise UnsupportedOperation(
        f"there is no lake format {name!r}; installed are: {', '.join(lake_formats()) or 'none'}"
    )


def _loaded(entry: EntryPoint) -> Callable[[Mapping[str, str]], LakeStorage]:
    try:
        factory: Callable[[Mapping[str, str]], LakeStorage] = entry.load()
    except ModuleNotFoundError as e:
        raise UnsupportedOperation(
            f"lake format {entry.name!r} needs the package {e.name!r}, which is not installed; formats of Forebay come "
            f"with pip install 'forebay[{entry.name}]'"
        ) from e
    return factory


def datalake_options(settings: Mapping[str, str], name: str) -> dict[str, str]:
    """The options of format `name` in a cluster's settings: those with the prefix `datalake.<name>.`, without it."""
    prefix = f"datalake.{name.lower()}."
    return {key[len(prefix) :]: value for key, value in settings.items() if key.startswith(prefix)}


def needs_warehouse(name: str, options: Mapping[str, str]) -> bool:
    """Whether a lake cannot be opened without the option `warehouse`; other catalogs may know their own."""
    if name.lower() == "paimon":
        return options.get("metastore", "filesystem") in ("filesystem", "jdbc")
    has_own_catalog = not options.keys().isdisjoint({"catalog-type", "catalog-impl", "py-catalog-impl"})
    return name.lower() == "iceberg" and not has_own_catalog and options.get("type", "sql").lower() in ("sql", "jdbc")
