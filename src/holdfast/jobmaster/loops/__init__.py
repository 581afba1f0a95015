"""Threads of the JobMaster: loops that run pure rules, and threads for the slow work of a loop.

Files in reading order: `rule_loop`, `side_threads`.
"""
