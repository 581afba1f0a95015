"""Batches: planned, run, committed or undone, as the execution machine orders.

Files in reading order: `conductor` (the loop around the execution machine), `work` (deploy, plan, run, commit, undo),
`planner` with `sizing` (rows of a batch), `regional` (splits that are behind) and `pace` (time of the next batch),
`deployer` with `deployment` (who holds which subtasks, restored from which state), `runner` (a batch, level by level)
with `isolating` (which splits fail) and `losses` (rows that are lost), `following` (standbys with state, and moves),
`rescales` (another number of TaskManagers), `advisor` (how many TaskManagers the job needs), `declared` (made from the
declarations), `progress` (for users) with `hot_keys`, `wanted` (those who wait for batches and for their checkpoints).
"""
