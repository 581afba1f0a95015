"""Kafka as a source: settings, planning on the driver, and reading in tasks.

Files in reading order: `kafka_source` (settings, tasks), `enumerator` with `positions` and `log_check` (planning),
`cluster` and `client` (questions to Kafka), `messages` (the interface of readers), `readers`, `queue_reader` with
`gather` (the fast way), `client_reader` (the fallback), `values`, `avro` with `avro_defaults` and `avro_varints` (rows
of messages), `group_commits`.
"""
