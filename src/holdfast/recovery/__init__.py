"""Recovery: from handles to a table, at any parallelism, and from there to later checkpoints.

Files in reading order: `restore`, `continuation` (the new pieces of log), `schema` (the check that stored state fits),
`whole` (tables that all subtasks load in full), `downloads` with `spans` (objects, ahead of the replay), `local` with
`spares` (copies on the machine's disk).
"""
