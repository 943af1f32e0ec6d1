"""Views that are stored in lake catalogs, for Spark 4.2 and newer, which requests them through `RelationCatalog`.

The catalog stores a view's text. Spark parses and analyzes it whenever the view is read. Its meaning depends on more:
the catalog and namespace of unqualified names, settings such as ANSI mode, and the columns of the query. These are
stored as options of Paimon's view, under the names that Spark uses in a Hive Metastore (`view.*`), with two
differences. If unqualified names refer to the view's own catalog, the name of the catalog is left out, because other
sessions attach it under other names. If they refer to the view's own database, nothing is stored.

Views of other software have no such options. Their unqualified names refer to their own database, and their columns
are named by position, as in Java Paimon.

A name is either a table's or a view's. Methods for tables report that a view does not exist, and methods for views that
a table does not exist, as Spark requires.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

from pyspark.sql.types import StructType

from forebay.base.errors import AlreadyExists, ErrorCode, InvalidRequest, NotFound, UnsupportedOperation
from forebay.spark.jvm.exceptions import analysis_exception
from forebay.spark.jvm.gateway import CONNECTOR, JavaObject, JavaThrow, Jvm
from forebay.spark.jvm.proxy import JavaProxy
from forebay.spark.jvm.spark_values import java_identifier, python_schema, quoted, struct_type
from forebay.spark.jvm.values import java_map, string_array
from forebay.spark.schemas import table_schema, to_fields
from forebay.spark.sql.catalog import RELATION_CATALOG, SqlCatalog
from forebay.spark.sql.live_ddl import COMMENT
from forebay.spark.sql.requests import names_in, texts_in

if TYPE_CHECKING:
    from forebay.paimon.catalog.catalog import Catalog
    from forebay.paimon.catalog.views import View

_DIALECT = "spark"
_OWN = "view."
_NAMES, _COLUMNS, _CONFIG, _MODE = "view.catalogAndNamespace", "view.query.out", "view.sqlConfig.", "view.schemaMode"
_BINDING, _COMPENSATION = "BINDING", "COMPENSATION"
_MODES = (_BINDING, _COMPENSATION)
"""How the columns of a view follow those of its query. Spark's two other modes (EVOLUTION) change the view when it is
read. Spark then looks for the view in its own catalog, where it would change another view of that name."""

_TYPE = "table_type"
_OF_SPARK = frozenset({COMMENT, _TYPE, "owner", "collation"})
"""Properties that are not stored as options of the view."""


@dataclass(frozen=True)
class SparkView:
    """A view in Spark's terms. Unqualified names in `text` refer to `catalog` and `namespace`."""

    text: str
    schema: StructType
    catalog: str
    namespace: tuple[str, ...]
    configs: Mapping[str, str]
    mode: str
    query_columns: tuple[str, ...]
    options: Mapping[str, str]
    comment: str | None


