"""The lines of a run, and what public files say of held-out people, who are not protected."""

from __future__ import annotations

import pytest

from sottovoce.evaluation.figures import Evaluation, coarse_count, last_evaluation
from sottovoce.runs.record import Lines
from sottovoce_evidence.errors import DamagedRun


@pytest.mark.parametrize(("people", "told"), [(0, 0), (7, 7), (43, 43), (200, 200), (219, 210), (98_765, 98_000)])
def test_people_are_counted_to_two_digits(people, told):
    assert coarse_count(people) == told


def test_how_much_they_wrote_is_not_told_nor_to_be_worked_out():
    exact = {
        "users": 219, "targets": 31_482, "top1": 5_790 / 31_482, "top3": 0.2, "top5": 0.3, "oov_rate": 1.0,
        "perplexity": 312.45678, "perplexity_in_vocabulary": None, "bytes": 140_321, "bits_per_byte": 2.345678,
        "words": 1987,
    }  # fmt: skip
    told = Evaluation.from_json(exact).public.to_json()
    assert told == {
        "users": 210, "top1": 0.1839, "top3": 0.2, "top5": 0.3, "oov_rate": 1.0, "perplexity": 312.5,
        "perplexity_in_vocabulary": None, "bits_per_byte": 2.346, "words": 1900,
    }  # fmt: skip
    # Nearly all numbers of targets have a number of hits with this share.
    fitting = [
        n for n in range(20_000, 32_000) if 0.1839 in (round(k / n, 4) for k in (n * 1839 // 10**4 + i for i in (0, 1)))
    ]
    assert len(fitting) > 11_000


@pytest.mark.parametrize("found", [{"users": 3}, {"top1": "much"}, "much"], ids=str)
def test_an_evaluation_that_cannot_be_read_is_damage(found):
    with pytest.raises(DamagedRun, match="cannot be read"):
        last_evaluation([{"round": 1, "evaluation": found}])


def test_lines_after_a_checkpoint_are_forgotten_and_a_torn_one_is_left_out(tmp_path):
    lines = Lines(tmp_path / "record.jsonl")
    for number in range(1, 6):
        lines.append({"round": number})
    with open(lines.path, "ab") as file:
        file.write(b'{"round": 6')
    assert [entry["round"] for entry in lines.read()] == [1, 2, 3, 4, 5]
    lines.keep_up_to(3)
    assert lines.path.read_text() == '{"round": 1}\n{"round": 2}\n{"round": 3}\n'


def test_private_lines_are_for_their_owner(tmp_path):
    lines = Lines(tmp_path / "diagnostics.jsonl", private=True)
    lines.append({"round": 1})
    lines.keep_up_to(1)
    assert oct(lines.path.stat().st_mode)[-3:] == "600"
