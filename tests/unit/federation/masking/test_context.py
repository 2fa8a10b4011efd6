"""What a message of a masked round belongs to."""

from __future__ import annotations

from dataclasses import replace

from masked_fleets import some_task
from sottovoce.federation.masking.context import bind, context_of
from sottovoce.federation.messages import digest


def test_other_parts_give_another_text():
    texts = [bind("a", "bc"), bind("ab", "c"), bind("a", "b", "c"), bind("a", "bc", ""), bind("a", b"bd")]
    assert len(set(texts)) == len(texts)
    assert bind("a", "bc") == bind("a", b"bc")


def test_a_round_is_named_by_its_federation_run_round_and_task():
    task = some_task()
    others = [
        replace(task, federation="g"),
        replace(task, run="autumn"),
        replace(task, round=2),
        replace(task, clip_norms=task.clip_norms * 2),  # another model, or another anything
    ]
    names = {context_of(each, digest(each.to_bytes())) for each in (task, *others)}
    assert len(names) == 5
