from __future__ import annotations

import math
from dataclasses import replace

import pytest

from scores import score
from sottovoce.papers import reproduce as running
from sottovoce.papers.engine.claims import FAILS, HOLDS, OPEN, Estimate, Evidence, all_of
from sottovoce.papers.engine.populations import Populations, Stores
from sottovoce.papers.engine.results import Outcome, ResultStore, Spread, rounds_to, smooth, value_at
from sottovoce.papers.engine.runner import Console, Runner
from sottovoce.papers.engine.setting import Setting
from sottovoce.papers.engine.tables import percent
from sottovoce.papers.mcmahan2018 import tables
from sottovoce.papers.mcmahan2018.trials import EXPERIMENTS, SIZES, baselines, fedsgd, noised
from sottovoce.papers.registry import MCMAHAN2018
from sottovoce_evidence.errors import SottoError

GPU = SIZES["gpu"]


def outcome(trial, seed, end, first=0):
    rounds = trial.rounds_of(GPU)
    curve = [(first + at, end * (1 - math.exp(-at / 200)), 120.0) for at in range(20, rounds + 1, 20)]
    heads = {n: [0.0] * 4 + [1.0] + [0.0] * 6 for n in ("10", "50", "100")}
    evaluation = score(20, curve[-1][1], perplexity=120.0)
    run = {"algorithm": trial.changes.run.get("algorithm", "fedavg")}
    noise = {key: value for key, value in trial.changes.privacy.items() if key == "noise_std"}  # a private run has none
    recipe = {"privacy": {"clip_norm": 15.0, "cohort": 2000.0, **noise}, "run": run}
    promised = {
        "epsilon": 7.99,
        "epsilon_store": 8.0 + end,
        "delta": 1e-5,
        "noise_multiplier": 1.06,
        "noise_std": 0.0086,
    }
    facts = promised if trial.is_private else {}
    return Outcome(
        trial.name,
        seed,
        recipe,
        first,
        rounds,
        trial.user_updates(GPU),
        curve,
        evaluation,
        heads,
        [(100, 0.5)],
        1.0,
        facts=facts,
    )


def checked(results):
    return [each.to_json() for each in MCMAHAN2018.check_claims(results, GPU)[0]]


@pytest.fixture
def results(tmp_path):
    made = ResultStore(tmp_path / "results")
    for seed in range(3):
        made.save(outcome(noised(0.0), seed, 0.1750 + 0.0003 * seed))
        made.save(outcome(noised(0.003), seed, 0.1740 + 0.0003 * seed))
    return made


def test_curves_are_smoothed_over_five_evaluations():
    curve = [(20 * place, float(place)) for place in range(1, 31)]
    assert smooth(curve)[:3] == [(20, 2.0), (40, 2.5), (60, 3.0)]
    assert smooth(curve)[-1] == (600, 29.0)
    spiky = [(number, value % 2) for number, value in curve]
    assert max(value for _, value in smooth(spiky)[2:-2]) <= 0.6
    assert smooth(curve[:3]) == curve[:3]  # three evaluations are no curve to smooth


def test_rounds_to_an_accuracy_and_values_at_a_round():
    curve = [(20, 0.05), (40, 0.12), (60, 0.16)]
    assert rounds_to(curve, 0.12) == 40
    assert rounds_to(curve, 0.17) is None
    assert [value_at(curve, at) for at in (10, 40, 59, 900)] == [0.05, 0.12, 0.12, 0.16]


def test_results_come_back_from_disk_as_they_were(results):
    first, *rest = results.outcomes(noised(0.003))
    assert len(rest) == 2
    assert first.seed == 0
    assert first.curve[-1] == pytest.approx((1500, 0.1739, 120), rel=1e-3)
    assert results.outcomes(noised(0.0035)) == []
    path = results.path(noised(0.003), 0)
    path.write_text("{")
    with pytest.raises(SottoError, match="delete it to run it again"):
        results.outcomes(noised(0.003))


