"""The benchmark of functions by row measures rows, timers and timestamps."""

from benchmarks.by_hand import BY_ROW, BY_TIMER, by_row, by_timer, by_value


def test_the_benchmark_of_functions_by_row_measures_each_workload() -> None:
    figures = [by_row(each, 20) for each in BY_ROW.values()] + [by_timer(each, 20) for each in BY_TIMER.values()]
    assert min([*figures, by_value("UTC", 2_000)]) > 0
