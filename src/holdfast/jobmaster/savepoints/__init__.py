"""Savepoints: `savepoints` writes them, `copying` has processes copy the objects, `progress` tells how far they are.

Files in reading order: `savepoints`, `copying`, `progress`.
"""
