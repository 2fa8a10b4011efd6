"""A privacy statement in sentences, and how its figures are written wherever they are shown."""

from __future__ import annotations

import math
from typing import Any

from sottovoce.evaluation.private_accuracy import PrivateAccuracy
from sottovoce.privacy.sampling import SAMPLERS
from sottovoce.reporting.adversaries import Adversary
from sottovoce.reporting.statement import MechanismFacts, Schedule, Statement
from sottovoce_evidence.accounting import rounded_down, rounded_up
from sottovoce_evidence.accounting.events import ADDED, REPLACED
from sottovoce_evidence.errors import count_of, plural, short_exponent
from sottovoce_evidence.files import Json

_WORDS = {
    ADDED: "one user is added or removed",
    REPLACED: "one user is replaced by another",
    "entropy": "operating-system entropy, kept apart from the seed",
    "seeded": "derived from the seed: anyone who knows it can undo the noise",
    "user": "user: all the text of one person",
}

PRACTICE = "This run is a practice: it was trained on synthetic people. Its accuracy says nothing about real text."


def with_prose(statement: Statement) -> Json:
    """A statement as privacy.json holds it: its facts, and the same in sentences."""
    return {**statement.to_json(), "prose": prose(statement)}


def prose(statement: Statement) -> str:
    """All paragraphs, and what is not covered."""
    uncovered = [f"Not covered: {'; '.join(statement.not_covered)}."] if statement.private else []
    return "\n\n".join([*paragraphs(statement), *uncovered])


def paragraphs(statement: Statement) -> list[str]:
    """What is proved and how, without the list of what is not covered."""
    practice = [PRACTICE] if statement.practice else []
    if not statement.private:
        text = (
            "This run gives no privacy guarantee: ε is infinite. Its model may depend on any one person's text in any "
            "way. Do not release it to people who may not read the text itself."
        )
        return [*practice, text, *_start(statement), *_canaries(statement)]
    texts = [*practice, _guarantee(statement), _method(statement), _store_total(statement)]
    texts += _against_server(statement) + _chosen(statement)
    if statement.vocabulary.private:
        alone = f"Training alone has ε = {epsilon_text(statement.epsilon_training)} at the same δ."
        texts.append(f"The vocabulary was {statement.vocabulary.source}. {alone}")
    if statement.across_devices:
        joins = "draw who joins" if statement.min_separation is None else "keep count of the rounds that they join"
        texts.append(
            f"Users were trained on their own devices, which {joins} and clip the updates. {_added_up(statement)} "
            "Every registered user counts, connected or not: one who is away contributes nothing, and denominator and "
            f"noise stay."
        )
        texts += _adversaries(statement)
    texts += _start(statement) + _canaries(statement)
    if again := statement.charged_again:
        were, them = count_of(again, "round was", "rounds were"), plural(again, "it", "them")
        texts.append(f"{were} begun, broken off and done again with fresh noise. ε counts {them} twice.")
    if statement.out_of_date:
        texts.append(
            "A copy of this run went on, and more was charged for it: its ε is out of date until `sotto resume` writes "
            "the statement again."
        )
    if elsewhere := statement.charged_elsewhere:
        lost = "or for rounds that a crash kept from being done"
        were, them = count_of(elsewhere, "more round was", "more rounds were"), plural(elsewhere, "it", "them")
        texts.append(f"{were} charged for other copies of the run, {lost}. ε counts {them}.")
    if statement.secrets == "seeded":
        texts.append(
            "The secrets of this run come from its seed: anyone who knows the seed can undo the noise, and the "
            "guarantee does not hold against them. Take privacy.secrets = 'entropy' for a model to release."
        )
    return texts + _held_out(statement) + _audits(statement)


def _added_up(statement: Statement) -> str:
    """Who adds up what devices send, and what that shows."""
    found = statement.federation
    if found is None or not found.is_masked:
        return "The server adds up and adds the noise, and is trusted."
    noise = "The server adds the noise, and is trusted for that."
    if found.noise == "devices":
        noise = "Devices add noise before they send; the server adds what the released model needs beyond it."
    return (
        f"What they send is masked: the server opens one sum over {found.survivors} devices or more, or nothing. Up to "
        f"{count_of(found.colluding, 'device')} may collude with it. {noise}"
    )


def _adversaries(statement: Statement) -> list[str]:
    """Who sees what, and which ε holds against them."""
    if not statement.adversaries:
        return []
    rows = [f"{one.who}: {one.sees} ({epsilon_against(one)})" for one in statement.adversaries]
    return [f"Who sees what: {'; '.join(rows)}."]


