"""Threads of the JobMaster: `rule_loop` runs pure rules, `side_threads` does the slow work of a loop."""
