"""Checkpoints: rules that decide when to cut, when a checkpoint is complete, and which commands follow. Pure.

Files in reading order: `events` (facts in, commands out), `coordinator` on `coordination`, `triggers` with
`trigger_texts` (when), `demand` (who wants it, who refuses), `cutting`, `pending` (between cut and record),
`positions`, `ahead` (stored while large parts still are), `records` and `recording`, `registry` with `lineage` (who
holds which object), `ledger`, `gathering` and `publication` (output), `finishing` (sinks that go by event time),
`found` (a start's records), `holding` (records held for savepoints), `failures`, `missing` (checkpoints without a
TaskManager), `outcomes`, `outstanding`, `updates` (settings that change).
"""
