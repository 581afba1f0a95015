"""The journal: put-if-absent records, which alone decide what counts.

Files in reading order: `records`, `codec` (their bytes), `rules` (pure), `named_objects`, `job` (the object that names
the job), `fence` (takeover), `journal` (append, expire), `other_storages`, `patience`, `savepoints`.
"""
