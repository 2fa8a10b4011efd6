"""The main job in small: a private model and its non-private twin on the synthetic population."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path

from sottovoce.accounting import rounded_up
from sottovoce.commands.evaluate import evaluate_run
from sottovoce.commands.report import report_run
from sottovoce.commands.stores import prepare_demo
from sottovoce.commands.train import Progress, RunResult, train
from sottovoce.data.store import Store
from sottovoce.errors import SottoError
from sottovoce.evaluation.prediction import most_frequent_word_baseline
from sottovoce.planning.plan import make_plan
from sottovoce.recipe import Recipe

ProgressDisplay = Callable[[str], AbstractContextManager[Callable[[Progress], None]]]


@dataclass(frozen=True)
class DemoResult:
    private: RunResult
    plain: RunResult
    baseline: float  # top-1 of always predicting the most frequent word


def run_demo(
    out: Path, *, say: Callable[[str], None], progress: ProgressDisplay, stop: Callable[[], bool] = lambda: False
) -> DemoResult | None:
    """Plan, prepare, train twice, evaluate, report. None when it was asked to stop."""
    if out.exists() and not (out.is_dir() and not any(out.iterdir())):
        raise SottoError(f"{str(out)!r} is not an empty folder; delete it or name another with --out")
    recipe = Recipe.load("demo")
    privacy = recipe.privacy
    plan = make_plan(
        users=privacy.users, cohort=int(privacy.cohort), rounds=recipe.run.rounds, delta=privacy.delta,
        epsilon=privacy.epsilon,
    )  # fmt: skip
    say(
        f"plan     {privacy.cohort:g} of {privacy.users:,} users a round, {recipe.run.rounds} rounds: "
        f"ε = {rounded_up(plan.epsilon)} at δ = {privacy.delta:g} needs noise multiplier {plan.noise_multiplier:g}"
    )
    out.mkdir(parents=True, exist_ok=True)
    summary = prepare_demo(out / "store", int(recipe.data.store.removeprefix("demo:")))
    say(f"prepare  {summary.train_users:,} users to train on, {summary.test_users:,} held out")
    recipe = recipe.replace(data={"store": str(out / "store")})
    twin = recipe.replace(privacy={"mode": "none", "clipping": "none", "estimator": "true_average"})
    results = []
    for name, chosen in (("private", recipe), ("not-private", twin)):
        with progress(f"train    {name}") as observer:
            results.append(train(chosen, out / name, observer=observer, stop=stop))
        if results[-1].ended == "stopped":
            return None
    private, plain = (replace(result, evaluation=evaluate_run(result.path)[0]) for result in results)
    baseline = most_frequent_word_baseline(Store.open(out / "store"), Store.open(out / "store", "test"))
    report_run(private.path, baseline=baseline, beside=plain.path)
    report_run(plain.path, baseline=baseline)
    say("report   done")
    return DemoResult(private, plain, baseline)