def epsilon_against(adversary: Adversary) -> str:
    if adversary.epsilon is None:
        return "ε without sampling, not stated here"
    return "no ε" if math.isinf(adversary.epsilon) else f"ε = {epsilon_text(adversary.epsilon)}"


def _guarantee(statement: Statement) -> str:
    factor, delta = rounded_up(statement.epsilon), rounded_up(statement.delta, 2).replace("e-0", "e-")
    change = "is added or removed" if statement.relation == ADDED else "is replaced by any other, added or removed"
    planned, projected, replaced = statement.rounds_planned, "", ""
    if statement.is_unfinished:
        done = f"{statement.rounds_done} of them {plural(statement.rounds_done, 'is', 'are')} done"
        planned_ones = plural(planned, "the planned round, which is not done", f"all {planned} planned rounds; {done}")
        projected = f" (projected: ε is that of {planned_ones})"
    if statement.epsilon_replaced is not None:
        shown = epsilon_text(statement.epsilon_replaced)
        replaced = f" When it is replaced by any other, the factor is at most e^{shown} (plus {delta})."
    return (
        f"This run satisfies ({factor}, {delta})-differential privacy for users whose text it was trained on, not "
        f"for those held out{projected}: whatever is computed from the released model changes in probability by a "
        f"factor of at most e^{factor} (plus {delta}) when the whole text of any one person it was trained on "
        f"{change}.{replaced}"
    )


def _method(statement: Statement) -> str:
    mechanism, most = statement.mechanism, statement.declared.examples_per_user
    whose, moves = ("A user's", "sensitivity") if most is None else ("An example's", "sensitivity to one example")
    weighted = ", times its weight," if mechanism.clip_weighted else ""
    how = f"{mechanism.clipping}, {mechanism.clip_when}".replace("_", " ")
    planned = f"{plural(statement.rounds_planned, 'planned round')} {plural(statement.rounds_done, 'was', 'were')}"
    return (
        f"{_joins(statement)}. {whose} update{weighted} is clipped to L2 norm {mechanism.clip_norm:g} ({how}) and "
        f"averaged by the {mechanism.estimator.replace('_', ' ')} estimator, whose {moves} is "
        f"{mechanism.sensitivity:.4g}. {_noise(mechanism)}{_changes(mechanism)} "
        f"{statement.rounds_done} of {statement.rounds_planned} {planned} done; ε is for all that are planned, "
        f"by {statement.accountant}."
    )


def _noise(mechanism: MechanismFacts) -> str:
    z, std = mechanism.noise_multiplier, mechanism.noise_std
    if mechanism.devices is not None:
        return (
            f"Skellam noise of standard deviation {std:.4g} or more (noise multiplier {z:.4g}) is added to every "
            f"coordinate, in whole steps of a public grid."
        )
    if (correlation := mechanism.correlation) is None:
        scale = f"of standard deviation {std:.4g} (noise multiplier {z:.4g})"
        return f"Gaussian noise {scale} is added to every coordinate."
    return (
        f"Gaussian noise, {noise_text(mechanism)}, is added to every coordinate. Over all rounds that one user may "
        f"join the sensitivity is {correlation.sensitivity:.4g} times that of one round. The noise that is correlated "
        f"has standard deviation {std:.4g}: {z:.4g} (the noise multiplier) times the sensitivity of the run, "
        f"{correlation.noise_over_clip:.4g} times that of one round."
    )


def noise_text(mechanism: MechanismFacts) -> str:
    """How the noise of rounds depends on that of others: "correlated over rounds by blt, 4 buffers"."""
    found = mechanism.correlation
    if found is None:
        return "independent"
    return f"correlated over rounds by {found.noise}, {count_of(found.buffers, 'buffer')}"


def _against_server(statement: Statement) -> list[str]:
    """The guarantee that holds against the server, where devices add noise."""
    found = statement.mechanism.devices
    if found is None:
        return []
    honest = found.survivors - found.colluding
    server = "the server"
    if found.colluding:
        server += f" with up to {count_of(found.colluding, 'device')}"
    simulated = "" if statement.across_devices else " This run was a simulation, which has no server to hide from."
    return [
        f"Devices add noise before their sums are masked: any {count_of(honest, 'honest one', 'honest ones together')} "
        f"{found.noise_multiplier:.4g} times the clip norm. A sum is opened over {found.survivors} devices or more. "
        f"Against {server}, ε is {epsilon_text(statement.epsilon_server)} at the same δ, when the updates of one user "
        f"are replaced by zeros in all rounds that they join, at most {found.participations}. It sees who takes part, "
        f"so sampling hides nothing from it.{simulated}"
    ]


