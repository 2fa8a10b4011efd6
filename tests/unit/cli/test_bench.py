"""`sotto bench`."""

from __future__ import annotations

from dataclasses import replace

from sottovoce.commands.bench import Measurement

ONE = Measurement(
    workload="demo",
    device="a chip",
    precision="float32",
    cohort=100,
    population=100,
    block=25,
    users_per_second=1234.5,
    tokens_per_second=197_520.0,
    seconds_a_round=0.081,
    core_seconds_a_round=0.16,
    compile_seconds=2.5,
    open_seconds=0.1,
    peak_bytes=3 * 2**30,
    flops_a_user=1e9,
    bytes_a_user=1e6,
    arithmetic_share=0.5,
    bandwidth_share=0.125,
)


def test_one_workload_is_measured_here(sotto, stub, capsys):
    measure, each = stub("sottovoce.commands.bench.measure", ONE), stub("sottovoce.commands.bench.measure_each")
    sotto(["bench", "--workload", "demo", "--cohort", "7", "--block", "3", "--kernels", "off"])
    assert measure.places == ("demo", 7, 3, "off")
    assert each.calls == []
    page = capsys.readouterr().out
    for words in ("Workload demo on a chip, float32", "1,234", "197,520", "0.081", "0.16", "3,072", "50.0%", "12.5%"):
        assert words in page


def test_several_cohorts_or_populations_give_a_row_each(sotto, stub, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    each = stub("sottovoce.commands.bench.measure_each", [ONE, replace(ONE, cohort=200)])
    sotto(["bench", "--cohort", "100", "200", "--population", "1000"])
    assert each.places == ("mcmahan-lstm", [100, 200], [1000], 0, None)
    assert capsys.readouterr().out.count("197,520") == 2


def test_one_measurement_is_an_object_and_several_are_a_list(stub, answer):
    stub("sottovoce.commands.bench.measure", ONE)
    stub("sottovoce.commands.bench.measure_each", [ONE, ONE])
    assert answer("bench")["users_per_second"] == 1234.5
    assert [one["cohort"] for one in answer("bench", "--cohort", 100, 200)] == [100, 100]


def test_what_cannot_be_measured_is_refused(refusal):
    assert "--workload 'dmeo' must be one of" in refusal("bench", "--workload", "dmeo")
    assert "--cohort 0 must be 1 or more" in refusal("bench", "--cohort", 0)
