"""Real threads beside a simulation: a job of an earlier test may still be ending while seeds are simulated."""

import threading
from concurrent.futures import Future

import simulation_threads as simulated
from simulation_runtime import Runtime
from simulation_threads import running


def _end_a_job(done: Future[int]) -> None:
    """Use all that a job uses at its end, as its modules find it during a simulation."""
    with simulated.Lock(), simulated.Condition(), simulated.Semaphore():
        simulated.sleep(0)
    ended = simulated.Event()
    with simulated.ThreadPoolExecutor(1) as pool:
        made = [pool.submit(simulated.uuid4), pool.submit(simulated.monotonic)]
    simulated.wait(made)
    assert all(simulated.exception(each) is None for each in simulated.as_completed(made))
    simulated.Thread(target=ended.set).start()
    ended.wait(60)
    queue = simulated.SimpleQueue()
    queue.put(simulated.chance().random())
    queue.get()
    simulated.result(done, 60)


def _draws(beside: bool) -> list[float]:
    runtime, done, drawn, errors = Runtime(0, preemption=0.5), Future[int](), list[float](), list[BaseException]()

    def end() -> None:
        try:
            _end_a_job(done)
        except BaseException as error:
            errors.append(error)

    def live() -> None:
        real = threading.Thread(target=end)
        if beside:
            real.start()
        for each in range(20):
            with simulated.Lock():
                runtime.sleep(1)
            drawn.append(simulated.chance().random())
            if beside and each == 10:
                done.set_result(1)
                real.join()

    with running(runtime, 0):
        runtime.spawn(live, "main", runtime.process("p0"))
        runtime.run(lambda: len(drawn) == 20, 100, "draws")
    assert not errors
    return drawn


def test_a_real_thread_beside_a_simulation_finds_the_real_parts_and_takes_no_draw_of_the_seed() -> None:
    assert _draws(beside=True) == _draws(beside=False)
