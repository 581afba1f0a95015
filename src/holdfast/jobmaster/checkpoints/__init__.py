"""Checkpoints: the commands of the checkpoint coordinator, carried out on threads of their own.

Files in reading order: `control` (the loop around the coordinator), `promises` (answers to those who asked), `calls`
(to TaskManagers) with `stats` (figures of each checkpoint), `gathered` (a checkpoint's objects), `recorder` with
`job_facts` (records, and output that is gathered before them), `publisher` (output, after its record), `history`
(outcomes, kept over restarts), `found` (checkpoints that a start found), `job_time` (the time of a job), `outages`
(waits for a store or a disk that is unreachable).
"""
