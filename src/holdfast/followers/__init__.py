"""Followers of the log: the state of some subtasks as of a completed checkpoint, taken on as checkpoints complete.

A restore is a follower that is asked for a single checkpoint.

Files in reading order: `subtask` (an operator with its tables), `follower` (the subtasks of a TaskManager, from the
handles of a whole checkpoint).
"""
