"""Messages of Apache Kafka as rows of live tables, each once."""
