"""Recovery: from handles to a table, at any parallelism, and on to later checkpoints.

Files in reading order: `restore`, `continuation` (the new pieces of log), `schema` (does the stored state fit), `whole`
(tables that all subtasks read), `downloads` with `spans` (objects, ahead of the replay), `local` with `spares` (copies
on the machine's disk).
"""
