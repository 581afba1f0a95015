"""Object stores, and the names and frames of stored objects.

Files in reading order: `store` (the interface), `urls`, `obstore_store`, `hdfs_store`, `retrying`, `names` (of every
object), `framing` and `checksum`, `reading` (bytes that somebody else may have written), `reach` (checks at a start),
`copying`, `links` (files without following links), `lost` (messages).
"""
