"""`sotto bench`."""

from __future__ import annotations

from dataclasses import replace

from sottovoce.commands.bench import Measurement

ONE = Measurement(
    device="a chip",
    precision="float32",
    cohort=100,
    block=25,
    users_per_second=1234.5,
    tokens_per_second=197_520.0,
    seconds_a_round=0.081,
    core_seconds_a_round=0.16,
    compile_seconds=2.5,
    peak_bytes=3 * 2**30,
)


def test_a_recipe_is_measured_here(sotto, stub, capsys):
    measure, each = stub("sottovoce.commands.bench.measure", ONE), stub("sottovoce.commands.bench.measure_each")
    sotto(["bench", "demo", "--cohort", "7", "--set", "run.block=3"])
    recipe, cohort = measure.places
    assert (recipe.run.block, cohort, each.calls) == (3, 7, [])
    page = capsys.readouterr().out
    for words in ("demo on a chip, float32", "1,234", "197,520", "0.081", "0.16", "3,072"):
        assert words in page


def test_one_measurement_is_an_object_and_several_are_a_list(stub, answer):
    stub("sottovoce.commands.bench.measure", ONE)
    each = stub("sottovoce.commands.bench.measure_each", [ONE, replace(ONE, cohort=200)])
    assert answer("bench")["users_per_second"] == 1234.5
    assert [one["cohort"] for one in answer("bench", "demo", "--cohort", 100, 200)] == [100, 200]
    assert each.places[1] == [100, 200]


def test_what_cannot_be_measured_is_refused(refusal):
    assert "no recipe 'dmeo'" in refusal("bench", "dmeo")
    assert "--cohort 0 must be 1 or more" in refusal("bench", "--cohort", 0)
