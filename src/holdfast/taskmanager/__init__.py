"""A TaskManager: subtasks with their state, and the calls on them.

Files in reading order: `taskmanager` (batches as transactions on its subtasks), `subtask`, `hosting` (the objects of a
deployment) and `moving` (to another deployment), `in_flight`, `inputs` and `digest` (rows that senders sent),
`outputs` and `buffers` (rows until they are fetched), `row_counts`, `live_reads`, `key_group_skew`, `checkpoints`
(after the cut), `standing_by` (before it holds a place) with `remote_apply`, `server`, `actions`, `client`,
`jobmaster_client` and `remote` (over Flight), `security` and `strangers` (who may connect), `main` (as a process),
`membership`, `executor_signs` (of the executor's removal), `settings`, `warming`, `memory` and `process_memory` (its
bounds).
"""
