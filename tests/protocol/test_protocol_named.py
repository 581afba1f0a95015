"""Acknowledgements name objects as differences, and whole where the difference would not be understood."""

from holdfast.protocol.named import AnsweredNames, KnownNames
from holdfast.protocol.taskmanager import Acknowledgement

NAMES = [f"dstl/{number}" for number in range(20)]


def acknowledgement(checkpoint_id: int, objects: list[str], incarnation: int = 1) -> Acknowledgement:
    return Acknowledgement(checkpoint_id, 0, incarnation, 9, objects[0], objects, [])


def test_only_the_first_acknowledgement_is_whole():
    own, known = AnsweredNames(), KnownNames()
    for checkpoint_id in range(5):
        whole = acknowledgement(checkpoint_id, NAMES[checkpoint_id : checkpoint_id + 10])
        sent = own.shortened(whole)
        assert len(sent.objects) + len(sent.gone) == (10 if checkpoint_id == 0 else 2)
        assert known.of(sent) == frozenset(whole.objects)
        own.answered(whole)


def test_a_difference_is_refused_by_a_job_master_that_did_not_note_its_base():
    own = AnsweredNames()
    own.answered(acknowledgement(1, NAMES))
    sent = own.shortened(acknowledgement(2, NAMES[1:]))
    assert (sent.since, sent.objects, sent.gone) == (1, [], [NAMES[0]])
    assert KnownNames().of(sent) is None, "it has just taken over"
    known = KnownNames()
    known.of(acknowledgement(1, NAMES, incarnation=2))
    assert known.of(sent) is None, "it knows those of another incarnation"
    known.of(acknowledgement(3, NAMES))
    assert known.of(sent) is None, "it knows those of another checkpoint"
    known.of(acknowledgement(1, NAMES))
    assert known.of(sent) == frozenset(NAMES[1:])


def test_an_acknowledgement_that_shares_little_with_the_last_is_whole():
    own = AnsweredNames()
    own.answered(acknowledgement(1, NAMES[:10]))
    whole = acknowledgement(2, NAMES[8:18])
    assert own.shortened(whole) is whole
