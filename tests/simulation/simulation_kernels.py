"""Compiles the kernels that most tests need, once, before processes of tests run side by side.

    python tests/simulation/simulation_kernels.py

A process that does not find a kernel in Numba's cache compiles it, even if three others are compiling the same kernel.
"""

from simulation_run import simulate

SEEDS = (0, 2, 6, 11, 14, 16, 29)
"""Jobs with windows of all kinds, joins, broadcast state and a cache of RocksDB's rows."""


if __name__ == "__main__":
    for seed in SEEDS:
        simulate(seed)
