"""The blocks of docs/extending.md: registered from outside, named by a recipe, and as good as their guarantee."""

from __future__ import annotations

import math
import re
from pathlib import Path

import jax
import numpy as np
import pytest
from scipy.stats import norm as gaussian

import sottovoce as sv
from sottovoce.build.assembly import assemble
from sottovoce.build.mechanism import resolve
from sottovoce.cli.main import main
from sottovoce.kernels.lstm_users import fits
from sottovoce.local.keys import local_key
from sottovoce.local.update import FedAvg
from sottovoce.models.lstm import LSTM
from sottovoce.planning.plan import make_plan
from sottovoce.privacy import clipping, estimators, sampling
from sottovoce.privacy.kinds import KINDS
from sottovoce.runs.ledger import read_ledger
from sottovoce.training.types import Task
from sottovoce_evidence import accounting, bounds
from sottovoce_evidence import sampling as numbers
from sottovoce_evidence.accounting import Event, events
from sottovoce_evidence.errors import SottoError
from sottovoce_evidence.mechanism import sampler_of
from sottovoce_evidence.recipe import Privacy, Recipe
from sottovoce_evidence.statement_text import prose

PAGE = Path(__file__).parents[2] / "docs" / "extending.md"
REGISTRIES = {"sampling": sampling.SAMPLERS, "clipping": clipping.CLIPS, "estimator": estimators.ESTIMATORS}


@pytest.fixture
def run_block(monkeypatch, tmp_path, small_demo):
    """Runs an example of the page. What it registers is forgotten after the test."""
    monkeypatch.chdir(tmp_path)
    registries = [*REGISTRIES.values(), events.KINDS, numbers.SAMPLERS]
    before = [dict(each) for each in registries]

    def run(name: str) -> dict:
        (example,) = re.findall(rf"```python {name}\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
        scope = {"__name__": "extending"}
        exec(compile(example, f"extending.md ({name})", "exec", dont_inherit=True), scope)
        return scope

    yield run
    for registry, was in zip(registries, before, strict=True):
        registry.clear()
        registry.update(was)


def exact_norm(tree) -> float:
    return math.sqrt(sum(float(np.sum(np.square(np.float64(leaf)))) for leaf in jax.tree.leaves(tree)))


@pytest.mark.slow
def test_a_clip_of_ones_own_is_trained_and_keeps_its_bound(run_block, store, capsys):
    made = run_block("clip")
    shown = capsys.readouterr().out
    assert "to L2 norm 0.5 (normalise, every step)" in shown
    assert shown.endswith("<Verification of released: not checked: own code>\n")
    clip, recipe = made["Normalise"](0.5), made["recipe"]
    for length in (0.0, 1e-20, 9e-20, 1e-3, 0.5, 7.0, 1e30):
        # The last number has a square that float32 knows, and the others of the smallest ones have none.
        leaves = [np.float32(length) * np.ones(1000, np.float32), np.full((1, 1), 2 * length, np.float32)]
        update, sound = clipping.finite_or_zero(clip.clip(leaves, np.float32([0.5])).update)
        assert exact_norm(update) <= 0.5
        if 1e-3 <= length <= 7:
            assert sound
            assert exact_norm(update) == pytest.approx(0.5, rel=1e-4)  # short ones too
    # Two populations that differ in one user: the estimate moves by no more than the mechanism declares.
    assembly = assemble(recipe, store)
    mechanism = assembly.algorithm.mechanism
    assert mechanism.clipping == clip
    norms = mechanism.clip_norms(1, mechanism.start())

    def estimate(*cohort: int):
        task = Task(assembly.model, np.array(cohort, int), norms, local_key(bytes(8)))
        summed = assembly.sum_updates(assembly.algorithm, task, store)
        return mechanism.estimate(summed.total, summed.weight, summed.bits).update

    def difference(one, two):
        return exact_norm(jax.tree.map(lambda a, b: np.float64(a) - np.float64(b), one, two))

    moved = [difference(estimate(0), estimate(0, row)) for row in range(1, store.users)]
    assert 0.9 * mechanism.sensitivity(norms) < max(moved) <= mechanism.sensitivity(norms) * (1 + 1e-6)
    # Kernels leave it to the general program: they would take it for flat in every local step.
    model = LSTM(50, key=jax.random.key(0))
    known = (clipping.FlatClip(0.5), clipping.PerLayerClip.even(0.5, 11), clipping.NoClip())
    assert all(fits(FedAvg(each, True), model) for each in known)
    assert not fits(FedAvg(clip, True), model)


@pytest.mark.slow
def test_a_release_of_ones_own_clip_never_looks_fully_checked_to_others(run_block, capsys):
    run_block("clip")
    bound = "privacy.clipping='normalise': that it keeps every update within the clip norm"
    rehearsed = sv.release_run("runs/normalised", "again", dry_run=True)
    assert any(note.startswith(f"{bound}: code of your own") for note in rehearsed.notes)
    del clipping.CLIPS["normalise"]  # as for anyone else
    with pytest.raises(SystemExit, match="1"):
        main(["verify", "released"])
    shown = capsys.readouterr().out
    assert f"code of the owner's own, which is not here: {bound}\n" in shown
    assert shown.endswith("no check failed; NOT CHECKED: own code\n")
    with pytest.raises(SottoError, match=r"released cannot be checked \(.*privacy.clipping='normalise'"):
        sv.train(sv.Recipe.load("demo").replace(data={"store": "demo:40"}, model={"initial": "released"}), "next")
    bounds.CLIPS["normalise"] = bounds.FlatClip  # a reviewer who has read the code
    try:
        assert sv.verify_release("released").verified
    finally:
        del bounds.CLIPS["normalise"]


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name, kind in clipping.CLIPS.items() if kind.bounded])
def test_a_clip_that_is_added_to_the_package_is_trained_released_and_verified(name, monkeypatch, tmp_path, small_demo):
    """A subclass of each, and its norms: nothing else has to know of it."""
    kind = clipping.CLIPS[name]
    monkeypatch.setitem(clipping.CLIPS, "added", type("Added", (kind,), {}))
    monkeypatch.setitem(bounds.CLIPS, "added", type("Added", (bounds.CLIPS[name],), {}))
    recipe = sv.Recipe.load("demo").replace(
        data={"store": "demo:60"},
        privacy={"clipping": "added", "clip_norm": 0.5, "users": 60, "cohort": 20, "delta": 1e-3},
        run={"rounds": 2, "evaluate_every": 0},
    )
    sv.train(recipe, tmp_path / "run")
    assert sv.release_run(tmp_path / "run", tmp_path / "out").released
    assert sv.verify_release(tmp_path / "out").verified


