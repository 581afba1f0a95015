"""Threads of the JobMaster: one runs pure rules, others do the slow work of a loop.

Files in reading order: `rule_loop`, `side_threads`.
"""
