"""Spark SQL: catalogs, databases, tables, DDL and procedures. `live_*` is about clusters, `lake_*` about Paimon."""
