"""The changelog: the log of a table.

Files in reading order: `writer`, `ranges` (its entries).
"""
