"""Uploads: the way from the requests of logs to objects in the store.

Files in reading order: `uploader` (all logs and materializations of a TaskManager), `gathering` (requests of a cut),
`packing` and `packer` (requests to objects), `target_size` (where objects are split), `carried` (small objects, which
travel), `in_flight` (the bound on waiting bytes), `puts`, `attempts` with `hedging` (retries), `hedged_store` (the same
for all that the JobMaster stores), `ownership` (who may delete), `janitor` (deletes), `precedence` (checkpoints first),
`scheduling` (threads).
"""
