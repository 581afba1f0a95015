"""Surroundings of a simulated job, the same for every seed: threads, files, and how often loops look around."""

from collections.abc import Iterator
from contextlib import contextmanager
from unittest import mock

from simulation_files import files_end_with_processes
from simulation_followers import followers_checked
from simulation_patches import simulated

from holdfast.uploads.target_size import TargetSize


@contextmanager
def simulated_places() -> Iterator[None]:
    """Simulated threads; and loops that look around less often: each look takes time of a real processor."""
    with (
        simulated(),
        files_end_with_processes(),
        followers_checked(),
        mock.patch("holdfast.jobmaster.checkpoints.control.TICK_S", 0.1),
        mock.patch("holdfast.jobmaster.batches.conductor.TICK_S", 0.1),
        mock.patch("holdfast.jobmaster.batches.work.IDLE_S_MIN", 0.05),
        mock.patch("holdfast.jobmaster.batches.work.NAP_S_MAX", 0.05),
        mock.patch("holdfast.jobmaster.batches.pace.IDLE_S_MIN", 0.05),
        mock.patch("holdfast.jobmaster.batches.pace.IDLE_S_MAX", 0.2),
        # Subtasks work side by side, as in batches of many rows.
        mock.patch("holdfast.taskmanager.taskmanager.MANY_ROWS", 0),
        mock.patch("holdfast.cleanup.schedule.AGAIN_AFTER_S", (2.0, 3.0)),
        mock.patch("holdfast.uploads.janitor.AGAIN_S", 3.0),
        # The size at which logs are split moves down and up, although simulated requests take as long for any size.
        mock.patch.multiple("holdfast.uploads.target_size", LEARNED_EVERY=2, LOOKS_MIN=1, TOGETHER=1),
        mock.patch.object(TargetSize, "_line", lambda size: (1.0, 8.0 * (size._count // 16 % 2 == 0))),
        mock.patch("holdfast.uploads.janitor.FAILED_AGAIN_S", 1.0),
    ):
        yield