def _store_total(statement: Statement) -> str:
    """As of today; where the store is gone, as of the day the run ended."""
    was, when = ("was", ", when this run ended") if statement.store_gone else ("is", "")
    total = f"{epsilon_text(statement.epsilon_store)} at the same δ{other_relation(statement)}"
    return f"Over every private run on the same store (the owner's people and their text), ε {was} {total}{when}."


def other_relation(statement: Statement) -> str:
    """What the total of a store is for, where that is not what the run's own ε is for."""
    relation = statement.relation_store or statement.relation
    return "" if relation in ("none", statement.relation) else f", when {format_value(relation)}"


def _joins(statement: Statement) -> str:
    """How users come to a round."""
    declared, name = statement.declared, statement.sampling
    if name not in SAMPLERS:  # a sampler that is not installed here
        how = name.replace("_", " ")
        return f"Users join a round by {how} sampling ({declared.cohort:g} of {declared.users:,} declared)"
    rounds = statement.rounds_planned if statement.turns is None else statement.turns
    apart = statement.min_separation
    more = "" if apart is None else f". Two rounds of one user are at least {apart} apart"
    if declared.examples_per_user is not None:
        more = (
            f". A user has at most {count_of(declared.examples_per_user, 'example')} of {declared.example_tokens} "
            "tokens, and the guarantee is for all of them together: a binomial number of them joins a round, each with "
            f"chance {declared.example_rate:.4g}"
        )
    if declared.silos is not None:
        more += (
            f". One person may be a user of up to {declared.silos} silos, which draw apart: each clips to "
            f"1/{declared.silos} of the clip norm of a person, and the guarantee is for all of them together"
        )
    return SAMPLERS[name].describe(declared.cohort, declared.users, rounds) + more


def _start(statement: Statement) -> list[str]:
    """Where the model came from, if not from the seed."""
    start = statement.start
    if start is None:
        return []
    if start.run is None:
        return [f"The model began with {start.described}."]
    return [f"The model did not begin untrained: {start.described} (run {start.run})."]


def _canaries(statement: Statement) -> list[str]:
    """Who else the model was trained on."""
    inserted = statement.canaries
    if inserted is None:
        return []
    kinds = []
    if inserted.users:
        kinds.append(f"{count_of(inserted.users, 'canary user')}, each in or out by a secret coin")
    if inserted.secrets:
        holders = count_of(inserted.holders, "who holds", "who hold")
        kinds.append(f"{holders} {count_of(inserted.secrets, 'secret')}")
    return [
        f"Made-up users were added to the declared population: {' and '.join(kinds)} (registry {inserted.registry}). "
        f"They change neither a user's chance to join, nor q and W. An audit by canaries is of this model itself."
    ]


def _chosen(statement: Statement) -> list[str]:
    """Of the best of several runs: how it was chosen, which ε counts."""
    found = statement.chosen
    if found is None:
        return []
    tried = (
        "with the same settings" if found.settings == 1 else f"each with one of {found.settings} settings, at random"
    )
    return [
        f"The model is the best of several such runs, {tried}. Their number was drawn from a {found.distribution} "
        f"distribution of mean {found.expected_runs:g} and is a secret. The score was {found.score}. The others were "
        "erased unseen. ε is that of the choice (Papernot and Steinke 2022)."
    ]


def _held_out(statement: Statement) -> list[str]:
    """Of a released model: the accuracy that held-out users paid for."""
    found = statement.private_accuracy
    if found is None:
        return []
    terms = found.terms
    cost = f"ε = {epsilon_text(terms.epsilon)} at δ = {plain(terms.delta)}"
    return [
        f"Held-out users, who are others than those trained on, were measured privately, with {cost} for each of them "
        f"when one is added or removed: {accuracy_text(found)}. The first {terms.tokens_per_user:,} tokens of each "
        f"count, and their number has noise too. Over all private evaluations on them, ε is "
        f"{epsilon_text(statement.epsilon_held_out)} at the same δ. This release has no exact figure of them."
    ]


def accuracy_text(found: PrivateAccuracy) -> str:
    """The top-1 of a private evaluation with half of its 95 % interval."""
    if found.top1 is None or found.top1_within is None:
        return "the noise hides how well the model predicts them"
    return f"top-1 {percent(found.top1, 2)} ± {100 * found.top1_within:.2f} points (95%, of people like them)"


