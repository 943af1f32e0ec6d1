"""JVM settings of programs that tests start with a separate Spark."""

from __future__ import annotations

QUICK_JVM = {"JAVA_TOOL_OPTIONS": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"}
"""Environment of such a program. The second compiler of a JVM never earns what it takes in so short a life: without
it the README's Spark program takes 25 CPU seconds, and not 37. The shared session of tests/spark says the same."""
