"""Followers of the log: the state of some subtasks at a completed checkpoint, advanced as further checkpoints complete.
A restore is a follower that follows a single checkpoint.

Files in reading order: `subtask` (an operator with its tables), `follower` (the subtasks of a TaskManager, from the
handles of a whole checkpoint).
"""
