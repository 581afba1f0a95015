"""Rows that an outside system sends only once: stored, found again after a restart, and planned from.

Files in reading order: `segments`, `chain` (found after a restart), `spool`.
"""
