"""The changes of a PostgreSQL database as a source, by logical replication.

Files in reading order: `cdc_source` (settings, tasks), `cdc_enumerator` (the driver's side), `reader` (the thread that
reads the slot), `server` and `session` (connections and statements), `claim` (which driver reads), `catalog` (checks of
tables), `decoding` with `pgoutput`, `columns`, `kernels` and `read_back` (bytes to Arrow), `initial`, `chunks` and
`snapshot` (the first rows), `slot_head` and `writer` (stored segments).
"""
