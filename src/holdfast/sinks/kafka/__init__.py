"""Kafka as a sink: staged rows become messages when their checkpoint has completed."""
