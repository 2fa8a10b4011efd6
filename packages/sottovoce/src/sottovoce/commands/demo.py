"""`sotto demo`: a private model and the same without privacy, on the synthetic population."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path

from sottovoce.commands.baselines import public_baselines
from sottovoce.commands.compare import compare_runs, write_comparison
from sottovoce.commands.evaluate import evaluate_run
from sottovoce.commands.live_line import live_line
from sottovoce.commands.report import report_run
from sottovoce.commands.stores import prepare_demo
from sottovoce.commands.train import Observer, RunResult, Stop, never, train
from sottovoce.data.store import Store
from sottovoce.planning.plan import make_plan
from sottovoce_evidence.accounting import rounded_up
from sottovoce_evidence.errors import SottoError, count_of, plain_number
from sottovoce_evidence.recipe import Recipe

ProgressDisplay = Callable[[str], AbstractContextManager[Observer]]


@dataclass(frozen=True)
class DemoResult:
    private: RunResult
    plain: RunResult
    baseline: float  # top-1 of always suggesting one frequent token


def run_demo(
    out: Path, *, log: Callable[[str], None] = print, progress: ProgressDisplay = live_line, stop: Stop = never
) -> DemoResult | None:
    """Plan, prepare, train twice, evaluate, report. None when it was asked to stop.

    Args:
        out: an empty or a new folder for the store and the two runs.
        log: takes a line about each step.
        progress: shows the rounds of a run.
        stop: is asked after each round.
    """
    if out.exists() and not (out.is_dir() and not any(out.iterdir())):
        raise SottoError(f"{str(out)!r} is not an empty folder; delete it or name another with --out")
    recipe = Recipe.load("demo")
    privacy, rounds = recipe.privacy, recipe.run.rounds
    size = {"users": privacy.users, "cohort": int(privacy.cohort), "rounds": rounds}
    plan = make_plan(**size, delta=privacy.delta, epsilon=privacy.epsilon)
    cost = f"ε = {rounded_up(plan.epsilon)} at δ = {plain_number(privacy.delta)}"
    log(
        f"plan     {privacy.cohort:g} of {privacy.users:,} users a round, {rounds} rounds: "
        f"{cost} needs noise multiplier {plan.noise_multiplier:g}"
    )
    store = out / "store"
    out.mkdir(parents=True, exist_ok=True)
    summary = prepare_demo(store, int(recipe.data.store.removeprefix("demo:")))
    log(f"prepare  {count_of(summary.train_users, 'user')} to train on, {summary.test_users:,} held out")
    recipe = recipe.replace(data={"store": str(store)})
    plain = recipe.replace(privacy={"mode": "none", "clipping": "none", "estimator": "true_average"})
    results = []
    for name, chosen in (("private", recipe), ("not-private", plain)):
        with progress(f"train    {name}") as observer:
            result = train(chosen, out / name, observer=observer, stop=stop)
        if result.ended == "stopped":
            return None
        results.append(replace(result, evaluation=evaluate_run(result.path).evaluation))
    baseline = public_baselines(Store.open(store, "test")).constant.top1
    for result in results:
        report_run(result.path)
    write_comparison(compare_runs([result.path for result in results]), out / "compare.html")
    log("report   done")
    return DemoResult(results[0], results[1], baseline)
