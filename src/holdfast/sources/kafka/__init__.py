"""Kafka as a source: settings, planning on the driver, and reading in tasks."""