def test_measures_other_than_accuracy_are_read_by_name(tmp_path):
    saved = replace(outcome(noised(0.0), 0, 0.17), series={"local loss": [(20, 5.5), (40, 5.25)]})
    saved = replace(saved, curve=[*saved.curve[:-1], (1500, 0.1, None)])  # diverged in the last round
    results = ResultStore(tmp_path / "results")
    results.save(saved)
    (loaded,) = results.outcomes(noised(0.0))
    assert loaded.measured("local loss") == [(20, 5.5), (40, 5.25)]
    assert loaded.measured("loss")[-1] == (1480, pytest.approx(math.log(120)))
    assert loaded.measured("perplexity")[0] == (20, 120.0)
    assert loaded.measured("top1") == loaded.top1[:-1]
    assert loaded.top1[-1] == (1500, 0.1)
    assert [loaded.has_diverged(by) for by in (10, 1480, 1499, 1500, 1600)] == [False, False, False, True, True]
    assert loaded.measured("keystrokes") == []


def test_the_spread_between_seeds_is_pooled(results):
    final = results.final(noised(0.0))
    assert final.seeds == 3
    assert final.deviation == pytest.approx(0.0003, rel=0.01)
    assert MCMAHAN2018.metric.deviations(results.every_run()) == {
        "FedAvg": pytest.approx(0.03, rel=0.01)
    }  # percentage points
    assert Spread.of([0.1]).deviation is None


@pytest.mark.parametrize(
    ("value", "margin", "verdicts"),
    [
        (0.05, 0.1, (HOLDS, OPEN)),
        (0.5, 0.1, (FAILS, HOLDS)),
        (0.35, 0.1, (OPEN, HOLDS)),
        (-0.5, 0.1, (HOLDS, FAILS)),
        (0.1, None, (OPEN, OPEN)),
    ],
)
def test_a_difference_within_the_margin_cannot_be_told(value, margin, verdicts):
    gap = Estimate(value, margin)
    assert (gap.at_most(0.3), gap.at_least(0.0)) == verdicts
    assert gap.below(0.0) == {HOLDS: FAILS, FAILS: HOLDS, OPEN: OPEN}[verdicts[1]]
    assert Estimate(-value, margin).within(0.3) == gap.within(0.3)


def test_a_claim_of_several_parts_holds_if_all_do():
    assert all_of([HOLDS, HOLDS]) == HOLDS
    assert all_of([HOLDS, OPEN]) == OPEN
    assert all_of([OPEN, FAILS]) == FAILS
    assert all_of([]) == OPEN


def test_claims_are_judged_by_what_was_run(results):
    judged = {row["claim"]: row for row in checked(results)}
    assert len(judged) == len(MCMAHAN2018.claims) >= 12
    assert judged["accounting"]["verdict"] == HOLDS
    assert judged["small noise"]["verdict"] == HOLDS
    assert judged["small noise"]["measured"].startswith("costs +0.10 ± ")
    # The same accuracy after a few rounds more, of 50 times the users.
    assert "times" in judged["price"]["measured"]
    for name, row in judged.items():
        if name not in ("accounting", "small noise", "price"):
            assert (row["measured"], row["verdict"]) == ("not run", OPEN), name
    assert "pooled" in MCMAHAN2018.check_claims(results, GPU)[1]


def test_one_seed_cannot_tell(tmp_path):
    alone = ResultStore(tmp_path / "results")
    alone.save(outcome(noised(0.0), 0, 0.175))
    alone.save(outcome(noised(0.003), 0, 0.175))
    alone.save(outcome(noised(0.003), 1, 0.175))  # two that agree by chance are not a spread either
    assert MCMAHAN2018.metric.deviations(alone.every_run()) == {"FedAvg": None}
    judged = {row["claim"]: row for row in checked(alone)}
    assert judged["small noise"]["verdict"] == OPEN


def test_the_spread_of_one_algorithm_is_not_that_of_another(results):
    """FedSGD wanders more than FedAvg: how far its runs lie apart only its own seeds can tell."""
    for trial, top1 in ((fedsgd(0.0, 2.0), 0.12), (fedsgd(0.0, 20.0), 0.10)):
        results.save(outcome(trial, 0, top1))
    claim = {row["claim"]: row for row in checked(results)}["FedSGD clip"]
    assert claim["measured"] == "S = 2 instead of 20 costs -2.00 (no spread)"
    assert claim["verdict"] == OPEN
    assert (
        "too few settings were run with several seeds for a spread of FedSGD."
        in (MCMAHAN2018.check_claims(results, GPU)[1])
    )
    for seed in range(1, 5):
        results.save(outcome(fedsgd(0.0, 2.0), seed, 0.12 + seed / 1000))
    claim = {row["claim"]: row for row in checked(results)}["FedSGD clip"]
    assert claim["verdict"] == HOLDS


