"""Spark: the only room that imports PySpark.

Files in reading order: `start` (of a job on Spark), `host` (the interface of a Spark application), `hosts`,
`classic_host` with `session` and `classic_plans` (a classic session), `connect_host` with `connect_shipping`,
`connect_slots` and `connect_plans` (Spark Connect), `transforms` (analysed and refused at a start), `probe` with
`probing` (a check of the executors), `shipping` (modules that travel), `slots` and `claims` (tasks at once), `memory`,
`advice` (on settings of cluster managers), `cluster` (levels of a batch as Spark jobs), `hosting` with `staying`
(processes that stay, as Spark jobs) and `leaving` (executors that are to go), `daemon` (Spark's Python workers, loaded
beforehand), `tasks` (what runs in workers), `failures` (of Spark, as errors), `savepoint_copies`, `state_source` (state
as a DataFrame).
"""
