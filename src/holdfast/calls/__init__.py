"""Asynchronous calls of functions that wait for another service: an HTTP service, a database, a model server.

    rows of a step ──► items ──► Caller: a bounded number of calls in flight, on an event loop ──► answers ──► rows
                                   │ too late, or failed: tried again after a pause
                                   ├ failed for good: the row is a bad record
                                   └ very many failed in a row: the service is unreachable, and the batch waits

Files in reading order: `declared` (what a user gives, and its checks), `loop` (the thread with the event loop),
`caller` (calls of a function in a process), `kept` (answers for a batch that is repeated), `answering` (from rows to
calls, and from answers to rows).
"""
