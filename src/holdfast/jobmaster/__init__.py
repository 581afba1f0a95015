"""The driver's side of a job: `master` holds its parts and takes a user's calls.

The rooms, of which each may import the later ones: `starting`, then `master`, then `batches` and `savepoints`, then
`checkpoints`, then `processes`. `program_end` ends running queries with their program.
"""
