"""Rows that repeat an earlier row of their key: dropped.

Files in reading order: `declaring`, `duplicates`, `kernels`.
"""
