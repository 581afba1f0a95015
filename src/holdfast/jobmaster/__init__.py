"""The driver's side of a job.

Files in reading order: `master` (a user's calls), `assembly` (the parts), `commands` (of the execution machine),
`reports` (of the control loop), `gateway` (calls of processes), `updating` (settings), `view`, `ending`, `program_end`.

The rooms, of which each may import the later ones: `starting`, then these files, then `batches` and `savepoints`, then
`checkpoints`, then `processes` and `loops`.
"""
