"""Messages as bytes. Hostile ones are in `test_aggregation.py`."""

from __future__ import annotations

import json
from dataclasses import fields

import numpy as np
import pytest
from safetensors.numpy import load, save

from sottovoce.federation.messages import (
    Code,
    Contribution,
    Nothing,
    Refused,
    Task,
    read_answer,
    read_request,
)

ARRAYS = {"clip_norms": np.array([0.3], np.float32), "key": np.array([1, 2], np.uint32)}
TASK = Task("1.0", "f", "v", "spring", 3, {"run": {"rounds": 5}}, **ARRAYS, leaves=[np.eye(2), np.ones(3)])


def with_facts(message: bytes, **more: object) -> bytes:
    arrays = load(message)
    facts = json.loads(arrays.pop("facts").tobytes()) | more
    return save({"facts": np.frombuffer(json.dumps(facts).encode(), np.uint8), **arrays})


def test_a_task_is_the_same_after_the_wire():
    again = read_request(TASK.to_bytes())
    assert again.to_bytes() == TASK.to_bytes()
    for field in fields(Task):
        assert str(getattr(again, field.name)) == str(getattr(TASK, field.name))


def test_a_message_is_read_by_its_kind():
    """A device refuses one without a kind, or of a kind that it does not know."""
    assert isinstance(read_request(with_facts(TASK.to_bytes(), kind="task")), Task)
    for kind, code in (("shares", Code.VERSION), (["task"], Code.MALFORMED), (None, Code.MALFORMED)):
        with pytest.raises(Refused) as refused:
            read_request(with_facts(TASK.to_bytes(), kind=kind))
        assert refused.value.code == code


@pytest.mark.parametrize(("value", "dtype"), [(2**31 - 1, np.int32), (-(2**31), np.int64), (2**40, np.int64)])
def test_a_contribution_is_sent_in_32_bits_where_it_fits(value, dtype):
    sent = Contribution("task", 2, 3, np.array([1]), [np.array([value, 1])])
    again = read_answer(sent.to_bytes())
    assert isinstance(again, Contribution)
    assert (again.task, again.users, again.weight, again.bits.tolist()) == ("task", 2, 3, [1])
    assert again.leaves[0].dtype == dtype
    assert again.leaves[0].tolist() == [value, 1]


def test_a_device_that_adds_nothing_says_why():
    assert read_answer(Nothing(Code.LIMITS).to_bytes()) == Nothing(Code.LIMITS)
