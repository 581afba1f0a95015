"""Maintenance: checks of all stored data.

Files in reading order: `verify`, `objects`, `report`.
"""
