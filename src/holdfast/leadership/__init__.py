"""Leaders of a job: the heartbeat of the driver that leads, and drivers in waiting that watch it.

    leader: Heartbeat ──► leader/<epoch> ──► Watcher, with the rules: a driver in waiting ──► the journal's fence
            LeaderLink ◄────────── a connection, where the machines reach each other ────┘

A wrong guess that the leader is dead is harmless, since only the journal's fence decides who leads. The heartbeat
bounds the delay until a dead leader is noticed.

Files in reading order: `rules` (pure), `link`, `heartbeat`, `watcher`, `newest`.
"""
