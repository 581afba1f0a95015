"""Everything known about a running job, as immutable facts. The JobMaster fills them in; the query's handle, the
metrics and the page read them.

Files in reading order: `view` (all that is shown of a job), `known_metrics`, `metrics`, `store_requests`, `event_log`.
"""
