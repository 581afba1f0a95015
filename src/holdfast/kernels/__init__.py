"""Compiled kernels, stored under an address of their content, so that each is compiled once and found everywhere.

    kernel ──► its address: source, all code it calls, types, Numba, Python, processor  (identity.py, processors.py)
                  │
                  ▼ looked for in        memory ► folders of the machine ► the JobMaster     (shelf.py, places.py)
                  │ not found
                  ▼
               compiled once on the machine, then kept in a folder and given to the JobMaster  (cache.py)

A compiled kernel is code, so it is never stored in a job's storage: a user who may write there may not run code.
Processes of a job ask its JobMaster, over connections that the job's secret protects.

Files in reading order: `identity`, `shelf`, `places`, `processors`, `cache`.
"""
