"""Compiled kernels, kept under an address of their content, so that each is compiled once and found anywhere.

    kernel ──► its address: source, all that it calls, types, Numba, Python, processor   (identity.py, processors.py)
                  │
                  ▼ looked for in        memory ► folders of the machine ► the JobMaster     (shelf.py, places.py)
                  │ not found
                  ▼
               compiled once on the machine, then kept in a folder and given to the JobMaster  (cache.py)

A compiled kernel is code, and so nothing of it lies in a job's storage: whoever may write there may not run code.
Processes of a job ask its JobMaster, over connections that the job's secret protects.

Files in reading order: `identity`, `shelf`, `places`, `processors`, `cache`.
"""
