"""Messages and calls between JobMaster, senders and TaskManagers. Plain data.

Files in reading order: `live_reads` (of state), `taskmanager` (messages and calls), `parcels` (small rows in their
bodies), `streams` (claims about sent rows), `named` (objects of acknowledgements, as differences).
"""
