"""Spark: the only room that imports PySpark.

Files in reading order: `start` (of a job on Spark), `host` (the interface of a Spark application), `hosts`,
`classic_host` with `session` and `classic_plans` (a classic session), `connect_host` with `connect_retries`,
`connect_shipping`, `connect_slots`, `connect_plans`, `connect_epochs` and `epoch_forwarding` (Spark Connect),
`transforms` (their analysis and refusal at a start), `probe` with `probing` (a check of the executors), `shipping`
(modules sent by value), `slots` and `claims` (how many tasks run at once), `memory`, `advice` (on settings of cluster
managers), `cluster` (levels of a batch as Spark jobs), `hosting` with `staying` (long-running processes as Spark jobs)
and `leaving` (executors about to be removed), `daemon` (preloading for Spark's Python workers), `tasks` (the code that
runs in workers), `failures` (Spark's exceptions as errors), `savepoint_copies`, `state_source` (state as a DataFrame);
with the JobMaster in the cluster, `cluster_start` with `cluster_driver` (the process there), `session_mail` and
`cluster_link` (the way to it), and `attaching`.
"""
