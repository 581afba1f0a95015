"""Execution: rules that decide what to deploy and run, and when to retry, restart and end. Pure.

Files in reading order: `events` with `moves` (facts in, commands out), `machine` with `phases` (a job's whole story),
and its parts: `course` (the work in flight, waits, the end), `supervision` with `processes` and `calls` (who lives),
`places` and `placement` (who holds which subtasks), `restarts`, `absences` (who is left out for a while), `rescaling`
(another number of places), `failover` (why a job goes back), `reactions` (to errors). Then `units` with
`unit_events` (given to senders), `isolation` and `failing` (splits that fail a batch).
"""
