"""Hadoop's file systems in Spark's JVM."""

from __future__ import annotations

from py4j.protocol import Py4JJavaError

from forebay.spark.jvm.gateway import Jvm, once_per_jvm


@once_per_jvm
def has_file_system(jvm: Jvm, scheme: str) -> bool:
    """Whether the class path of this Spark has a file system for URIs of `scheme`."""
    try:
        settings = jvm.context._jsc.hadoopConfiguration()
        jvm.class_("org.apache.hadoop.fs.FileSystem").getFileSystemClass(scheme, settings)
    except Py4JJavaError:  # no class is configured, or the configured class is missing
        return False
    return True
