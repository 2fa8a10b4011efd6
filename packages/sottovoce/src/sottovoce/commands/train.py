"""Train a recipe into a run's folder, and go on with a run."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from statistics import median_low
from typing import NamedTuple, Unpack

import numpy as np

from sottovoce.build.assembly import weights_of
from sottovoce.commands.baselines import evaluated_users
from sottovoce.commands.clock import Clock, Pace
from sottovoce.commands.forecast import sampled
from sottovoce.commands.helper import sum_over
from sottovoce.commands.insert_canaries import canary_scorer, notes_of, saved_canary_scores
from sottovoce.commands.live_line import LiveLine, Progress, live_line
from sottovoce.commands.new_run import (
    Context,
    Given,
    Opened,
    Stop,
    begin,
    check_also,
    checkpoint_of,
    is_for_owner_alone,
    is_of_public_text,
    never,
    open_run,
    start_in,
)
from sottovoce.commands.realised import realised_epsilon
from sottovoce.evaluation.figures import Evaluation, last_evaluation
from sottovoce.evaluation.prediction import evaluate
from sottovoce.files import explain_full_disk
from sottovoce.models.contract import LanguageModel, parameter_count
from sottovoce.privacy.kinds import KINDS
from sottovoce.privacy.sampling import BoundedParticipation
from sottovoce.reporting.notebook import html_table
from sottovoce.reporting.statement import read_statement, with_store_total
from sottovoce.runs import checkpoint as checkpoints
from sottovoce.runs.baselines import Baselines
from sottovoce.runs.card import Card
from sottovoce.runs.folder import RunFolder
from sottovoce.runs.ledger import Ledger
from sottovoce.runs.payments import Payments, begin_run, commits_of, store_ledger
from sottovoce.runs.secrets import Salt, Secrets
from sottovoce.training.server import ServerState
from sottovoce.training.strategy import Work
from sottovoce.training.types import RoundResult
from sottovoce.training.variants.central import Central
from sottovoce_evidence.accounting.matrices import realised_sensitivity, worst_rounds
from sottovoce_evidence.bases import PUBLIC
from sottovoce_evidence.bounds import joint_norm
from sottovoce_evidence.errors import DamagedRun, SottoError, count_of
from sottovoce_evidence.files import Json, as_json, to_json_number
from sottovoce_evidence.mechanism import NUMBERS
from sottovoce_evidence.recipe import Recipe
from sottovoce_evidence.statement import (
    SOFTWARE,
    CanarySummary,
    Evidence,
    Registered,
    RunFacts,
    Statement,
    VocabularyFacts,
    state,
)


@dataclass(frozen=True)
class RunResult:
    """Where a run ended. `ended` is "finished", "stopped" (asked to) or "budget" (another round would pass ε)."""

    path: Path
    round: int
    ended: str
    statement: Statement
    evaluation: Evaluation | None
    notes: tuple[str, ...] = ()
    traffic: dict[str, float] | None = None  # bytes, as the model's card has them
    baselines: Baselines | None = None
    epsilon_realised: float | None = None  # for the owner alone: it follows exactly from who takes part
    rounds_asked: int = 0  # by the recipe: more than were planned where the budget is spent before

    def __repr__(self) -> str:
        measured = f", top-1 {self.evaluation.top1:.2%}" if self.evaluation else ""
        planned = self.statement.rounds_planned
        rounds = f"{self.round} of {count_of(planned, 'round')}, {self.ended}"
        return f"<Run {self.path}: {rounds}, {self.statement.short}{measured}>"

    def _repr_html_(self) -> str:
        rounds = f"{self.round} of {self.statement.rounds_planned}, {self.ended}"
        rows = {"rounds": rounds, "privacy": self.statement.short}
        if self.evaluation:
            rows["top-1 on held-out users"] = f"{self.evaluation.top1:.2%}"
            rows["perplexity"] = f"{self.evaluation.perplexity:.4g}"
        scores = self.baselines.scores if self.baselines else {}
        rows |= {f"top-1 of {name}": f"{score.top1:.2%}" for name, score in scores.items()}
        return html_table(f"Run {self.path}", rows)


Observer = Callable[[Progress], None]
_MOST_REALISED = 5000  # rounds of a run whose realised participation is measured: more need more than some 600 MB


def train(
    recipe: Recipe | str | Path,
    out: str | Path,
    *,
    observer: Observer | None = None,
    progress: bool | None = None,
    stop: Stop = never,
    **given: Unpack[Given],
) -> RunResult:
    """Train what a recipe describes into a new folder.

    Args:
        recipe: a recipe, the path of one, or the name of a shipped one.
        out: the folder to make.
        observer: is called once before the first round, and for each round once its checkpoint is committed.
        progress: whether to show the rounds in a live line, on a terminal or in a notebook; by default, if there is no
            observer.
        stop: is asked after every round. If it returns True the run stops there and can be resumed.
        given: what a recipe cannot name.
            model: a model of your own, in place of the recipe's.
            objective: an objective of your own, in place of the recipe's.
            strategy: a way to train of your own, in place of Algorithm 1; it promises nothing.
            group: the processes that train together. This is the first; the others call `work_as_helper`.
            also_evaluate_on: public text. The model is evaluated on it whenever it is evaluated on held-out users.
            coordinator: reaches the users on devices; data.store is then the folder of their federation.
            confirm: is asked with a `Forecast` before anybody is charged. Unless it is True, `Declined` is raised.
            before_timing: is called before that forecast times this machine, which takes about 20 seconds.
            practice: train on made-up people in the run's folder, as many as the recipe declares, with the vocabulary
                and the tokens per user of its store. The people of the store are neither read nor charged. Rounds,
                noise, time and files are those of the real run; accuracy is not.
    """
    context = Context(**given)
    with _observed(Path(out).name, observer, progress) as observe:
        return _train(RunFolder(Path(out)), context, observe, stop, begin(recipe, Path(out), context, stop))


def resume(
    path: str | Path,
    *,
    observer: Observer | None = None,
    progress: bool | None = None,
    stop: Stop = never,
    **given: Unpack[Given],
) -> RunResult:
    """Go on with a run from its last checkpoint. Rounds after it that a crash took away were never shown.

    Args:
        path: the folder of the run.
        observer: as for `train`.
        progress: as for `train`.
        stop: as for `train`.
        given: what was given to `train`.
    """
    with _observed(Path(path).name, observer, progress) as observe:
        return _train(RunFolder.open(path), Context(**given), observe, stop)


class Observers:
    """Who is told of the rounds: the live line, and an observer of the caller."""

    def __init__(self, line: LiveLine | None, observer: Observer | None):
        self._line, self._observer = line, observer

    def playing(self, round_number: int) -> None:
        """A round begins, which is public. Nothing else of it is shown before its checkpoint is committed."""
        if self._line:
            self._line.playing(round_number)

    def __call__(self, progress: Progress) -> None:
        for each in (self._line, self._observer):
            if each:
                each(progress)


@contextmanager
def _observed(name: str, observer: Observer | None, progress: bool | None) -> Iterator[Observers]:
    shown = observer is None if progress is None else progress
    with live_line(name) if shown else nullcontext() as line:
        yield Observers(line, observer)


def _train(
    run: RunFolder, context: Context, observers: Observers, stop: Stop, opened: Opened | None = None
) -> RunResult:
    command = "sotto federate resume" if context.across_devices else "sotto resume"
    with run.locked(), explain_full_disk(run.path, f"then go on with `{command} {run.path}`: what was saved is safe"):
        asked = context.group.stop_requested if context.group else never
        return Training(run, context, opened).run(observers, lambda: stop() or asked())


class Played(NamedTuple):
    """A round that no checkpoint holds yet: its line of the record, its figures for the owner, and its progress."""

    entry: Json
    figures: Json
    progress: Progress


class Training:
    """A run in progress: what is on disk, and the state it has reached."""

    def __init__(self, run: RunFolder, context: Context, opened: Opened | None = None):
        self.run_folder, self.context = run, context
        recipe = Recipe.of(run)
        check_also(recipe, context.also_evaluate_on)
        self.ledger = Ledger.open(run.ledger_file)
        header = self.ledger.header
        if header.get("recipe") != recipe.sha256():
            raise SottoError(f"the recipe of {run.path} was edited after the run began; put it back, or start anew")
        self.store, self.test, self.assembly, self.pace = opened or open_run(recipe, run, context)
        self.recipe = self.assembly.recipe
        self.baselines = Baselines.of(run)
        self._played: list[Played] = []  # rounds that no checkpoint holds yet
        salt = Salt.load(run.secrets)
        self._check_store_and_code(salt)
        self._check_turns(salt)
        self.sum_updates = sum_over(context.group, self.assembly)
        self.notes: list[str] = list(self.ledger.notes)
        users, declared = self.store.users, self.recipe.privacy.users
        self.watch = canary_scorer(run, header, self.assembly, self.store, salt)
        if not isinstance(self.assembly.strategy, Central) and not 0.5 < users / declared < 2:
            self.notes.append(
                f"note for the owner: the store has {count_of(users, 'user')} to train on, and the recipe "
                f"declares {declared:,}; cohorts are {users / declared:.2g} times as large as declared"
            )
        if self.watch is not None:
            self.notes += notes_of(self.watch, self.store, declared)
            self.store = self.watch.inserted
        self.payments = self._load_state()
        self._resumed = "" if opened else f"{run.path} goes on from the checkpoint of round {self.state.round}"

    def _check_store_and_code(self, salt: Salt) -> None:
        """Refuse another store or other code than the run began with: its charges would not hold."""
        header, run, store = self.ledger.header, self.run_folder.path, self.store.path
        if header.get("store") != salt.blind(self.store.fingerprint):
            raise SottoError(
                f"{store} is not the store that {run} began on, and its people were never charged; put it back, or "
                f"start another run"
            )
        if header.get("code") != self.assembly.code:
            raise SottoError(
                f"{run} was begun with {header.get('code')}, not with {self.assembly.code}; it goes on from Python: "
                f"sottovoce.resume(run, model=..., objective=..., strategy=...)"
            )

    def _check_turns(self, salt: Salt) -> None:
        """Refuse to go on where a user's turn could come more often than was charged."""
        turns, header, run = self.assembly.turns, self.ledger.header, self.run_folder.path
        if turns is not None and header.get("turns") != salt.blind(turns):
            changed = f"the users of {self.store.path} have other names than when {run} began, and so other turns"
            raise SottoError(f"{changed}; put the store back, or start another run")

    def _load_state(self) -> Payments:
        """Load the last checkpoint that was committed, and the payments that go on from it."""
        run, ledger, budget, people = self.run_folder, self.ledger, self.assembly.budget, store_ledger(self.store)
        if not commits_of(ledger, people, private=budget.private):  # a crash came before the run was paid for
            begin_run(run, ledger, people, budget)
        commits = commits_of(ledger, people, private=budget.private)
        saved = checkpoints.open_committed(run, commits)
        if ledger.rounds < saved.round:
            raise DamagedRun(
                f"the ledger of {run.path} has no entry for round {ledger.rounds + 1}, but a checkpoint is at round "
                f"{saved.round}: what was spent cannot be known; start another run"
            )
        Secrets.forget(run.secrets, saved.facts)
        secrets = Secrets.of(run.secrets, saved.facts, is_seeded=self.recipe.privacy.secrets == "seeded")
        # What the store was charged for ahead; that another version would allow more changes nothing.
        planned = int(ledger.header["planned"])
        self._load_frozen()
        self.state = self.assembly.start(self.assembly.model).load(saved.round, saved.arrays)
        if "noise" in saved.facts:
            self.state = self.state.with_noise(secrets.read_noise(run.secrets, saved.facts))
        if self.watch is not None:
            self.watch.scores = saved_canary_scores(saved)
        run.record.keep_up_to(saved.round)
        recorded = max((line["round"] for line in run.record.read()), default=0)
        for entry in saved.facts.get("record", []):
            if entry["round"] > recorded:  # a crash came between the checkpoint and these lines
                run.record.append(entry)
        run.record.sync()
        run.diagnostics.keep_up_to(saved.round)
        return Payments(run, ledger, people, secrets, budget, planned, commits[-1])

    def _load_frozen(self) -> None:
        """The frozen part is the one that the run began with, also where a caller gives the model again."""
        if self.assembly.algorithm.frozen is None:
            return
        arrays, file = self.run_folder.load_frozen(), self.run_folder.frozen_file
        if checkpoints.digest(arrays) != self.ledger.header.get("frozen"):
            raise DamagedRun(f"{file} is not the frozen part that the run began with; put it back, or start anew")
        self.assembly = self.assembly.with_frozen(arrays)

    @property
    def _model(self) -> LanguageModel:
        return self.assembly.algorithm.model(self.state.params)

    def run(self, observers: Observers, stop: Stop) -> RunResult:
        last, asked = self._rounds_planned, self.recipe.run.rounds
        evaluation = None
        clock = Clock(self.recipe.run, self.state.round, self._pace_so_far(), last)
        if self.state.round and not self._is_written():
            self._finish()  # so that another run can start from a model whose next rounds crash
        if self.state.round < last:
            checkpoints.check_room(self.run_folder)
            self.ledger.start(self.state.round)
            observers(replace(self._progress(clock), resumed=self._resumed))
            evaluation = self._play(last, clock, observers, stop)
        elif last == asked:
            self.notes.append(f"{self.run_folder.path} is complete: round {last} of {last} was done before")
        ended = "stopped" if self.state.round < last else "finished" if last == asked else "budget"
        if ended == "budget":
            limit = f"the budget ε = {self.payments.budget.limit:g} allows {count_of(last, 'round')} of {asked}"
            self.notes.append(f"{limit}; training ends here with a usable model")
        statement = self._finish()
        if evaluation is None:  # a run that had nothing left to do: as its record has it
            _, evaluation = last_evaluation(self.run_folder.record.read())
        return RunResult(
            path=self.run_folder.path,
            round=self.state.round,
            ended=ended,
            statement=statement,
            evaluation=evaluation,
            notes=tuple(self.notes),
            traffic=self._traffic(),
            baselines=self.baselines,
            epsilon_realised=self._realised(statement),
            rounds_asked=asked,
        )

    def _is_written(self) -> bool:
        """Do model and statement stand where the checkpoint does? A crash leaves them at an earlier round."""
        try:
            return read_statement(self.run_folder).rounds_done == self.state.round
        except DamagedRun:  # or they are not there
            return False

    def _play(self, last: int, clock: Clock, observers: Observers, stop: Stop) -> Evaluation | None:
        """Play rounds until the last one, or until the owner stops; the last evaluation."""
        evaluation, before = None, time.perf_counter()
        every = 1 if self.context.across_devices else self.recipe.run.checkpoint_every
        observers.playing(self.state.round + 1)
        for after, played in self._rounds():
            clip_norms = self.assembly.algorithm.mechanism.clip_norms(after.round, self.state.clip_norms)
            self.state = after
            diagnostics = played.diagnostics()  # waits for the sum; a device may still add the noise
            seconds = time.perf_counter() - before
            clock.round_done()
            due = self._evaluate_if_due()
            if due:
                clock.evaluation_done()
            evaluation = due or evaluation
            loss = diagnostics.get("loss")
            progress = self._progress(clock, users=played.users, seconds=seconds, evaluation=due, loss=loss)
            figures = {"round": after.round, **diagnostics, "seconds": seconds}
            self._played.append(Played(self._describe_round(clip_norms, due), figures, progress))
            declared = bool(due) or after.round % every == 0 or after.round == last
            stopping = stop() or after.round == last
            if stopping or declared:
                self._checkpoint(last, declared=declared)
                self._show(observers)
            if stopping:
                break
            observers.playing(after.round + 1)
            before = time.perf_counter()
        return evaluation

    @property
    def _rounds_planned(self) -> int:
        return min(self.recipe.run.rounds, self.payments.planned)

    def _pace_so_far(self) -> Pace:
        """As it was measured for a new run; of a run that goes on, by the rounds that it has done."""
        seconds = [line["seconds"] for line in self.run_folder.diagnostics.read() if "seconds" in line]
        return replace(self.pace, round=median_low(seconds)) if seconds and self.pace.round is None else self.pace

    def _rounds(self) -> Iterator[tuple[ServerState, RoundResult]]:
        if self.context.coordinator is not None:
            return self.context.coordinator.rounds(self.assembly, self.ledger.run, self.state, self.payments)
        return self.assembly.rounds(self.state, self.payments, Work(self.store, self.sum_updates, self.watch))

    def _evaluate_if_due(self) -> Evaluation | None:
        done, settings = self.state.round, self.recipe.run
        if not evaluated_users(self.recipe, self.test):
            return None
        if done % settings.evaluate_every and done != self._rounds_planned:
            return None
        return self._evaluate()

    def _evaluate(self) -> Evaluation:
        assert self.test is not None
        return evaluate(self._model, self.test, evaluated_users(self.recipe, self.test))

    def _measured(self, evaluation: Evaluation) -> Json:
        """What the record says of an evaluation."""
        measured: Json = {"evaluation": evaluation.public.to_json()}
        if self.context.also_evaluate_on is not None:
            measured["beside"] = evaluate(self._model, self.context.also_evaluate_on).to_json()
        return measured

    def _show(self, observers: Observers) -> None:
        """Show the rounds that the last checkpoint holds."""
        record, diagnostics = self.run_folder.record, self.run_folder.diagnostics
        for one in self._played:
            record.append(one.entry)
            diagnostics.append(one.figures)
        record.sync()
        diagnostics.sync()
        for one in self._played:
            observers(one.progress)
        self._played.clear()

    def _describe_round(self, clip_norms: np.ndarray, evaluation: Evaluation | None) -> Json:
        """What the record says of a round."""
        entry: Json = {
            "round": self.state.round,
            "epsilon": to_json_number(self.payments.epsilon(self.state.round)),
            "delta": self.recipe.privacy.delta,
            "clip_norm": to_json_number(joint_norm(clip_norms)),
            "noise_std": self.assembly.algorithm.mechanism.noise_std(self.state.round, clip_norms)[0],
        }
        if evaluation:
            entry |= self._measured(evaluation)
        return entry

    def _progress(
        self,
        clock: Clock,
        users: int = 0,
        seconds: float = 0.0,
        evaluation: Evaluation | None = None,
        loss: float | None = None,
    ) -> Progress:
        return Progress(
            round=self.state.round,
            rounds=self._rounds_planned,
            epsilon=self.payments.epsilon(self.state.round),
            budget=self.recipe.privacy.epsilon if self.recipe.privacy.mode == "private" else None,
            users=users,
            seconds=seconds,
            evaluation=evaluation,
            loss=loss,
            seconds_left=clock.seconds_left,
            baselines=self.baselines,
            sampled=sampled(self.assembly),
        )

    def _checkpoint(self, last: int, *, declared: bool) -> None:
        """Commit the rounds that were played: see `runs/checkpoint.py`. At the end the state of the noise is erased."""
        scores = None if self.watch is None else self.watch.scores
        facts: Json = {"record": [as_json(one.entry) for one in self._played]}
        noise = {} if self.state.round == last else self.state.noise_arrays()
        self.payments.commit(checkpoint_of(self.state, scores, facts), noise, declared=declared)

    def _finish(self) -> Statement:
        """Write the model, its card and the statement."""
        payments, assembly, vocabulary = self.payments, self.assembly, self.store.vocabulary
        header, mechanism = self.ledger.header, assembly.algorithm.mechanism
        start = start_in(header)
        private = is_for_owner_alone(assembly, self.store, start)
        files = self.run_folder.save_model(weights_of(self._model), vocabulary, private=private)
        charged = [*assembly.before, *mechanism.events(payments.planned)]
        evidence = Evidence(self.recipe, charged, self._facts(files), KINDS)
        statement = state(evidence)
        if assembly.budget.private:
            statement = with_store_total(statement, payments.store_ledger.spent())
        card = Card(
            code=assembly.code,
            own_model=assembly.own_model,
            kind=None if self.context.model is not None else self.recipe.model.kind,
            trained_on=PUBLIC if is_of_public_text(self.store, start) else "people",
            parameters=parameter_count(self._model),
            trained_parameters=parameter_count(self.state.params),
            adapter=assembly.adapter,
            frozen=header.get("frozen"),
            vocabulary=vocabulary.size,
            rounds=self.state.round,
            bytes=self._traffic(),
        )
        self.run_folder.save_statement(statement.to_json(), card.to_json())
        return statement

    def _facts(self, files: dict[str, str]) -> RunFacts:
        """What the statement says of the run apart from its recipe and its charges."""
        store, header, mechanism = self.store, self.ledger.header, self.assembly.algorithm.mechanism
        vocabulary, canaries = store.vocabulary, header.get("canaries")
        own, norms = self.recipe.privacy.estimator not in NUMBERS.estimators, mechanism.clip_norms(1, mechanism.start())
        return RunFacts(
            run=self.ledger.run,
            rounds_planned=self.payments.planned,
            rounds_done=self.state.round,
            starts=self.ledger.starts,
            clipped_parts=len(mechanism.clipping.clip_norms),
            own_sensitivity=mechanism.estimator.sensitivity(joint_norm(norms)) if own else None,
            vocabulary=VocabularyFacts.of(
                vocabulary.fingerprint, store.vocabulary_source, vocabulary.kind, vocabulary.contexts
            ),
            start=start_in(header),
            canaries=None if canaries is None else CanarySummary(**canaries),
            registered=self._registered(),
            practice=store.practice,
            owners_per_record=store.owners_per_record,
            every_record_is_a_user=store.every_record_is_a_user,
            held_out=store.held_out,
            files=files,
            software={name: version(name) for name in SOFTWARE},
        )

    def _registered(self) -> Registered | None:
        """The devices that are registered, and who made their keys; None in a simulation."""
        if self.context.coordinator is None:
            return None
        listed = self.context.coordinator.roster.listed
        return Registered(len(listed.devices), len(listed.made_by_server))

    def _realised(self, statement: Statement) -> float | None:
        """ε of the rounds that users joined, where it is known which: written for the owner alone."""
        found = realised_epsilon(statement, self._realised_sensitivity())
        if found is not None:
            self.run_folder.save_participation(
                {
                    "epsilon_realised": to_json_number(found),
                    "delta": statement.delta,
                    "note": "for the owner only: it follows exactly from who takes part, and no noise covers it",
                }
            )
        return found

    def _realised_sensitivity(self) -> float | None:
        """The largest of any user for the rounds that they joined, where noise is correlated and the rounds are known.

        Rounds that were charged count, whether or not they are in the model.
        """
        mechanism, rounds = self.assembly.algorithm.mechanism, max(self.state.round, self.ledger.rounds)
        if mechanism.participation is None or not 0 < rounds <= _MOST_REALISED:
            return None
        coordinator, sampler = self.context.coordinator, mechanism.sampler
        if coordinator is not None:
            patterns = coordinator.patterns(self.assembly, self.ledger.run)
        else:
            assert isinstance(sampler, BoundedParticipation)
            chunks = sampler.in_chunks(self.store.names, rounds)
            patterns = [worst_rounds(mechanism.matrix, joined, rounds) for _, joined in chunks]
        return None if patterns is None else realised_sensitivity(mechanism.matrix, patterns, rounds)

    def _traffic(self) -> dict[str, float] | None:
        """None for real devices: the model goes to all that are connected, drawn or not."""
        return None if self.context.across_devices else self.assembly.traffic(self.store, self.state.round)
