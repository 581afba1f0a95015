"""Disturbances of the processes of a simulated job, at failpoints: they crash, hang, stand still, or a step fails."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from simulation_leaving import give_notice
from simulation_rescaling import rescale
from simulation_runtime import Process
from simulation_settings import Event
from simulation_slots import lose_executor
from simulation_threads import fiber as running_fiber

from holdfast import errors

if TYPE_CHECKING:
    from simulation_world import Started, World

STEPS_THAT_FAIL = (
    "task.sent",
    "taskmanager.process.after",
    "jobmaster.level.before",
    "jobmaster.commit.before",
    "changelog.upload.before",
    "materialize.upload.before",
    "taskmanager.cut.uploaded",
    "taskmanager.cut.manifest",
    "jobmaster.record.stored",
    "jobmaster.record.before",
)
STEPS_THAT_HANG = (
    "sender.unit.before",
    "taskmanager.deploy.before",
    "taskmanager.process.before",
    "taskmanager.process.subtask",
    "taskmanager.commit.before",
    "taskmanager.commit.between",
    "taskmanager.abort",
    "taskmanager.release",
    "taskmanager.cut.before",
)
"""Steps of a sender or TaskManager whose calls have a limit: heartbeats go on while one of them hangs."""
STEPS_OF_A_STORM = ("sender.unit.before", "taskmanager.deploy.after", "taskmanager.process.before")


def hit(world: World, name: str) -> None:
    """Somebody passes a failpoint: whatever is due there happens."""
    fiber = running_fiber()
    if fiber is None or not world.starts:
        return
    world.runtime.note("hit", name)
    started = world.starts[-1]
    if started.over:
        return
    for event in started.due(name):
        _act(world, event, name, started, fiber.process)
    if started.to_die and name in STEPS_OF_A_STORM:
        started.to_die -= 1
        fiber.process.kill()
    if started.to_hang and name in STEPS_THAT_HANG:
        started.to_hang -= 1
        world.runtime.note("hangs", name)
        world.runtime.block()
    if started.to_fail and name in STEPS_THAT_FAIL:
        started.to_fail -= 1
        raise errors.StorageError(f"{name} failed (injected)")


def _act(world: World, event: Event, name: str, started: Started, process: Process) -> None:
    runtime, rng = world.runtime, world.rng
    runtime.note("event", event.action)
    match event.action:
        case "crash":
            world.struck.add(name)
            process.kill()
        case "master":
            started.fate = "crash"
            started.process.kill()
        case "still":
            runtime.later(rng.expovariate(0.3), process.resume)
            process.pause()
        case "replace":
            started.fate = "replace"
            started.over = True
            runtime.later(rng.expovariate(0.1), started.process.resume)
            started.process.pause()
        case "kill" if started.cluster is not None:
            started.cluster.kill(event.task_manager)
        case "fail":
            started.to_fail += 1
        case "hang":
            started.to_hang += 1
        case "storm":
            started.to_die += rng.choice([2, 5, 20])
        case "checkpoint" if started.query is not None:
            started.query._master.trigger_checkpoint()
        case "savepoint" if started.query is not None:
            runtime.spawn(partial(world.carrying.take_savepoint, started), "savepoint", started.process)
        case "update" if started.query is not None:
            runtime.spawn(partial(world.carrying.update, started), "update", started.process)
        case "rescale" if started.query is not None:
            runtime.spawn(partial(rescale, world, started), "rescale", started.process)
        case "notice":
            runtime.spawn(partial(give_notice, world, started), "notice", started.process)
        case "executor":
            runtime.spawn(partial(lose_executor, world, started), "executor", started.process)
        case "clean":
            runtime.spawn(world.carrying.clean, "clean", runtime.process("gc"))
        case "failover" if started.query is not None:
            started.query._master.restart("asked for")
        case "stop" if started.query is not None:
            started.fate = "stop"
            runtime.spawn(started.query.stop, "stop", started.process)