def rising(trial, seed, rounds, end=0.17):
    """Accuracy rises evenly to 17 % in so many rounds, and stays at `end` from there on."""
    run = outcome(trial, seed, 0.17)
    return replace(run, curve=[(at, min(0.17 * at / rounds, end), 120.0) for at, *_ in run.curve])


@pytest.mark.parametrize(
    ("private", "verdict"),
    [
        ((1180, 1200, 1220), HOLDS),  # 60 times 1,000 rounds
        ((940, 1040, 1140), OPEN),  # 52 ± 5 times: 50 lies within it
        ((780, 800, 820), FAILS),
    ],
)
def test_the_price_is_a_ratio_of_rounds_with_the_spread_of_both(tmp_path, private, verdict):
    results = ResultStore(tmp_path / "results")
    for seed in range(3):
        results.save(rising(noised(0.0), seed, 980 + 20 * seed))
        results.save(rising(noised(0.003), seed, private[seed]))
    claim = {row["claim"]: row for row in checked(results)}["price"]
    assert claim["verdict"] == verdict, claim["measured"]
    assert " ± " in claim["measured"].split(": ")[-1]


def test_a_margin_is_of_the_figure_that_is_compared(results):
    """Rounds and accuracies spread apart each on their own; models that all seeds share add nothing."""
    evidence = Evidence.of(results, GPU, MCMAHAN2018.metric, EXPERIMENTS)
    seeds = evidence.mean(noised(0.0), lambda run: 10.0 * run.seed)
    assert (seeds.value, seeds.margin) == (10.0, pytest.approx(2 * 10 / math.sqrt(3)))
    assert evidence.mean(noised(0.0)).margin == pytest.approx(2 * 0.03 / math.sqrt(3), rel=0.01)
    late, early = (evidence.minus(noised(0.0), noised(0.003), at) for at in (1500, 20))
    assert early.margin < late.margin / 5
    shared = replace(noised(0.0), single_seed=True)
    assert evidence.mean(shared, lambda run: 10.0 * run.seed) == Estimate(10.0, 0.0)
    assert evidence.mean(noised(0.0), lambda run: math.inf if run.seed else 1.0) == Estimate(math.inf, 0.0)
    # A setting in which a run has no such figure tells nothing of its spread, and four degrees of freedom are needed.
    alone = evidence.mean(noised(0.0), lambda run: math.nan if run.name == noised(0.003).name else 10.0 * run.seed)
    assert alone == Estimate(10.0, None)


@pytest.fixture
def grid(results):
    """The unclipped baseline: at η = 3 its first run is the best, and η = 6 diverged."""
    trials = baselines(GPU)
    for trial, end in zip(trials, (0.09, 0.14, 0.16, 0.17, 0.165, 0.0), strict=True):
        results.save(outcome(trial, 0, end))
    results.save(outcome(trials[3], 1, 0.15))  # more seeds do not change the choice
    return trials


def test_of_a_grid_the_best_first_run_stands_for_all(results, grid):
    assert results.best_of_grids([noised(0.0), *grid, noised(0.003)]) == [noised(0.0), grid[3], noised(0.003)]
    assert results.best_of_grids([noised(0.0), noised(0.003)]) == [noised(0.0), noised(0.003)]
    text = tables.table_2(GPU, results, results.folder)
    ends = Spread.of([run.smoothed[-1][1] for run in results.outcomes(grid[3])])
    assert f"| 17.62 % | {percent(ends)} (η = 3) |" in text


def test_only_the_best_of_a_grid_is_run_with_more_seeds(results, grid, monkeypatch):
    trained = []
    monkeypatch.setattr(Runner, "_check_result", lambda self, trial, seed: None)
    monkeypatch.setattr(Runner, "_train", lambda self, trial, seed: trained.append((trial.name, seed)) or True)
    out = results.folder.parent
    runner = Runner(MCMAHAN2018, GPU, out, Populations(out / "users", Stores(), GPU))
    assert runner.run(EXPERIMENTS["table-2"], seeds=3)
    unclipped = [(name, seed) for name, seed in trained if "no-clip" in name]
    assert unclipped == [(grid[3].name, 2)]
    assert (noised(0.006, 10.0).name, 2) in trained


