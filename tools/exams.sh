#!/bin/sh
# All exams by strangers (docs/exams.md): Fluss's Java client, the test suites of pyfluss and of the Rust client, and the
# differential run, against our server; the harness and our client against a real Apache Fluss cluster; Java Paimon,
# pypaimon, Java Iceberg and Spark on our lake tables; Kafka, Debezium and PostgreSQL before our live tables.
# What is missing (Maven Central, Rust) skips its exam and is named. The first run takes minutes: it downloads and builds.
set -eu
.venv/bin/python -c 'import confluent_kafka' 2>/dev/null || .venv/bin/pip install -q 'confluent-kafka>=2.6' || true
exec .venv/bin/python -m pytest tests/foreign tests/client tests/lake tests/paimon tests/ingest -m "foreign" -rs --timeout 1200 "$@"
