"""The driver's side of a job.

The rooms, of which each may import the later ones: `starting`, then the files, then `batches` and `savepoints`, then
`checkpoints`, then `processes` and `loops`.

Files in reading order: `master` (a user's calls), `assembly` (the parts), `starting/`, `commands` (of the execution
machine), `batches/`, `reports` (of the control loop), `checkpoints/`, `savepoints/`, `live_reads`, `gateway` and
`server` (calls of processes), `processes/`, `loops/`, `updating` (settings), `view`, `ending`, `program_end`.
"""
