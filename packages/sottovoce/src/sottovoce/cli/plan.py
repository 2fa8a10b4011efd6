"""`sotto plan`."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

from sottovoce.cli.display import duration, print_json, print_rows, print_table, shown_epsilon
from sottovoce.cli.options import Flag, Json, Paths, Settings, log, option, set_options, setting_called
from sottovoce.cli.train import say_timing, shorter
from sottovoce_evidence.accounting.events import REPLACED
from sottovoce_evidence.errors import SottoError, count_of, plain_number, plural
from sottovoce_evidence.files import Json as JsonObject

if TYPE_CHECKING:
    from sottovoce.planning.grid import Choice, Grid
    from sottovoce.planning.plan import Plan
    from sottovoce.planning.selection import Selection
    from sottovoce.planning.trained import TrainedPart


Accountant = Literal["pld", "rdp", "moments"]
Sampling = Literal["poisson", "fixed", "in_turn", "min_separation"]
Noise = Literal["independent", "banded", "blt"]


@Parameter(name="*")
@dataclass(frozen=True)
class Training:
    """A training that is planned."""

    users: Annotated[float | None, option("K: the population.")] = None
    cohort: Annotated[float | None, option("Expected users (els: examples) in a round; q = cohort / users.")] = None
    rounds: Annotated[float | None, option("T: rounds of training.")] = None
    noise_multiplier: Annotated[float | None, option("z: noise over sensitivity (of a run, if correlated).")] = None
    noise_std: Annotated[float | None, option("σ: finds the cohort, from z (default: 1) and the clip norm.")] = None
    epsilon: Annotated[float | None, option("ε to solve the noise for.")] = None
    sampling: Annotated[Sampling | None, option("How cohorts are drawn; poisson by default.")] = None
    examples_per_user: Annotated[int | None, option("G: sample examples (els), so many of a user at most.")] = None
    min_separation: Annotated[int | None, option("b: rounds from one that a user joins to the next, at least.")] = None
    participations: Annotated[int | None, option("k: rounds that a user joins, at most; or as many as fit.")] = None
    noise: Annotated[Noise | None, option("How noise is correlated over rounds; independent by default.")] = None
    bands: Annotated[int | None, option("Of --noise banded; by default b, 64 at most.")] = None
    buffers: Annotated[int | None, option("Of --noise blt; 4 by default.")] = None
    clip_norm: Annotated[float | None, option("S: then also the noise on every coordinate.")] = None
    total_weight: Annotated[float | None, option("W: the declared sum of the users' weights.")] = None
    parameters: Annotated[int | None, option("Size of the model: then also signal-to-noise and bytes sent.")] = None
    trained_parameters: Annotated[int | None, option("Of an adapter, if the model is frozen: compares both.")] = None
    users_per_second: Annotated[float | None, option("A measured rate: then also hours.")] = None
    select: Annotated[float | None, option("Also ε of the best of N runs on average.")] = None

    def with_cohort(self) -> Training:
        """The cohort that --noise-std asks for, filled in."""
        if self.noise_std is None:
            return self
        from sottovoce.planning.plan import cohort_for

        clip_norm = self.clip_norm
        if self.noise not in (None, "independent"):
            raise SottoError(f"--noise-std finds the cohort for independent noise, not for --noise {self.noise}")
        if clip_norm is None or not (self.cohort is self.epsilon is self.total_weight is None):
            others = "--cohort, --epsilon and --total-weight"
            raise SottoError(f"--noise-std finds the cohort: it goes with --clip-norm, and without {others}")
        z = 1.0 if self.noise_multiplier is None else self.noise_multiplier
        return replace(self, noise_multiplier=z, cohort=cohort_for(self.noise_std, clip_norm, z), noise_std=None)


NOTHING = Training()
# What others state (docs/how-to/choose-epsilon.md has the sources).
OTHERS = (
    "Google's Gboard: ε from 0.994 to 13.69 at δ = 1e-10, for each user, of 30 language models",
    "Apple: ε from 2 to 16 for each user and day, by what is counted; noise is added on the phone",
)


@Parameter(name="*")
@dataclass(frozen=True)
class Timing:
    """How the hours of a recipe are found."""

    settings: Settings = None
    start: Annotated[str | None, option("What the run starts from, as for `sotto train`.", "--from")] = None
    no_bench: Annotated[Flag, option("Do not time this machine: hours are then not known.")] = False
    tokens_per_user: Annotated[
        int | None, option("Tokens of the made-up users that are timed: what the store keeps of a user, or else 480.")
    ] = None


TIMING = Timing()


def plan(
    recipe: Annotated[str | None, option("A TOML file, or the name of a shipped recipe.")] = None,
    *,
    delta: Annotated[
        list[float] | None, Parameter(consume_multiple=True, negative=()), option("δ: one or more, < 1/users.")
    ] = None,
    training: Training = NOTHING,
    timing: Timing = TIMING,
    accountant: Annotated[Accountant | None, option("pld (default) is tight, rdp fast, moments the papers'.")] = None,
    ledger: Annotated[Paths, option("Ledgers of runs, stores or releases, or their folders: ε of all of them.")] = None,
    json: Json = False,
) -> None:
    """Compute what a private training costs before paying for it, or what ledgers add up to.

    Give a recipe to compare it at ε from 1 to 8, at half and twice its cohort, and at a quarter and half of its
    rounds: noise, and hours on this machine. Or give numbers: the noise to learn ε, or ε to learn the
    noise. Or give ledgers to learn the ε of what was released already.

    Examples:
        sotto plan mine.toml
        sotto plan --users 20000 --cohort 400 --rounds 500 --delta 1e-6 --epsilon 4
        sotto plan --ledger store --delta 1e-6
    """
    given = [f"--{name.replace('_', '-')}" for name, value in asdict(training).items() if value is not None]
    if recipe is not None:
        named = {"--delta": delta, "--accountant": accountant, "--ledger": ledger}
        given += [name for name, value in named.items() if value is not None]
        if training.select is not None:
            raise SottoError("--select goes with numbers, such as --users and --epsilon, and not with a recipe")
        if others := [name for name in given if name != "--users-per-second"]:
            key = setting_called(others[0])
            cure = f"give --set {key}=VALUE in place of" if key else "leave out"
            raise SottoError(f"a recipe is planned with its own values; {cure} {others[0]}")
        _plan_recipe(recipe, timing, training.users_per_second, json)
        return
    if timing != TIMING:
        raise SottoError(
            "--set, --from, --no-bench and --tokens-per-user go with a recipe; name one, or leave them out"
        )
    if delta is None:
        raise SottoError("a plan needs --delta, well below 1/users; or name a recipe")
    if ledger is not None:
        if given:
            raise SottoError(f"--ledger is about what was released, {', '.join(given)} about a plan; leave one out")
        _print_totals(ledger, delta, accountant, json)
        return
    values: JsonObject = asdict(training.with_cohort())
    del values["noise_std"], values["select"]
    size = {name: values.pop(name) for name in ("users", "cohort", "rounds")}
    if missing := [f"--{name}" for name, value in size.items() if value is None]:
        raise SottoError(f"a plan needs {', '.join(missing)} too; or name a recipe, or give --ledger")

    from sottovoce.planning.plan import make_plan

    values |= {"sampling": training.sampling or "poisson", "noise": training.noise or "independent"}
    values |= {name: whole(name, value) for name, value in size.items()}
    made = make_plan(**values, delta=delta[0], more_deltas=delta[1:], accountant=accountant)
    chosen = None
    if training.select is not None:
        from sottovoce.planning.selection import plan_selection

        chosen = plan_selection(made.spent, training.select, made.delta, made.accountant)
    if json:
        more = {} if chosen is None else {"selection": chosen.to_json()}
        print_json({**made.to_json(), **_levels_json(made), **more})
    else:
        _print_plan(made)
        _print_selection(chosen)
        _print_trained(made.trained)
        if made.joining is not None and training.noise is not None and made.noise_multiplier:
            log("comparing kinds of noise; the first time, their matrices are searched for ...")
            _print_noise(made)
        if made.examples_per_user is not None and made.noise_multiplier:
            _print_levels(made)


def _plan_recipe(name: str, timing: Timing, rate: float | None, json: bool) -> None:
    from sottovoce.planning.grid import is_long, plan_recipe
    from sottovoce_evidence import recipe as recipes

    if rate is not None and not 0 < rate < math.inf:
        raise SottoError(f"--users-per-second {rate:g} must be a positive number")
    if timing.tokens_per_user is not None and timing.tokens_per_user < 1:
        raise SottoError(f"--tokens-per-user {timing.tokens_per_user} must be at least 1")
    recipe = recipes.Recipe.load(name).with_settings(timing.settings or ())
    if timing.start is not None:
        recipe = recipe.replace(model={"initial": timing.start})
    made, timed = plan_recipe(recipe), ""
    if recipe.model.adapter_rank is not None:
        from sottovoce.commands.parameters import count_parameters  # it loads jax

        made = made.training(count_parameters(recipe))
    if rate is None and not timing.no_bench:
        from sottovoce.commands.bench import users_per_second  # it loads jax
        from sottovoce.commands.stores import public_facts

        tokens = timing.tokens_per_user or public_facts(recipe)[1]
        if not json:
            say_timing()
        rate = users_per_second(recipe, tokens)
        timed = f", timed here with {tokens:,} tokens a user"
    made = made.at(rate)
    if json:
        print_json({**made.to_json(), "others": list(OTHERS)})
        return
    _print_grid(name, made)
    _print_trained(made.trained)
    unknown = "not known without a rate; leave --no-bench out to measure it, or give --users-per-second"
    print(f"Time: {unknown if rate is None else f'at {rate:.3g} users a second{timed}'}")
    own = next((choice for choice in made.choices if made.is_own(choice)), None)
    if recipe.privacy.noise_multiplier is None and own and own.hours and is_long(3600 * own.hours, own.rounds):
        print(shorter(next(each for each in made.choices if each.rounds < own.rounds and each.epsilon == own.epsilon)))
    start = "" if timing.start is None else f" --from {timing.start}"
    print(f"next: sotto train {name}{start} --out RUN{set_options(timing.settings)}")


def _print_grid(name: str, made: Grid) -> None:
    about = f"{count_of(made.users, 'user')}, {count_of(made.rounds, 'round')}, δ = {plain_number(made.delta)}"
    rows = [_choice_row(choice, made) for choice in made.choices]
    columns = [column for column in rows[0] if any(row[column] not in ("", "–") for row in rows)]
    print_rows(f"{name}: {about}", [{column: row[column] for column in columns} for row in rows])
    print("z: noise multiplier, the standard deviation of the noise over the sensitivity")
    if "σ" in columns:
        print("σ: standard deviation of the noise on each coordinate of the average update")
    own, mark = shown_epsilon(made.epsilon), " (*)" if any(made.is_own(choice) for choice in made.choices) else ""
    if made.epsilon_replaced is None or made.relation == REPLACED:
        print(f"The recipe{mark}: ε = {own} ({made.relation.replace('-', ' ')}). State the relation with it.")
    else:
        replaced = shown_epsilon(made.epsilon_replaced)
        print(f"The recipe{mark}: ε = {own} if a user is added or removed, {replaced} if one is replaced by another.")
        print(
            "Tell a reviewer the first, with δ and with its relation; the second to compare with an ε of that relation."
        )
    if made.epsilon_server is not None:
        server = f"ε = {shown_epsilon(made.epsilon_server)}, for all rounds that a user may join"
        print(f"Against the server, and devices that collude with it: {server}.")
    print("What others state:")
    for other in OTHERS:
        print(f"  {other}")
    for warning in made.warnings:
        print(f"warning: {warning}")


def _choice_row(choice: Choice, made: Grid) -> dict[str, str]:
    return {
        "ε": f"{'* ' if made.is_own(choice) else ''}{choice.epsilon:g}",
        "cohort": f"{choice.cohort:,}",
        "rounds": f"{choice.rounds:,}",
        "z": f"{choice.noise_multiplier:.3g}",
        "σ": "" if choice.noise_std is None else f"{choice.noise_std:.2g}",
        "h:mm:ss": "" if choice.hours is None else duration(3600 * choice.hours, hours_too=True),
    }


def _print_plan(made: Plan) -> None:
    from sottovoce_evidence.sampling import SAMPLERS

    expected = f"{made.device_rounds_expected:.3g}"
    takes_part = f"{expected} {plural(float(expected), 'round')} on average"
    if not SAMPLERS[made.sampling].amplifies:
        pays = "" if made.sensitivity is not None else ", and pays for as many"
        takes_part = f"at most {count_of(made.device_rounds_most, 'round')}{pays}"
    rows = {
        **_epsilon_rows(made.epsilons, made.relation, made.epsilon_replaced),
        "noise multiplier z": shown_epsilon(made.noise_multiplier, 6),
        **_drawn(made),
        "rounds": f"{made.rounds:,}",
        "one user takes part in": takes_part,
        "sampling, relation": f"{made.sampling.replace('_', ' ')}, {made.relation.replace('-', ' ')}",
        "accountant": made.accountant,
        **({} if made.examples_per_user else {"user updates in all": f"{made.user_updates:,.0f}"}),
    }
    if made.sensitivity is not None and made.epsilon_zcdp is not None:
        assert made.rho is not None
        rows |= {
            "noise": f"correlated ({made.noise})",
            "sensitivity of the run": f"{made.sensitivity:.4g} times that of a round",
            "noise over S": f"{made.noise_over_clip:.4g} (z times the sensitivity)",
            "ρ, ε by zCDP": f"{made.rho:.4g}, {shown_epsilon(made.epsilon_zcdp)}",
        }
    optional = {
        "separation of a user's rounds": (made.min_separation, "{:,} or more"),
        "error of prefix sums over S": (made.prefix_error, "{:.4g}"),
        "the noise keeps": (made.noise_bytes, "{:,} bytes"),
        "noise on a coordinate": (made.noise_std, "{:.4g}"),
        "signal to noise": (made.signal_to_noise, "{:.3g}"),
        "a device sends": (made.bytes_per_device, "{:,} bytes a round"),
        "time": (made.hours, "{:.3g} hours"),
    }
    rows |= {name: form.format(value) for name, (value, form) in optional.items() if value is not None}
    print_table("Plan", rows)
    if made.sensitivity is not None:
        print("The ε of the whole run is charged in its first round: to stop early does not lower it.")
    else:
        steps = [point for index, point in enumerate(made.curve) if index % 7 == 0 or index == len(made.curve) - 1]
        print_table("ε by round", {f"{point['round']:,}": shown_epsilon(point["epsilon"]) for point in steps})
    for warning in made.warnings:
        print(f"warning: {warning}")


def _print_selection(chosen: Selection | None) -> None:
    """The best of several runs, compared with one run and with all of them."""
    if chosen is None:
        return
    from sottovoce_evidence.accounting import accountant_name

    runs = f"{chosen.expected_runs:g}"
    rows = [
        {"model": "one run", "ε": shown_epsilon(chosen.epsilon_one), "runs (95%)": "1", "by": chosen.accountant},
        *(
            {
                "model": f"best of {runs} on average, {one.distribution}",
                "ε": shown_epsilon(one.epsilon),
                "runs (95%)": f"{one.most_runs:,} or fewer",
                "by": "rdp",
            }
            for one in chosen.choosing
        ),
        {"model": f"all {runs}", "ε": shown_epsilon(chosen.epsilon_all), "runs (95%)": runs, "by": chosen.accountant},
    ]
    print_rows(f"Choosing among runs, at δ = {plain_number(chosen.delta)}", rows)
    one = f"ε = {shown_epsilon(chosen.epsilon_one_rdp)} by {accountant_name('rdp')}"
    print(f"Choosing starts from one run, {one}. It costs so little only if:")
    for line in chosen.conditions:
        print(f"  {line}")
    print("`sotto select` does so. `sotto train` charges every run, and the total of the store covers any choice.")


def _print_trained(parts: list[TrainedPart] | None) -> None:
    """All of the model against the part that is trained."""
    if parts is None:
        return
    from sottovoce.reporting.words import bytes_text

    rows = [
        {
            "trained": each.part,
            "parameters": f"{each.parameters:,}",
            "σ": "–" if each.noise_std is None else f"{each.noise_std:.4g}",
            "noise norm/S": "–" if each.noise_norm_over_clip is None else f"{each.noise_norm_over_clip:.4g}",
            "a round": bytes_text(each.bytes_a_round),
            "once": bytes_text(each.bytes_once),
        }
        for each in parts
    ]
    print_rows("What is trained, at the same clip norm S", rows)
    print("Noise norm: σ √parameters; an average update is S long at most. Bytes: to and from a device in a round,")
    print("and once to it before its first, for what is not trained.")


def _drawn(made: Plan) -> dict[str, str]:
    if made.example_rate is None or made.examples is None:
        return {"users in a round": f"{made.cohort:,} of {made.users:,} (q = {made.user_rate:.3g})"}
    places, examples = made.users * (made.examples_per_user or 1), plural(made.examples_per_user or 1, "example")
    return {
        "examples in a round": f"{made.cohort:,} of {places:,} places (rate {made.example_rate:.3g})",
        "of one user, at most": f"{made.examples_per_user:,} {examples} of {made.users:,} users",
        "gradients in all": f"{made.rounds * made.examples:,.0f}",
    }


def _levels_json(made: Plan) -> JsonObject:
    from sottovoce.planning.levels import compare_levels

    if made.examples_per_user is None or not made.noise_multiplier:
        return {}
    return {"levels": [each.to_json() for each in compare_levels(made)]}


def _print_levels(made: Plan) -> None:
    from sottovoce.planning.levels import compare_levels, verdict

    levels = compare_levels(made)
    rows = [
        {
            "drawn": f"{each.cohort:,.0f} {each.sampled}",
            "of each": f"{each.examples:,}",
            "z": "–" if each.noise_multiplier is None else f"{each.noise_multiplier:.4g}",
            "alike": "–" if each.noise_alike is None else f"{each.noise_alike:.3g}",
            "unrelated": "–" if each.noise_unrelated is None else f"{each.noise_unrelated:.3g}",
            "break-even": "–" if each.break_even is None else f"{each.break_even:.2f}",
        }
        for each in levels
    ]
    print_rows(f"At the same ε for a user, and {made.examples:,.0f} gradients of examples a round", rows)
    print("Noise on a coordinate of the mean gradient, over the clip norm of one example: where the gradients of a")
    print("user's examples are all alike, and where they are unrelated. Users have less noise than examples where the")
    print("clip norm that their mean needs is below break-even times that of an example. Other errors, of sampling and")
    print("of clipping, are not compared.")
    print(verdict(levels))
    for each in levels:
        if each.missing:
            print(f"note: {each.missing}")


def _print_noise(made: Plan) -> None:
    from sottovoce.planning.compare_noise import compare_noise

    compared = compare_noise(made)
    rows = [
        {
            "noise": f"{'* ' if (each.noise, each.sampling) == (made.noise, made.sampling) else ''}{each.noise}",
            "sampling": each.sampling.replace("_", " "),
            "noise over S": "–" if each.noise_over_clip is None else f"{each.noise_over_clip:.4g}",
            "prefix error": "–" if each.prefix_error is None else f"{each.prefix_error:.4g}",
            "vectors": f"{each.buffers}" if each.noise_over_clip is not None else "–",
        }
        for each in compared
    ]
    updates = f"{made.user_updates:,.0f} user updates"
    print_rows(f"At the same ε for a user added or removed, and {updates}", rows)
    print("Prefix error: root mean square error of the sums over rounds 1 to t, over S. Vectors: what the noise keeps.")
    print(f"Independent noise has a sensitivity of √{made.participations} over the run: one user joins so many rounds.")
    for line in dict.fromkeys(each.missing for each in compared if each.missing):
        print(f"note: {line}")


def _print_totals(paths: list[Path], deltas: list[float], accountant: str | None, json: bool) -> None:
    from sottovoce.planning.ledger_totals import judge_ledgers

    judged = judge_ledgers(paths, deltas, accountant).to_json()
    if json:
        print_json(judged)
        return
    for figures in judged["ledgers"] if len(judged["ledgers"]) == 1 else [*judged["ledgers"], judged["total"]]:
        title = f"Ledger of a {figures['kind']}: {figures['path']}" if "path" in figures else "All together"
        rows = _epsilon_rows(figures["epsilons"], figures["relation"], figures["epsilon_replaced"])
        rows |= {
            "relation": (figures["relation"] or "none").replace("-", " "),
            "releases": f"{figures['releases']:,}",
            "accountant": judged["accountant_name"],
        }
        for number, entry in enumerate(figures["events"], 1):
            event = dict(entry["event"])
            kind = f"{entry['count']:,} × {event.pop('kind')}"
            facts = (f"{name} {_fact(fact)}" for name, fact in event.items())
            rows[f"event {number}"] = ", ".join([kind, *facts])
        if held_out := figures.get("held_out"):
            cost = _epsilon_rows(held_out["epsilons"], held_out["relation"], held_out["epsilon_replaced"])
            rows |= {f"held-out users, who are others: {name}": value for name, value in cost.items()}
            rows["held-out users: private evaluations"] = f"{held_out['releases']:,}"
        print_table(title, rows)
        for note in figures.get("notes", ()):
            print(f"note: {note}")


def _fact(value: object) -> str:
    """A value of an event: its first numbers where it has many."""
    if isinstance(value, list):
        return " ".join([*(_fact(each) for each in value[:3]), *(["..."] if len(value) > 3 else [])])
    if isinstance(value, dict):
        return ", ".join(f"{name} {_fact(each)}" for name, each in value.items())
    return f"{value:.4g}" if isinstance(value, float) else f"{value}"


def _epsilon_rows(points: list[JsonObject], relation: str | None, replaced: float | None) -> dict[str, str]:
    """A row for each δ, and one for replacing a user under an ε for adding or removing a user."""
    from sottovoce_evidence.accounting.events import ADDED

    shown = {f"δ = {plain_number(point['delta'])}": shown_epsilon(point["epsilon"]) for point in points}
    first, epsilon = next(iter(shown.items()))
    rows = {f"ε at {at}": text for at, text in shown.items()} if len(points) > 1 else {"ε": f"{epsilon} at {first}"}
    if relation == ADDED and replaced is not None:
        rows["ε when a user is replaced"] = f"{shown_epsilon(replaced)} at {first}"
    return rows


def whole(name: str, value: float) -> int:
    """1e6 is a whole number; 1.5 is none, and is not rounded in silence."""
    if not math.isfinite(value) or value != int(value):
        raise SottoError(f"--{name} {value:g} must be a whole number")
    return int(value)
