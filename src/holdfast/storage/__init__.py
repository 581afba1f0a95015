"""Object stores, and the names and frames of stored objects.

Files in reading order: `store` (the interface), `urls`, `obstore_store`, `hdfs_store`, `retrying`, `counted`, `names`
(of every object), `framing` and `checksum`, `reading` (of bytes that may be forged), `reach` (checks at a start),
`routing` (over several storages), `copying`, `links` (access to files that follows no links), `lost` (messages).
"""
