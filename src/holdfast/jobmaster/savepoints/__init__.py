"""Savepoints: `savepoints` writes them, `copying` has processes copy the objects, `progress` reports their progress.

Files in reading order: `savepoints`, `copying`, `progress`.
"""