class ViewCatalog(SqlCatalog):
    """A catalog of tables, and of the views in `CatalogSide.views`."""

    interfaces: ClassVar[tuple[str, ...]] = (RELATION_CATALOG,)
    has_views: ClassVar[bool] = True

    @property
    def _lake_of_views(self) -> Catalog:
        lake = self._side.views
        assert lake is not None, "a side without views has a catalog without views"
        return lake

    def _prepare(self, identifier: JavaObject) -> None:
        """Create the database of a new view in the lake if needed.

        Throws ViewAlreadyExistsException if a table outside the lake has the name; the lake checks its own names.
        """
        try:
            self._side.prepare_view(self._named(identifier))
        except AlreadyExists as e:
            raise analysis_exception(self.jvm, "ViewAlreadyExistsException", identifier) from e

    # ---- loading views ----------------------------------------------------------------------------------------------

    def loadRelation(self, identifier: JavaObject, *options: Any) -> Any:
        """The table, or else the view. Tables are tried first, as most names are tables."""
        try:
            return self.loadTable(identifier)
        except JavaThrow as e:
            view = self._view(identifier) if e.is_a("NoSuchTableException") else None
            if view is None:
                raise
        return self._to_spark(view)

    def loadView(self, identifier: JavaObject) -> JavaObject:
        view = self._view(identifier)
        if view is None:
            raise self._no_such_view(identifier)
        return self._to_spark(view)

    def viewExists(self, identifier: JavaObject) -> bool:
        return self._view(identifier) is not None

    def listViews(self, namespace: JavaObject) -> JavaObject:
        database = self._database(namespace)
        if not self._side.has_database(database):
            raise self._no_such_namespace([database])
        names = [java_identifier(self.jvm, [database], name) for name in self._views_of(database)]
        return self.jvm.array(CONNECTOR + "catalog.Identifier", names)

    def listRelationSummaries(self, namespace: JavaObject) -> JavaObject:
        """Tables and views, ordered by name, for SHOW TABLES."""
        summaries = [*self.listTableSummaries(namespace)]
        make = self.jvm.class_(CONNECTOR + "catalog.TableSummary").of
        summaries += [make(identifier, "VIEW") for identifier in self.listViews(namespace)]
        summaries.sort(key=lambda summary: str(summary.identifier().name()))
        return self.jvm.array(CONNECTOR + "catalog.TableSummary", summaries)

    def _views_of(self, database: str) -> list[str]:
        try:
            return self._lake_of_views.list_views(database)
        except (NotFound, UnsupportedOperation):  # only the other side has the database, or the server has no views
            return []

    def _view(self, identifier: JavaObject) -> View | None:
        namespace, name = names_in(identifier.namespace()), str(identifier.name())
        if len(namespace) != 1 or "$" in name:
            return None
        try:
            return self._lake_of_views.view(f"{namespace[0]}.{name}")
        except (NotFound, InvalidRequest):  # or the name is not valid for a view
            return None

    def _no_such_view(self, identifier: JavaObject) -> Exception:
        return analysis_exception(self.jvm, "NoSuchViewException", identifier)

    def _to_spark(self, view: View) -> JavaObject:
        return _to_java(self.jvm, _from_lake(view, self._context.catalog))

    # ---- creating and altering views --------------------------------------------------------------------------------

    def createView(self, identifier: JavaObject, spark_view: JavaObject) -> JavaObject:
        return self._put(identifier, spark_view, replace=False)

    def createOrReplaceView(self, identifier: JavaObject, spark_view: JavaObject) -> JavaObject:
        return self._put(identifier, spark_view, replace=True)

    def _put(self, identifier: JavaObject, spark_view: JavaObject, *, replace: bool) -> JavaObject:
        name = self._named(identifier)
        if not self._side.has_database(name.database):
            raise self._no_such_namespace([name.database])
        view = _to_lake(str(name), self._context.catalog, _from_java(self.jvm, spark_view))
        self._prepare(identifier)
        try:
            self._store(view, replace)
        except AlreadyExists as e:
            raise analysis_exception(self.jvm, "ViewAlreadyExistsException", identifier) from e
        return spark_view

    def _store(self, view: View, replace: bool) -> None:
        self._lake_of_views.create_view(
            view.name, view.fields, view.query, dialects=view.dialects, comment=view.comment,
            options=view.options, replace=replace,
        )  # fmt: skip

    def replaceView(self, identifier: JavaObject, spark_view: JavaObject) -> JavaObject:
        """Called by ALTER VIEW, with the whole view. Texts for other engines are kept if the query does not change."""
        old = self._view(identifier)
        if old is None:
            raise self._no_such_view(identifier)
        current, requested = _from_lake(old, self._context.catalog), _from_java(self.jvm, spark_view)
        new = _to_lake(old.name, self._context.catalog, requested)
        if replace(current, options={}, comment=None) == replace(requested, options={}, comment=None):
            own_options = {name: value for name, value in old.options.items() if name.startswith(_OWN)}
            new = replace(old, options={**own_options, **requested.options}, comment=requested.comment)
        self._store(new, replace=True)
        return spark_view

    def dropView(self, identifier: JavaObject) -> bool:
        """Whether the view existed. Views whose definition cannot be read are dropped, too."""
        try:
            self._lake_of_views.drop_view(str(self._named(identifier)))
        except (NotFound, JavaThrow):  # or the namespace is not a database
            return False
        return True

    def renameView(self, old: JavaObject, new: JavaObject) -> None:
        """Throws NoSuchViewException, and ViewAlreadyExistsException for the name of a table or view."""
        view, target = self._view(old), self._without_catalog(new)
        if view is None:
            raise self._no_such_view(old)
        self._prepare(target)
        try:
            self._lake_of_views.rename_view(view.name, str(self._named(target)))
        except AlreadyExists as e:
            raise analysis_exception(self.jvm, "ViewAlreadyExistsException", target) from e

    # ---- tables, whose names no view has ----------------------------------------------------------------------------

    def _refuse_view(self, identifier: JavaObject) -> None:
        if self.viewExists(identifier):
            raise analysis_exception(self.jvm, "TableAlreadyExistsException", identifier)

    def stageCreateOrReplace(self, identifier: JavaObject, *what: Any) -> JavaProxy:
        if self.viewExists(identifier):  # Spark declares no exception for this method
            raise AlreadyExists(f"{self._full_name(identifier)} is a view, and no table that could be replaced")
        return super().stageCreateOrReplace(identifier, *what)

    def renameTable(self, old: JavaObject, new: JavaObject) -> None:
        self._refuse_view(self._without_catalog(new))
        super().renameTable(old, new)

    def createTable(self, identifier: JavaObject, *what: Any) -> JavaProxy:
        self._refuse_view(identifier)
        return super().createTable(identifier, *what)

    def createTableLike(self, identifier: JavaObject, what: JavaObject, source: JavaObject) -> JavaProxy:
        self._refuse_view(identifier)
        return super().createTableLike(identifier, what, source)

    def stageCreate(self, identifier: JavaObject, *what: Any) -> JavaProxy:
        self._refuse_view(identifier)
        return super().stageCreate(identifier, *what)

    def _drop_database(self, database: str, cascade: bool) -> None:
        if not cascade and self._views_of(database):
            raise InvalidRequest(f"database '{database}' has views", ErrorCode.DATABASE_NOT_EMPTY)
        super()._drop_database(database, cascade)