@pytest.mark.slow
def test_a_sampler_of_ones_own_is_planned_charged_and_stated(run_block, tmp_path):
    made = run_block("sampler")
    z, plan = made["plan"].noise_multiplier, made["plan"]
    # Two Gaussian rounds of noise z are one of z/√2: its δ at the ε that is told is the δ that was asked for.
    mu = math.sqrt(2) / z
    ends = (gaussian.cdf(mu / 2 - plan.epsilon / mu), gaussian.cdf(-mu / 2 - plan.epsilon / mu))
    assert ends[0] - math.exp(plan.epsilon) * ends[1] == pytest.approx(1e-3, rel=0.02)
    assert 7.9 < plan.epsilon <= 8.0
    assert (plan.relation, plan.device_rounds_most) == ("add-or-remove-one-user", 2)

    recipe = sv.Recipe.load("demo").replace(
        data={"store": "demo:60"},
        privacy={"sampling": "everyone", "users": 60, "cohort": 60, "delta": 1e-3, "epsilon": 8.0},
        run={"rounds": 2, "evaluate_every": 0},
    )
    run = sv.train(recipe, tmp_path / "run")
    assert run.statement.epsilon == pytest.approx(plan.epsilon)
    assert "sampling: everyone, of the owner's own code" in prose(run.statement)
    charged = read_ledger(tmp_path / "run" / "ledger.jsonl").spent
    assert charged == [(made["AllJoin"](z), 2)]
    assert Event.from_json(made["AllJoin"](z).to_json()) == made["AllJoin"](z)
    with pytest.raises(SottoError, match=r"cohort=20 must be privacy\.users=60"):
        resolve(recipe.replace(privacy={"cohort": 20}))


@pytest.mark.parametrize("key", REGISTRIES)
def test_a_name_that_no_block_has_is_refused_with_those_there_are(key):
    recipe = Recipe.load("demo").replace(privacy={key: "flatt"})
    with pytest.raises(SottoError, match=f"privacy.{key}='flatt' must be one of {', '.join(REGISTRIES[key])}"):
        resolve(recipe)


@pytest.mark.parametrize("key", REGISTRIES)
def test_a_recipe_names_a_block_that_there_is_and_its_page_lists_them_all(key):
    assert REGISTRIES[key].setting == f"privacy.{key}"
    assert Privacy.__dataclass_fields__[key].default in REGISTRIES[key]
    page = (PAGE.parent / "reference" / "recipe.md").read_text(encoding="utf-8")  # `make reference` writes it
    (row,) = re.findall(rf"^\| `{key}` \|.*$", page, re.MULTILINE)
    assert f"| {', '.join(f'`{name}`' for name in REGISTRIES[key])} |" in row


def test_every_sampler_answers_what_a_run_asks():
    for name in sampling.SAMPLERS:
        separated = {"min_separation": 5} if sampling.SAMPLERS[name].takes("min_separation") else {}
        examples = sampling.SAMPLERS[name].takes("examples_per_user")
        if examples:
            sampler = sampling.Examples(0.1, 3)
        else:
            privacy = {"sampling": name, "cohort": 10, "users": 100, **separated}
            sampler = sampler_of(Recipe().replace(privacy=privacy, run={"rounds": 30}), KINDS)
        assert sampler.event(1.5).noise_multiplier == 1.5
        assert sampler.of_population(20, 40).expected(40) == 20
        assert accounting.epsilon(sampler.events([(1.5, 30)]), 1e-5, "pld" if examples else "rdp") > 0
        how = {"examples_per_user": 3} if examples else {"sampling": name, **separated}
        plan = make_plan(users=100, cohort=10, rounds=30, delta=1e-5, noise_multiplier=1.5, **how)
        assert plan.epsilon > 0
