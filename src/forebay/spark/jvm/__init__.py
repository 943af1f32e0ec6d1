"""Spark's JVM seen from Python: the gateway, proxies that it calls, releases, jobs, and a Java to run it.

Nothing else of forebay.spark is imported here.
"""
