"""Comparison of unnamed sources, operators and sinks with the parts that the storage knows. Pure.

The made-up name of an unnamed part is its kind and its number in the order of declaration. So another order, or a part
more or less, would give state and positions to another part. A part may change as long as its name cannot mean another
part of its kind.
"""

from collections.abc import Collection, Mapping

from holdfast.errors import JobRefused
from holdfast.graph.program import DeclaredPart, Program
from holdfast.journal.records import PartIdentity
from holdfast.printable import logger

log = logger(__name__)

SHOWN_CHARS_MAX = 200
"""Bound on the description of a part in a message. A higher value makes messages longer."""

PartsByName = Mapping[str, PartIdentity]


def warn_unnamed(job: str, program: Program) -> None:
    """Log the keyed operators whose state is found by a name that depends on the order of declaration."""
    names = [name for name, part in program.parts.items() if part.role == "operator" and part.kind]
    if names:
        log.warning(
            "%s: operators without a name of their own: %s. Their state is found again by these names, which count in "
            "the order of declaration; give each one of its own: .aggregate(…, name=%r)",
            job,
            ", ".join(names),
            names[0],
        )


def check_unnamed(
    stored: PartsByName, described: Mapping[str, DeclaredPart], declared: PartsByName, drop_state: Collection[str]
) -> None:
    """Refuse a job in which a made-up name now means another part. Raises `JobRefused` with the names to give."""
    for role, kind in dict.fromkeys((part.role, part.kind) for part in declared.values() if part.kind):
        now = {name: part for name, part in declared.items() if (part.role, part.kind) == (role, kind)}
        before = {
            name: part for name, part in stored.items() if part.role == role and (part.kind == kind or name in now)
        }
        moved = _moved(before, now, drop_state)
        if moved:
            raise JobRefused(_refusal(role, moved, before, now, described))


def _moved(before: PartsByName, now: PartsByName, drop_state: Collection[str]) -> list[str]:
    """Return the names that may mean another part than before."""
    kept = [name for name in now if name in before and name not in drop_state]
    changed = [name for name in kept if _facts(now[name]) != _facts(before[name])]
    alone = len(changed) == 1 and before.keys() == now.keys()
    if alone and _same_place(before[changed[0]], now[changed[0]], drop_state):
        changed = []
    return changed or [name for name in kept if _exchanged(name, before, now)]


def _exchanged(name: str, before: PartsByName, now: PartsByName) -> bool:
    """True if an operator's settings changed, and another operator had the new settings before or has the old settings
    now. A mere change of settings is allowed: some differ from start to start, such as a time or a random number.
    """
    mine, mine_before = (_whole(parts[name]) for parts in (now, before))
    if mine == mine_before or not (_settings(now[name]) and _settings(before[name])):
        return False
    return any(_whole(part) == mine for other, part in before.items() if other != name) or any(
        _whole(part) == mine_before for other, part in now.items() if other != name
    )


def _facts(part: PartIdentity) -> tuple[object, ...]:
    return part.keys, part.inputs, part.digest.partition("-")[0]


def _settings(part: PartIdentity) -> str:
    """The digest of an operator's settings; empty if the record was written by an earlier release."""
    return part.digest.partition("-")[2]


def _whole(part: PartIdentity) -> tuple[object, ...]:
    return (*_facts(part), _settings(part))


def _same_place(before: PartIdentity, now: PartIdentity, drop_state: Collection[str]) -> bool:
    """True if an operator has the same keys and inputs as before, apart from dropped inputs."""
    if before.role != "operator":
        return True
    given_up = not set(before.inputs).isdisjoint(drop_state)
    return before.keys == now.keys and (given_up or before.inputs == now.inputs)


def _refusal(
    role: str, moved: list[str], before: PartsByName, now: PartsByName, described: Mapping[str, DeclaredPart]
) -> str:
    lines = []
    for name in moved:
        shown = described[name].details
        shown = shown if len(shown) <= SHOWN_CHARS_MAX else f"{shown[:SHOWN_CHARS_MAX]}…"
        owner = _owner(now[name], before)
        advice = f"give it name={owner!r}" if owner else "give it a name of its own, or the name that its state has"
        lines.append(f"the {role} that is now {name!r} ({shown}): {advice}")
    known = "; ".join(f"{name!r}{_place(part)}" for name, part in before.items())
    return (
        f"{role} {moved[0]!r} is not the {role} that it was: names that the job does not give count in the order of "
        f"declaration, so state would go to another {role}. {'; '.join(lines)}. The storage has {known}. Name them "
        f"with name=…, or give up what is stored with job.start(drop_state={moved!r})"
    )


def _owner(part: PartIdentity, before: PartsByName) -> str | None:
    """Return the name under which the storage knows that part; None if there is no such name, or several."""
    found = [name for name, each in before.items() if _whole(each) == _whole(part)]
    found = found or [name for name, each in before.items() if _facts(each) == _facts(part)]
    found = found or [name for name, each in before.items() if (each.keys, each.inputs) == (part.keys, part.inputs)]
    return found[0] if len(found) == 1 else None


def _place(part: PartIdentity) -> str:
    keys = f" keyed by ({', '.join(part.keys)})" if part.keys else ""
    inputs = f" of {', '.join(part.inputs)}" if part.inputs else ""
    return keys + inputs
