"""Processes of a job, TaskManagers and senders: started, called, and watched.

Files in reading order: `cluster` (what the JobMaster asks of a cluster), `processes` (who was started, who serves),
`calls` (threads and rounds of calls), `taskmanagers`, `senders` (where units are worked off) with `readers` (of their
answers), `shown` (processes as people see them).
"""