def test_processes_share_a_folder_and_each_leaves_what_another_trains(results, grid, monkeypatch):
    """A run may have been finished by another process since it was looked for. Seeds of a grid wait for its best."""
    trained, said, out = [], [], results.folder.parent
    busy, finished = noised(0.006, 10.0), noised(0.012, 15.0)

    def train(self, trial, seed):
        trained.append((trial.name, seed))
        results.save(outcome(finished, 2, 0.1))
        return True

    monkeypatch.setattr(Runner, "_check_result", lambda self, trial, seed: None)
    monkeypatch.setattr(Runner, "_train", train)
    runner = Runner(MCMAHAN2018, GPU, out, Populations(out / "users", Stores(), GPU), Console(log=said.append))
    results.path(grid[0], 0).unlink()
    assert not results.path(finished, 2).exists()
    with runner._alone(busy, 2), runner._alone(grid[0], 0):
        assert runner.run(EXPERIMENTS["table-2"], seeds=3)
    assert trained
    assert not {(busy.name, 2), (finished.name, 2), *((one.name, seed) for one in grid for seed in (1, 2))} & {*trained}
    assert "3 of these runs are other processes'" in said[-1]
    trained.clear()
    assert runner.run(EXPERIMENTS["table-2"], seeds=3)
    assert {(busy.name, 2), (grid[0].name, 0)} <= {*trained}


_SIZES = tuple((trial, 0.16) for trial in EXPERIMENTS["figure-7"].trials(GPU))  # settings of one claim that holds


@pytest.fixture
def with_fedsgd(results):
    """One seed of FedSGD, whose claims cannot be told, and of two cohorts, whose claim holds; others have three."""
    for seed in range(3):
        for sigma, rounds in ((0.0, 1000), (0.003, 1200)):
            results.save(rising(noised(sigma), seed, rounds + 10 * seed))
    for trial, top1 in ((fedsgd(0.0, 2.0), 0.08), (fedsgd(0.0, 20.0), 0.0805), *_SIZES):
        results.save(outcome(trial, 0, top1))
    Setting("mcmahan2018", "gpu", 1500, 9, 1, 5, 3).save(results.folder.parent)
    return results


def test_claims_that_cannot_be_told_are_decided_before_those_of_one_seed(with_fedsgd):
    _, clip, sizes = MCMAHAN2018.undecided(with_fedsgd, GPU)
    assert [each.name for each in MCMAHAN2018.undecided(with_fedsgd, GPU)] == [
        "FedSGD rounds",
        "FedSGD clip",
        "cohorts",
    ]
    assert sizes.title == "C̃ = 100 predicts C̃ = 1,250 at the same σ (section 3, Figure 7): holds"
    assert clip.title == "FedSGD stands a much smaller S (appendix C, Figure 9): cannot be told"
    assert {trial.name for trial in clip.trials(GPU)} == {fedsgd(0.0, 2.0).name, fedsgd(0.0, 20.0).name}


def test_undecided_claims_get_the_seeds_they_lack(with_fedsgd, monkeypatch):
    def train(self, trial, seed):
        self.results.save(replace(self.results.outcomes(trial)[0], seed=seed))
        trained.append((trial.name, seed))
        return True

    trained, said = [], []
    for name in ("check_stores", "save_setting", "_check_result"):
        monkeypatch.setattr(Runner, name, lambda *arguments: None)
    monkeypatch.setattr(Runner, "_train", train)
    out = with_fedsgd.folder.parent
    stores = Stores((out,))
    request = running.Request(MCMAHAN2018, [], GPU, seeds=3, undecided=True)
    assert running.reproduce(request, out, stores, Console(said.append))
    wanted = [fedsgd(0.0, 2.0), fedsgd(0.0, 20.0), *(trial for trial, _ in _SIZES)]
    assert sorted(trained) == sorted((trial.name, seed) for trial in wanted for seed in (1, 2))
    assert MCMAHAN2018.undecided(with_fedsgd, GPU) == []
    assert "| claim | criterion |" in said[-1]
    assert not (out / "FedSGD clip.md").exists()
    with pytest.raises(SottoError, match="leave --figure"):
        running.reproduce(replace(request, names=["figure-9"]), out, stores)
    with pytest.raises(SottoError, match="give 2 or more"):
        running.reproduce(replace(request, seeds=1), out, stores)
    with pytest.raises(SottoError, match="holds no reproduction"):
        running.reproduce(request, out / "nowhere", stores)
