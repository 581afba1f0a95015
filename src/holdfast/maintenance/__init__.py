"""Maintenance: stored data read as a whole.

Files in reading order: `verify`, `objects`, `report`.
"""
