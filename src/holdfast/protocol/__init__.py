"""Messages and calls between JobMaster, senders and TaskManagers. They are plain data.

Files in reading order: `live_reads` (reads of state), `taskmanager` (messages and calls), `parcels` (few rows in the
body of a call), `streams` (claims about sent rows), `named` (object names in acknowledgements, as differences).
"""
