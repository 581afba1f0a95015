"""Names that logs held at different times: the names of pinned versions are needed, and in the end no others."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from holdfast.checkpoint.lineage import Lineage

names = st.frozensets(st.sampled_from("abcdef"))


class Versions(RuleBasedStateMachine):
    """A lineage beside whole sets, a set for each pinned version."""

    def __init__(self) -> None:
        super().__init__()
        self.lineage = Lineage()
        self.pinned: dict[int, frozenset[str]] = {}
        self.needed: set[str] = set()

    @rule(held=names)
    def pin(self, held):
        version, new, free = self.lineage.pin(held)
        assert not new & self.needed, "counted twice"
        assert free <= self.needed, "let go of twice"
        self.needed = (self.needed | new) - free
        self.pinned[version] = held

    @precondition(lambda self: self.pinned)
    @rule(data=st.data())
    def unpin(self, data):
        version = data.draw(st.sampled_from(sorted(self.pinned)))
        del self.pinned[version]
        free = self.lineage.unpin(version)
        assert free <= self.needed, "let go of twice"
        self.needed -= free

    @invariant()
    def what_is_pinned_is_needed(self):
        assert self.needed == set(self.lineage.names())
        assert set().union(*self.pinned.values()) <= self.needed
        assert self.lineage.is_needed == bool(self.pinned)
        assert self.pinned or not self.needed, "needed by nobody"
        for version, held in self.pinned.items():
            assert held <= self.lineage.at(version)


TestVersions = Versions.TestCase
TestVersions.settings = settings(deadline=None, max_examples=30)


def test_a_name_that_only_the_oldest_version_had_goes_with_it():
    lineage = Lineage()
    first = lineage.pin({"a", "b"})[0]
    lineage.pin({"b", "c"})
    assert lineage.unpin(first) == {"a"}
    assert sorted(lineage.names()) == ["b", "c"]
