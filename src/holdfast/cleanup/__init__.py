"""Everything that deletes. Each object has one owner at a time, and only the owner deletes it.

    kind of object                            who may delete it                       when
    ────────────────────────────────────────  ──────────────────────────────────────  ────────────────────────────────
    dstl/, shared/, not acknowledged yet      the TaskManager that stored it          its last use ends
                                              (uploads/ownership.py, janitor.py)
    dstl/, shared/, manifests/, recorded      the registry of the coordinator,        no record, pending checkpoint,
                                              through disposer.py                     unpublished group or live log
                                                                                      names it
    dstl/, shared/ of dead TaskManagers,      the same registry; remains.py finds     a sweep
    manifests/ of resolved checkpoints,       them by listing
    sources/ that no source uses
    staging/ of a published group             the coordinator, through disposer.py    publication is over, and no record
                                                                                      names the group
    staging/ of runs that are over, and of    remains.py                              a sweep, unless a committable that
    committed batches                                                                 may still be published names it
    records in journal/                       the coordinator (ExpireRecords)         newer records subsume them
    objects and records of older epochs       plan.py, called by janitor.py and by    a takeover, if the newest record
                                              `holdfast gc`                           does not need them
    takeover records, unknown names           nobody                                  never

`schedule.py` says when sweeps and clean-ups of older epochs run.

Files in reading order: `disposer` (as the coordinator orders), `targets`, `remains` (leftovers of this epoch),
`janitor` with `observation` and `plan` (older epochs), `schedule` (when).
"""
