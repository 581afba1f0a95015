"""Rows that nobody tells again: stored, found again, and planned from.

Files in reading order: `segments`, `chain` (found after a restart), `spool`.
"""
