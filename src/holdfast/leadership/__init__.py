"""Leaders of a job: the heartbeat of the driver that leads, and drivers in waiting that watch it.

    leader: Heartbeat ──► leader/<epoch> ──► Watcher, with the rules: a driver in waiting ──► the journal's fence
            LeaderLink ◄────────── a connection, where the machines reach each other ────┘

Being wrong about the leader's death is harmless, since the journal's fence alone decides who leads; being late is
bounded by the heartbeat.

Files in reading order: `rules` (pure), `link`, `heartbeat`, `watcher`.
"""
