"""The checksum of what is stored: CRC-32, as zlib has it, by a library that takes a tenth of zlib's time.

State goes through it several times, in its log, its materialized parts and their local copies: with zlib it was a
fifteenth of all that a job with large values does.
"""

from isal.isal_zlib import crc32

__all__ = ["crc32"]
