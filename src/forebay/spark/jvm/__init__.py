"""Spark's JVM from Python: the gateway (`Jvm`), and the functions that use it.

`forebay.spark.jvm.gateway` lists the modules. Two need no JVM: `releases` has the differences between releases of
PySpark, and `java_home` finds a Java for Spark. `spark_jobs` runs Python functions as Spark jobs.

This package imports no other part of forebay.spark.
"""
