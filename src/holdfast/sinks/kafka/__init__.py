"""Kafka as a sink: staged rows become messages when their checkpoint has completed.

Files in reading order: `kafka_sink`, `encoding` (messages of rows), `transactions`.
"""
