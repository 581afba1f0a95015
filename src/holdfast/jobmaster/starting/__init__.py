"""Start of a job: known errors are refused, the storage is taken over, and a JobMaster is made.

Files in reading order: `start` (the order of a start), `warm` (processes of a driver in waiting) with `warm_following`
(the leader's logs), `identity` with `unnamed` (stored state against new code), `set_back` (storages that were restored
from an older copy), `going_back` (to a retained checkpoint), `from_savepoint`.
"""
