"""Joins of two streams: within a time, by window, and as of a time.

Files in reading order: `declared`, `declaring` (from a user's arguments to an operator), `bounds` (how rows meet in
time), `condition` (on pairs of rows), `join_operator`, `asof_operator`, `kept_rows` (the rows of a side), `meeting`
with `kernels` (who meets whom), `output`; `changes_join` (over changes,
with bags of rows).
"""
