"""The state table: keyed rows in columns, changed in transactions. `docs/reference/state-table.md` draws it.

Files in reading order: `table`, `rows`, `columns`, `bytes_column`, `nested`, `arena` and `arena_kernels` (by slot),
`keys`, `hashing`, `encoding` and `seats` (keys), `key_index`, `index` and `index_kernels` (from keys to slots),
`physical`, `compiled`, `kernels` and `growing` (arrays), `transaction` (the batch in flight), `committed` (rows without
that batch), `history` (rewind), `unlogged` (changes that wait for a checkpoint), `deleted` (rows that only these
changes name), `capture` (copy-on-write), `changes` (the stored form), `widening`, `survey` (a round over all rows),
`backends`, `residency` with `lru` (the cache over a base store), `base_rocksdb`, `rocksdb_memory`, `row_codec` with
`row_codec_kernels`, `local_disk`, `own_folder`.
"""
