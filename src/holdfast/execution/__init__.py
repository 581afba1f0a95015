"""Execution: rules that decide what to deploy, run, try again, restart and end. Pure.

Files in reading order: `events` (facts in, commands out), `machine` on `course`, `phases`, `deployments`, `batches` and
`dropping` (batches without a TaskManager), `failover` (why a job goes back), `supervision` with `processes` and `calls`
(who lives), `places` and `placement` (who holds which subtasks), `restarts`, `reactions` (to errors), `units` (given to
senders), `isolation` and `failing` (splits that fail a batch).
"""
