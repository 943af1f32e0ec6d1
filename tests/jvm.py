"""JVM settings of Spark in tests."""

from __future__ import annotations

QUICK = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=192m -XX:MetaspaceSize=192m"
"""The second compiler of a JVM never earns what it takes in so short a life: without it the README's Spark program
takes 25 CPU seconds, and not 37. With one compiler a JVM has 48 MB for compiled code, which Spark fills: then it drops
code and compiles it again. Where it expects few classes, it collects all garbage each time that there are more."""

QUICK_JVM = {"JAVA_TOOL_OPTIONS": QUICK}
"""Environment of a program that has a Spark to itself."""
