"""Graphs of work: from the streams that a user declares to legs, operators and batches. Pure.

Files in reading order: `nodes` (the graph as declared), `changing` (kinds of streams), `resolving` (schemas), `late`
and `uniting` (streams of late rows, unions), `projecting` (steps that are expressions), `selecting` (columns by name),
`pushing` (conditions that go to a source), `legs` (work between operators), `program` (the job as it runs),
`declarations`, `build` (from these to it), `known` (schemas before the start), `describing`, `settings_text` and
`declared_parts` (declarations in words), `keygroups` (which subtask owns which keys), `plan` (a batch and its units),
`regions` (parts that fail without the others).
"""