# ---- Spark's views and Paimon's --------------------------------------------------------------------------------------


def _from_java(jvm: Jvm, spark_view: JavaObject) -> SparkView:
    """The view in Spark's object. Raises `UnsupportedOperation` for properties that a lake cannot store."""
    properties = texts_in(spark_view.properties())
    kind = properties.get(_TYPE, "VIEW")
    if kind != "VIEW":
        raise UnsupportedOperation(f"a lake keeps views of SELECT statements, no {kind.replace('_', ' ').lower()}s")
    mode = str(spark_view.schemaMode() or _BINDING)
    if mode not in _MODES:
        raise UnsupportedOperation(
            f"a view of a lake cannot have WITH SCHEMA {mode}: Spark changes such views in its own catalog only; leave "
            "it out, and repeat CREATE OR REPLACE VIEW once the tables have other columns"
        )
    if "collation" in properties:
        raise UnsupportedOperation(
            f"a view of a lake cannot have DEFAULT COLLATION {properties['collation']}; write COLLATE in its query"
        )
    options = {name: value for name, value in properties.items() if name not in _OF_SPARK}
    reserved = sorted(name for name in options if name.startswith(_OWN))
    if reserved:
        raise InvalidRequest(f"property '{reserved[0]}' is one of Spark's own; choose a name without 'view.' in front")
    return SparkView(
        str(spark_view.queryText()),
        python_schema(spark_view.schema()),
        str(spark_view.currentCatalog() or ""),
        tuple(names_in(spark_view.currentNamespace())),
        texts_in(spark_view.sqlConfigs()),
        mode,
        tuple(names_in(spark_view.queryColumnNames())),
        options,
        properties.get(COMMENT),
    )


