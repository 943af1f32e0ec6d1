"""The lake SPI: what a lake format must implement so that Forebay can tier into it and read it together with a log.

The interfaces are those of Apache Fluss's lake decoupling (`org.apache.fluss.lake.*`), in Python and with Arrow batches
instead of rows. A format is found by its entry point in the group `forebay.lakes` (`forebay.lake.storage`), so third
parties can add one without changing Forebay; it must pass the suite `forebay.testing.lake_contract`.

    storage.py    LakeStorage: the entry point; LakeCatalog: creates and alters lake tables
    source.py     LakeSource, LakeSplit, Planner, RecordReader, SortedRecordReader: reading one lake snapshot
    tiering.py    LakeTieringFactory, LakeWriter, LakeCommitter: writing rounds of a log into the lake
    records.py    ChangeRows: a run of log records as one Arrow batch
    offsets.py    BucketOffsets: how far each bucket's log is in the lake, and its JSON
    lru_cache.py  LruCache: opened lakes, tables and plans, bounded in number and size
"""