def _audits(statement: Statement) -> list[str]:
    """Of a released model: the audits that it passed, and those that were not run."""
    passed = [audit for audit in statement.audits if audit.result == "passed"]
    names = " and ".join(f"by {audit.audit}" for audit in passed)
    missing = " or ".join(f"by {audit.audit}" for audit in statement.audits if audit.result == "not run")
    shown = [(audit.audit, audit.would_notice) for audit in passed if audit.would_notice is not None]
    audited = f"The model was audited {names} before its release. The claim was not contradicted, which proves no more."
    texts = [
        *([audited] if passed else []),
        *(f"The audit by {name} {would_have_seen(share)}." for name, share in shown),
        *([f"It was not audited {missing}."] if missing else []),
    ]
    return [" ".join(texts)] if texts else []


def _changes(mechanism: MechanismFacts) -> str:
    """What does not stay as it is in round 1."""
    texts = []
    if _varies(mechanism.clip_schedule) and mechanism.nominal_clip_norm is not None:
        values = _values(mechanism.clip_schedule, mechanism.nominal_clip_norm, mechanism.clip_path or "steps")
        texts.append(f"The clip norm, and the noise with it, follow a schedule: {values}.")
    if adaptive := mechanism.adaptive:
        texts.append(
            f"The clip norm, and the noise with it, follow the {adaptive.quantile:g} quantile of the norms of users' "
            f"updates, by {adaptive.bits} noised count(s) of clipped users (noise {adaptive.bit_noise:g}). Update and "
            f"counts together are charged the noise multiplier of their round."
        )
    if _varies(mechanism.noise_schedule) and mechanism.nominal_noise_multiplier is not None:
        values = _values(mechanism.noise_schedule, mechanism.nominal_noise_multiplier, "steps")
        texts.append(f"The noise multiplier follows a schedule: {values}; every round is charged its own.")
    return "".join(f" {text}" for text in ["These are figures of round 1.", *texts]) if texts else ""


def _varies(schedule: Schedule) -> bool:
    return len({factor for _, factor in schedule}) > 1


def _values(schedule: Schedule, nominal: float, path: str) -> str:
    """The values that a schedule of factors stands for, and how it gets from one to the next."""
    values = [(f"{nominal * factor:.4g}", f"round {number:g}") for number, factor in schedule]
    if path == "steps":
        return ", ".join(f"{value} from {when} on" for value, when in values)
    points = ", ".join(f"{value} in {when}" for value, when in values)
    return f"{points}, on a {path} path between them, and constant after that"


def finite(value: Any) -> float | None:
    """The number, or None for what cannot be drawn: missing, NaN or infinite, as a float or as JSON writes it."""
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else None


def percent(value: float, digits: int = 1) -> str:
    return f"{100 * value:.{digits}f}%"


def epsilon_text(value: float | None, digits: int = 3) -> str:
    number = finite(value)
    return "not known to be finite" if number is None else rounded_up(number, digits)


def would_have_seen(share: float) -> str:
    """Of an audit by rounds: the largest noise below what is claimed that it would have noticed.

    >>> would_have_seen(0.9078)
    'would have seen noise at 0.9 of its scale'
    """
    return f"would have seen noise at {rounded_down(share, 2)} of its scale"


def bytes_text(count: float) -> str:
    """As networks are measured: 1 kB is 1,000 bytes."""
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= size:
            return f"{count / size:.3g} {unit}" if count < 999.5 * size else f"{count / size:,.0f} {unit}"
    return f"{count:.0f} B"


def plain(value: Any) -> str:
    """A number as a person writes it: 1e-6, not 1e-06."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value)
    if isinstance(value, int) or (abs(value) >= 1000 and value == round(value)):
        return f"{value:,.0f}"
    return short_exponent(f"{value:.4g}")


def pairs(values: Json) -> list[str]:
    """Names and values, a line each."""
    return [f"{key.replace('_', ' ')}: {format_value(value)}" for key, value in values.items()]


def format_value(value: Any) -> str:
    """A fact of a statement as a person reads it."""
    if value is None:
        return "none"
    if isinstance(value, dict):
        return ", ".join(f"{key.replace('_', ' ')} {format_value(item)}" for key, item in value.items())
    if isinstance(value, list):
        return ", ".join(f"[{format_value(item)}]" if isinstance(item, list) else format_value(item) for item in value)
    if isinstance(value, str) and value in SAMPLERS:
        return SAMPLERS[value].summary
    return _WORDS.get(value, value.replace("_", " ")) if isinstance(value, str) else plain(value)
