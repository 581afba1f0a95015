"""Key groups: the assignment of keys to subtasks. Pure arithmetic, which must never change, since stored state depends
on it.

A key belongs to key group `hash(key) mod max_parallelism` (the hash: `state.keys`); a subtask owns a
contiguous range of key groups. Both are Flink's rules, so that state can move to any other parallelism
up to `max_parallelism` without touching single keys. Does not own hashing.
"""

from holdfast.errors import SettingsError

MAX_PARALLELISM_LEAST = 128
MAX_PARALLELISM_MOST = 32_768


def default_max_parallelism(parallelism: int) -> int:
    """Flink's formula: 1.5 × `parallelism`, up to the next power of two, within [128, 32768].

    Raises
    ------
    SettingsError
        `parallelism` is below 1 or above 32768.
    """
    _check(parallelism, MAX_PARALLELISM_MOST)
    wanted = parallelism + parallelism // 2
    power_of_two = 1 << max(wanted - 1, 0).bit_length()
    return min(max(power_of_two, MAX_PARALLELISM_LEAST), MAX_PARALLELISM_MOST)


def key_group_range(subtask: int, parallelism: int, max_parallelism: int) -> tuple[int, int]:
    """The key groups `[start, stop)` that `subtask` owns: exactly those with `subtask_of(...) == subtask`."""
    _check(parallelism, max_parallelism)
    if not 0 <= subtask < parallelism:
        raise SettingsError(f"subtask is {subtask}; with parallelism={parallelism} it must be in [0, {parallelism})")
    return -(-subtask * max_parallelism // parallelism), -(-(subtask + 1) * max_parallelism // parallelism)


def subtask_of(key_group: int, parallelism: int, max_parallelism: int) -> int:
    """The subtask that owns `key_group`."""
    return key_group * parallelism // max_parallelism


def _check(parallelism: int, max_parallelism: int) -> None:
    if not 1 <= max_parallelism <= MAX_PARALLELISM_MOST:
        raise SettingsError(f"max_parallelism is {max_parallelism}; it must be in [1, {MAX_PARALLELISM_MOST}]")
    if not 1 <= parallelism <= max_parallelism:
        raise SettingsError(f"parallelism is {parallelism}; it must be in [1, {max_parallelism}] (max_parallelism)")