def _to_java(jvm: Jvm, view: SparkView) -> JavaObject:
    builder = jvm.class_(CONNECTOR + "catalog.View$Builder")()
    properties = dict(view.options) if view.comment is None else {**view.options, COMMENT: view.comment}
    builder.withSchema(struct_type(jvm, view.schema)).withProperties(java_map(jvm, properties)).withQueryText(view.text)
    builder.withCurrentCatalog(view.catalog).withCurrentNamespace(string_array(jvm, view.namespace))
    builder.withSqlConfigs(java_map(jvm, view.configs)).withSchemaMode(view.mode)
    return builder.withQueryColumnNames(string_array(jvm, view.query_columns)).build()


def _to_lake(name: str, catalog: str, view: SparkView) -> View:
    """The view to store as `name`; `catalog` is the session's name of the catalog."""
    from forebay.paimon.catalog.definition import new_fields
    from forebay.paimon.catalog.views import View

    own = {f"{_CONFIG}{key}": value for key, value in view.configs.items()} | {_MODE: view.mode}
    is_own = view.catalog == catalog
    if not is_own or view.namespace not in ((), (name.partition(".")[0],)):
        own |= _numbered(_NAMES, "Parts", "part", view.namespace if is_own else (view.catalog, *view.namespace))
    own |= _numbered(_COLUMNS, "Cols", "col", view.query_columns)
    fields = new_fields([replace(f, default=None) for f in to_fields(view.schema)])
    return View(name, fields, view.text, {_DIALECT: view.text}, view.comment, {**own, **view.options})


def _from_lake(view: View, catalog: str) -> SparkView:
    own = {key: value for key, value in view.options.items() if key.startswith(_OWN)}
    names = _listed(own, _NAMES, "Parts", "part")
    if names is None:
        names = (catalog, view.name.partition(".")[0])
    elif len(names) == 1:
        names = (catalog, *names)
    mode, columns = own.get(_MODE, _BINDING), _listed(own, _COLUMNS, "Cols", "col")
    schema, text = table_schema(view.fields), view.query_for(_DIALECT)
    if columns is None:
        columns = tuple(schema.names)
        if mode in _MODES:  # otherwise Spark's own catalog wrote the view, whose columns are those of its query
            text = _by_position(view.name, text, columns)
    return SparkView(
        text,
        schema,
        names[0],
        names[1:],
        {key.removeprefix(_CONFIG): value for key, value in own.items() if key.startswith(_CONFIG)},
        mode if mode in _MODES else _COMPENSATION,
        columns,
        {key: value for key, value in view.options.items() if key not in own},
        view.comment,
    )


def _by_position(name: str, text: str, columns: Sequence[str]) -> str:
    """A query of other software, wrapped to name its columns by position. Spark would look them up by name."""
    listed = ", ".join(map(quoted, columns))
    return f"SELECT * FROM (\n{text.rstrip().rstrip(';')}\n) AS {quoted(name.partition('.')[2])} ({listed})"


def _numbered(prefix: str, count: str, item: str, values: Sequence[str]) -> dict[str, str]:
    """The options of a list in Spark's notation: its length, and each value."""
    numbered = {f"{prefix}.{item}.{index}": value for index, value in enumerate(values)}
    return {f"{prefix}.num{count}": str(len(values)), **numbered}


def _listed(options: Mapping[str, str], prefix: str, count: str, item: str) -> tuple[str, ...] | None:
    """The list that `_numbered` wrote; None without one. Raises `InvalidRequest` for a list with gaps."""
    length = options.get(f"{prefix}.num{count}")
    if length is None:
        return None
    try:
        return tuple(options[f"{prefix}.{item}.{index}"] for index in range(int(length)))
    except (KeyError, ValueError) as e:
        raise InvalidRequest(f"a view has '{prefix}.num{count}' = '{length}', and not so many {item}s: {e}") from e
