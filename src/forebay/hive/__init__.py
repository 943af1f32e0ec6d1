"""Catalogs of Paimon tables in a Hive Metastore: `Catalog.open({"metastore": "hive", "uri": "thrift://host:9083"})`.

    catalog.py     HiveCatalog: databases, tables and views of a metastore
    metastore.py   the metastore's protocol; metastore.thrift declares its structs
    tables.py      how the metastore describes a table
    views.py       how it describes a view
    commits.py     commits under the metastore's locks

The package is an extension of the lake engine, which finds it by an entry point of the group `forebay.catalogs`.
"""
