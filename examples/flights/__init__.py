"""Delays of all flights that left New York City in 2013, counted by a job that is killed twice on the way.

`job.py` is the user's part. The rest is the demonstration around it: `driver.py` runs the job in a process of
its own, `processes.py` starts and kills, `screen.py` shows, `data.py` has the input and the direct computation.
Run it with `make demo`.
"""
