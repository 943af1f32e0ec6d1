"""Catalogs: databases, tables and views in a folder, an SQL database or a REST service."""
