"""Train a recipe into a run's folder, and go on with a run."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jax
import numpy as np

from sottovoce.build.assembly import Played, weights_of
from sottovoce.commands.budget import Meter, store_ledger
from sottovoce.commands.helper import assemble_for, sum_over
from sottovoce.commands.insert_canaries import canary_scorer, notes_of, saved_canary_scores
from sottovoce.commands.lease import charged_beside, take_hold
from sottovoce.commands.new_run import begin, check_beside, owed_for_words
from sottovoce.commands.payments import RunSpender
from sottovoce.commands.saving import check_origin, load_state, save_checkpoint
from sottovoce.commands.stores import TURNS_BY_PLACE, open_users
from sottovoce.data.store import Store
from sottovoce.errors import BudgetExhausted, DamagedRun, SottoError
from sottovoce.evaluation.prediction import Evaluation, evaluate
from sottovoce.federation.aggregation import DeviceSum
from sottovoce.federation.rounds import Coordinator
from sottovoce.files import to_json_number, told_if_full
from sottovoce.local.objective import Objective, plain
from sottovoce.models.contract import LanguageModel, parameter_count
from sottovoce.multiprocess.group import Group
from sottovoce.privacy.clipping import joint_norm
from sottovoce.recipe import Recipe
from sottovoce.reporting.statement import Charges, RunFacts, Statement, VocabularyFacts, make_statement
from sottovoce.reporting.statement_text import with_prose
from sottovoce.runs import checkpoint as checkpoints
from sottovoce.runs.card import Card
from sottovoce.runs.folder import RunFolder
from sottovoce.runs.ledger import Ledger
from sottovoce.runs.record import of_held_out
from sottovoce.runs.secrets import Secrets
from sottovoce.training.server import ServerState


@dataclass(frozen=True)
class Progress:
    """What is told of a round while a run goes on, and once before the first (with `users` and `seconds` 0).

    `users` and `seconds` are private: show them to the owner only.
    """

    round: int
    rounds: int
    epsilon: float
    budget: float | None
    users: int
    seconds: float
    evaluation: Evaluation | None


@dataclass(frozen=True)
class RunResult:
    """How a run stands. `ended` is "finished", "stopped" (asked to) or "budget" (a round more would pass ε)."""

    path: Path
    round: int
    ended: str
    statement: Statement
    evaluation: Evaluation | None
    notes: tuple[str, ...] = ()
    traffic: dict[str, float] | None = None  # bytes, as the model's card has them


Observer = Callable[[Progress], None]


def train(
    recipe: Recipe | str | Path, out: str | Path, *, model: LanguageModel | None = None, objective: Objective = plain,
    observer: Observer | None = None, stop: Callable[[], bool] = lambda: False, group: Group | None = None,
    beside: Store | None = None, coordinator: Coordinator | None = None,
) -> RunResult:  # fmt: skip
    """Train what a recipe describes into a new folder.

    `model` and `objective` may be your own. `observer` is told of every round; when `stop()` is true the round is
    finished, saved, and the run can be resumed. With a `group` of processes, of which this is the first, the others
    call `work_as_helper`. The model is evaluated on the public text of `beside` too, whenever it is on held-out users.
    With a `coordinator` the users are on devices, and data.store is the folder of their federation.
    """
    begin(recipe, Path(out), model, objective, group, beside, coordinator is not None)
    return resume(
        out, model=model, objective=objective, observer=observer, stop=stop, group=group, beside=beside,
        coordinator=coordinator,
    )  # fmt: skip


def resume(
    path: str | Path, *, model: LanguageModel | None = None, objective: Objective = plain,
    observer: Observer | None = None, stop: Callable[[], bool] = lambda: False, group: Group | None = None,
    beside: Store | None = None, coordinator: Coordinator | None = None,
) -> RunResult:  # fmt: skip
    """Go on with a run from its last good checkpoint, to the same end as if it had never stopped."""
    run = RunFolder.open(path)
    on = "sotto resume" if coordinator is None else "sotto federate resume"
    with run.locked(), told_if_full(run.path, f"then go on with `{on} {path}`: what was saved is safe"):
        asked = group.asked if group else lambda: False
        return Training(run, model, objective, group, beside, coordinator).run(observer, lambda: stop() or asked())


class Training:
    """A run in progress: what is on disk, and the state it has reached."""

    def __init__(
        self, run: RunFolder, model: LanguageModel | None, objective: Objective, group: Group | None,
        beside: Store | None = None, coordinator: Coordinator | None = None,
    ):  # fmt: skip
        self.run_folder, self.beside, self.coordinator = run, beside, coordinator
        recipe = Recipe.load(run.recipe_file)
        check_beside(recipe, beside)
        self.ledger = Ledger.open(run.ledger_file)
        if self.ledger.header.get("recipe") != recipe.sha256():
            raise SottoError(
                f"the recipe of {run.path} was edited after the run began; put it back, or start another run with it"
            )
        self.store, self.test = open_users(recipe, run, coordinator is not None)
        secrets = Secrets.load_any(run.secrets)
        if self.ledger.header.get("store") != secrets.blind(self.store.fingerprint):
            raise SottoError(
                f"{self.store.path} is not the store that {run.path} began on, and its people were never charged; "
                f"put it back, or start another run"
            )
        words = owed_for_words(recipe, self.store)
        self.assembly = assemble_for(group, recipe, self.store, model=model, objective=objective, before=words)
        if coordinator is not None:
            # Who answers, and in time, is never the same again: a round that is done again is another release.
            self.assembly = replace(self.assembly, reproducible=False)
        self.sum_updates = sum_over(group, self.assembly)
        # What the store was charged for ahead; that another version would allow more changes nothing.
        self.planned = int(self.ledger.header.get("planned", self.assembly.recipe.run.rounds))
        self.recipe = self.assembly.recipe
        if self.ledger.header.get("code") != self.assembly.code:
            raise SottoError(
                f"{run.path} was begun with {self.ledger.header.get('code')}, not with {self.assembly.code}; a run "
                f"of your own code goes on from Python: sottovoce.resume(run, model=..., objective=...)"
            )
        self._check_turns(secrets)
        self.notes: list[str] = list(self.ledger.notes)
        declared = self.recipe.privacy.users
        self.watch = canary_scorer(run, self.ledger.header, self.assembly, self.store, secrets)
        if self.assembly.passes is None and not 0.5 < self.store.users / declared < 2:
            self.notes.append(
                f"note for the owner: the store has {self.store.users:,} users to train on, and the recipe declares "
                f"{declared:,}; cohorts are {self.store.users / declared:.2g} times as large as declared"
            )
        if self.watch is not None:
            self.notes += notes_of(self.watch, self.store, declared)
            self.store = self.watch.inserted
        self._load_state()
        self.meter = Meter(self.assembly)
        self.exhausted: BudgetExhausted | None = None
        self.notes += take_hold(self)

    def _check_turns(self, secrets: Secrets) -> None:
        """Refuse to go on where somebody's turn could come more often than was charged."""
        if self.assembly.turns is None:
            return
        if "turns" not in self.ledger.header:
            raise SottoError(f"{self.run_folder.path} cannot go on: {TURNS_BY_PLACE}")
        if self.ledger.header["turns"] != secrets.blind(self.assembly.turns):
            raise SottoError(
                f"the users of {self.store.path} have other names than when {self.run_folder.path} began, so that "
                f"their turns would be others too; put the store back, or start another run"
            )

    def _load_state(self) -> None:
        saved, damaged = checkpoints.latest(self.run_folder.checkpoints)
        if saved is None:
            raise DamagedRun(f"{self.run_folder.path} has no checkpoint that can be read; start another run")
        for path in damaged:
            self.notes.append(f"{path.name} is damaged; going on from round {saved.round}")
            path.unlink()
        if self.ledger.rounds < saved.round:
            raise DamagedRun(
                f"the ledger of {self.run_folder.path} has no entry for round {self.ledger.rounds + 1}, but a "
                f"checkpoint is at round {saved.round}: what was spent cannot be told, so the run is refused; "
                f"start another"
            )
        check_origin(self.run_folder, self.ledger, saved)
        self.state = load_state(saved, self.assembly.start(self.assembly.model))
        if self.watch is not None:
            self.watch.scores = saved_canary_scores(saved)
        self.parent: str = saved.facts["lineage"]
        self.secrets = Secrets.load(self.run_folder.secrets, saved.round + 1)
        self.run_folder.record.keep_up_to(saved.round)
        self.run_folder.diagnostics.keep_up_to(saved.round)

    def run(self, observer: Observer | None, stop: Callable[[], bool]) -> RunResult:
        ended, evaluation = "finished", None
        last = self.recipe.run.rounds
        spender = RunSpender(self)
        if observer:
            observer(self._progress(users=0, seconds=0.0, evaluation=None))
        before = time.perf_counter()
        try:
            if self.exhausted:
                raise self.exhausted
            for state, played in self._rounds(spender):
                jax.block_until_ready(state.model)
                clip_norms = self.assembly.algorithm.mechanism.clip_norms(state.round, self.state.clip_norms)
                self.state, self.parent = state, spender.lineage
                seconds = time.perf_counter() - before
                evaluation = self._evaluate_if_due(state) or evaluation
                shown = evaluation if self._is_due(state.round) else None
                progress = self._write_round(played, clip_norms, seconds, shown)
                stopping = stop()
                if stopping or state.round % self._checkpoint_every == 0 or state.round == last:
                    self._checkpoint()
                if observer:
                    observer(progress)
                if stopping and state.round < last:
                    ended = "stopped"
                    break
                before = time.perf_counter()
        except BudgetExhausted as error:
            ended = "budget"
            self.notes.append(str(error))
            self._checkpoint()
        statement = self._finish()
        evaluation = evaluation or self._last_evaluation()
        return RunResult(
            self.run_folder.path, self.state.round, ended, statement, evaluation, tuple(self.notes), self._traffic()
        )  # fmt: skip

    def _rounds(self, spender: RunSpender) -> Iterator[tuple[ServerState, Played | DeviceSum]]:
        if self.coordinator is None:
            return self.assembly.rounds(self.state, self.store, spender.keys, spender, self.sum_updates, self.watch)
        run = self.ledger.header["run"]
        return self.coordinator.rounds(
            self.assembly, run, self.state, spender.keys, spender, lambda: spender.lineage
        )  # fmt: skip

    @property
    def _checkpoint_every(self) -> int:
        # A round over devices is never the same again: one that is not kept would have to be paid for twice.
        return self.recipe.run.checkpoint_every if self.coordinator is None else 1

    def _is_due(self, round_number: int) -> bool:
        every = self.recipe.run.evaluate_every
        return bool(every) and self.test is not None and (
            round_number % every == 0 or round_number == self.recipe.run.rounds
        )  # fmt: skip

    def _evaluate_if_due(self, state: ServerState) -> Evaluation | None:
        if not self._is_due(state.round) or self.test is None:
            return None
        limit = self.recipe.run.evaluate_users or self.test.users
        return evaluate(state.model, self.test, range(min(limit, self.test.users)))

    def _last_evaluation(self) -> Evaluation | None:
        """As the record has it, for a run that had nothing left to do."""
        found = [line["evaluation"] for line in self.run_folder.record.read() if "evaluation" in line]
        return Evaluation.from_json(found[-1]) if found else None

    def _write_round(
        self, played: Played | DeviceSum, clip_norms: np.ndarray, seconds: float, evaluation: Evaluation | None
    ) -> Progress:
        epsilon = self.meter(self.ledger.spent_up_to(self.state.round))
        mechanism = self.assembly.algorithm.mechanism
        entry: dict[str, Any] = {
            "round": self.state.round,
            "epsilon": to_json_number(epsilon),
            "delta": self.recipe.privacy.delta,
            "clip_norm": to_json_number(joint_norm(clip_norms)),
            "noise_std": mechanism.noise_std(self.state.round, clip_norms)[0],
        }
        if evaluation:
            entry["evaluation"] = of_held_out(evaluation.to_json())
            if self.beside is not None:
                entry["beside"] = evaluate(self.state.model, self.beside).to_json()
        self.run_folder.record.append(entry)
        exact = {"round": self.state.round, **played.diagnostics(), "seconds": seconds}
        self.run_folder.diagnostics.append(exact)
        return self._progress(played.users, seconds, evaluation)

    def _progress(self, users: int, seconds: float, evaluation: Evaluation | None) -> Progress:
        epsilon = self.meter(self.ledger.spent_up_to(self.state.round))
        budget = self.recipe.privacy.epsilon
        return Progress(self.state.round, self.recipe.run.rounds, epsilon, budget, users, seconds, evaluation)

    def _checkpoint(self) -> None:
        self.run_folder.record.sync()
        self.run_folder.diagnostics.sync()
        scores = None if self.watch is None else self.watch.scores
        self.secrets = save_checkpoint(self.run_folder, self.state, self.secrets, self.parent, scores)

    def _finish(self) -> Statement:
        beside, again = charged_beside(self), self.ledger.repeated()
        # Training stops before it passes its budget: of the planned rounds, those count that it may still come to.
        allowed = Meter(self.assembly, beside).rounds_allowed(self.planned, self.ledger.rounds, again)
        vocabulary = "\n".join(self.store.vocabulary.words) + "\n"
        files = self.run_folder.save_model(weights_of(self.state.model), vocabulary)
        header, mechanism = self.ledger.header, self.assembly.algorithm.mechanism
        charges = Charges(
            planned=mechanism.events(allowed),
            done=self.ledger.spent(),
            repeated=again,
            elsewhere=beside,
            vocabulary=self.assembly.before,
            store=store_ledger(self.store).spent() if self.meter.private else [],
            to_store=self._charged_to_store(),
        )
        about = RunFacts(
            run=header["run"],
            rounds_planned=self.planned,
            rounds_done=self.state.round,
            vocabulary=VocabularyFacts.of(self.store.vocabulary.fingerprint, self.store.vocabulary_source),
            start=header.get("start"),
            canaries=header.get("canaries"),
            across_devices=self.coordinator is not None,
            users_at_once=self.assembly.sum_updates.block if self.coordinator is None else 1,
            files=files,
        )
        statement = make_statement(self.recipe, mechanism, self.assembly.accountant, charges, about)
        card = Card(
            code=self.assembly.code,
            own_model=self.assembly.own_model,
            parameters=parameter_count(self.state.model),
            vocabulary=self.store.vocabulary.size,
            rounds=self.state.round,
            bytes=self._traffic(),
        )
        self.run_folder.save_statement(with_prose(statement), card.to_json())
        return statement

    def _charged_to_store(self) -> int:
        if not self.meter.private:
            return 0
        return sum(count for _, count in store_ledger(self.store).spent(self.ledger.header["run"]))

    def _traffic(self) -> dict[str, float] | None:
        """None for real devices: the model goes to all that are connected, drawn or not."""
        return None if self.coordinator is not None else self.assembly.traffic(self.store, self.state.round)
