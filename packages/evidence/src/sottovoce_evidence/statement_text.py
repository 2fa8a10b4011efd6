"""A privacy statement as a person reads it: the guarantee in words, a table of facts, and what is not covered.

`sotto`, the report and the README of a release all show these. Figures are written the same way wherever they are.
"""

from __future__ import annotations

import math
from typing import Any

from sottovoce_evidence.accounting import BestOfRuns, accountant_name, rounded_down, rounded_up
from sottovoce_evidence.accounting.events import ADDED, REPLACED
from sottovoce_evidence.adversaries import Adversary, adversaries
from sottovoce_evidence.errors import count_of, plain_number, short_exponent
from sottovoce_evidence.files import Json
from sottovoce_evidence.private_accuracy import PrivateAccuracy
from sottovoce_evidence.recipe import Privacy
from sottovoce_evidence.statement import NOT_COVERED, StartFacts, Statement, VocabularyFacts

DECLARED = "declared public by the owner"
LOUD = "WARNING"  # how a note to a reviewer begins that is read first
PRACTICE = "This run is a practice: it was trained on synthetic people. Its accuracy says nothing about real text."
_WORDS = {
    ADDED: "one user is added or removed",
    REPLACED: "one user is replaced by another",
    "entropy": "operating-system entropy, kept apart from the seed",
    "seeded": "derived from the seed: anyone who knows it can undo the noise",
}
_SAMPLED = {
    "poisson": "Poisson: every user joins a round independently, with probability {rate:.4g}",
    "examples": "every example of a user joins a round independently, with probability {rate:.4g}",
    "fixed": "fixed size: every round draws the same number of declared places, and an empty place adds nothing",
    "in_turn": "in turn: a public hash of the id puts every user into a group, and each round asks one group",
    "min_separation": "least separation: it is public when a user joins, at irregular times",
}


def prose(statement: Statement) -> str:
    """All of it as plain text."""
    table = "\n".join(f"{name}: {'; '.join(lines)}" for name, lines in rows(statement).items())
    uncovered = [f"Not covered: {'; '.join(uncovered_texts(statement))}."] if statement.private else []
    return "\n\n".join([*paragraphs(statement), table, *uncovered])


def uncovered_texts(statement: Statement) -> list[str]:
    """What the guarantee does not cover, in words."""
    return [NOT_COVERED[code].format(statement) for code in statement.not_covered]


def paragraphs(statement: Statement) -> list[str]:
    """What is proved, in words."""
    practice = [PRACTICE] if statement.practice else []
    if not statement.private:
        text = (
            "This run gives no privacy guarantee: ε is infinite. Its model may depend on any one person's text in any "
            "way. Do not release it to people who may not read the text itself."
        )
        return [*practice, text]
    texts = [*practice, _guarantee(statement)]
    if statement.is_seeded:
        texts.append(
            "The secrets of this run come from its seed: anyone who knows the seed can undo the noise, and the "
            "guarantee does not hold against them. Take privacy.secrets = 'entropy' for a model to release."
        )
    return texts


def _guarantee(statement: Statement) -> str:
    factor, delta = rounded_up(statement.epsilon), rounded_up(statement.delta, 2).replace("e-0", "e-")
    change = "is added or removed" if statement.relation == ADDED else "is replaced by any other, added or removed"
    projected = ""
    if statement.is_unfinished:
        done, planned = statement.rounds_done, statement.rounds_planned
        projected = f" (projected: ε is that of all {planned} planned rounds; {done} of them are done)"
    return (
        f"This run satisfies ({factor}, {delta})-differential privacy for users whose text it was trained on, not "
        f"for those held out{projected}: whatever is computed from the released model changes in probability by a "
        f"factor of at most e^{factor} (plus {delta}) when the whole text of any one person it was trained on "
        f"{change}."
    )


def rows(statement: Statement) -> dict[str, list[str]]:
    """What a reviewer must know: lines by what they are about. What would only look like a guarantee is left out."""
    privacy, software, usual = statement.privacy, statement.software, Privacy().to_json()
    begun = f"training was begun or resumed {statement.starts} times; rounds that a crash took away were never shown"
    promised = {
        "unit": ["user: all the text of one person"],
        "protects": ["users whose text the model was trained on; not those held out, on whom it is measured"],
        "relation": [format_value(statement.relation)],
        "ε": _costs(statement),
        "δ": [plain(statement.delta)],
        "accountant": [accountant_name(statement.accountant, software)],
        "who sees what": [f"{one.who}: {one.sees} ({epsilon_against(one)})" for one in adversaries(statement)],
        "chosen": _chosen(statement),
        "held-out users": _held_out(statement),
        "audits": [f"by {one.audit}: {one.result}{_power(one.would_notice)}" for one in statement.audits],
    }
    described = {
        "rounds": [
            f"{statement.rounds_done:,} done of {statement.rounds_planned:,} planned",
            *([begun] if statement.starts > 1 else []),
        ],
        "sampling": _sampling(statement),
        "clip": _clip(statement),
        "estimator": [
            f"{privacy.estimator.replace('_', ' ')}, of sensitivity {statement.mechanism.sensitivity:.4g}",
            f"total weight W = {privacy.declared_weight:,g}",
        ],
        "noise": _noise(statement),
        "settings": pairs({name: value for name, value in privacy.to_json().items() if value != usual.get(name)}),
        "training": [statement.algorithm, *_on_devices(statement)],
        "vocabulary": [f"fingerprint: {statement.vocabulary.fingerprint}", vocabulary_text(statement.vocabulary)],
        "start": [start_text(statement.start)] if statement.start else ["fresh weights"],
        "canaries": _canaries(statement),
        "secrets": [format_value(privacy.secrets)],
        "software": [f"{name} {version}" for name, version in software.items()],
    }
    found = {**(promised if statement.has_guarantee else {"ε": ["infinite"]}), **described}
    return {name: lines for name, lines in found.items() if lines}


def _costs(statement: Statement) -> list[str]:
    planned = "all planned rounds" + (", projected" if statement.is_unfinished else "")
    when = ", when this run ended" if statement.store_gone else ""
    devices = statement.mechanism.devices
    most = 0 if devices is None else devices.participations
    zeros = f"one user's updates are replaced by zeros in all rounds that they join, {most} at most"
    costs = {
        planned: statement.epsilon,
        f"{planned}, when one user is replaced by another": statement.epsilon_replaced,
        **({} if devices is None else {f"against the server, when {zeros}": statement.epsilon_server}),
        "spent": statement.epsilon_spent,
        "training alone": statement.epsilon_training if statement.vocabulary.private else None,
        f"all private runs on the store{other_relation(statement)}{when}": statement.epsilon_store,
    }
    return [f"{what}: {epsilon_text(cost)}" for what, cost in costs.items() if cost is not None]


def other_relation(statement: Statement) -> str:
    """What the total of a store is for, where that is not what the run's own ε is for."""
    relation = statement.relation_store or statement.relation
    return "" if relation in ("none", statement.relation) else f", when {format_value(relation)}"


def _sampling(statement: Statement) -> list[str]:
    privacy, silos = statement.privacy, 1 if statement.federation is None else statement.federation.max_silos
    if statement.algorithm == "central":
        return ["none: all text is pooled"]
    known = _SAMPLED.get(privacy.sampling)
    lines = [f"{privacy.sampling}, of the owner's own code" if known is None else known.format(rate=privacy.rate)]
    if statement.turns is not None:
        apart = "" if statement.min_separation is None else f", two of them {statement.min_separation} rounds apart"
        most = count_of(statement.turns, "planned round")
        lines.append(f"one user joins {most} at most{apart}; it is no secret who joins, so nothing is amplified")
    if statement.example_tokens is not None:
        most = f"{count_of(privacy.examples_per_user, 'example')} of {statement.example_tokens} tokens"
        lines.append(f"a user has {most} at most, all protected together")
    if silos > 1:
        lines.append(f"one person may be a user of {silos} silos, which draw apart and clip to 1/{silos} of the norm")
    return lines


def _clip(statement: Statement) -> list[str]:
    if (norm := statement.mechanism.clip_norm) is None:
        return ["none"]
    of = "an example's" if statement.example_tokens else "a user's"
    how = f"{statement.privacy.clipping}, {statement.privacy.clip_when}".replace("_", " ")
    more = ["in round 1; it follows other settings"] if statement.clip_norm_changes else []
    return [f"{of} update, to L2 norm {norm:g} ({how})", *more]


def _noise(statement: Statement) -> list[str]:
    mechanism = statement.mechanism
    lines = [
        f"exactly rounded Gaussians, of standard deviation {mechanism.noise_std:.4g} on every coordinate",
        f"noise multiplier {mechanism.noise_multiplier:.4g}",
    ]
    if (over := mechanism.run_sensitivity) is not None and mechanism.buffers is not None:
        matrix = f"{statement.privacy.noise}, {count_of(mechanism.buffers, 'buffer')}"
        z = f"the noise is {mechanism.noise_multiplier * over:.4g} times that of one round"
        lines.append(f"correlated over rounds by {matrix}; the run's sensitivity is {over:.4g} times a round's, {z}")
    if (devices := mechanism.devices) is not None:
        theirs = (
            f"{count_of(devices.honest, 'honest device')} of a sum add {devices.noise_multiplier:.4g} times the clip"
        )
        lines.append(
            f"{theirs} norm together{'' if statement.across_devices else '; this run was a simulation of them'}"
        )
    if mechanism.bit_noise is not None:
        lines.append(f"{mechanism.bit_noise:g} on each count of clipped users, charged together with the update")
    if statement.privacy.noise_schedule:
        lines.append("in round 1; it follows a schedule, and every round is charged its own")
    return lines


def _on_devices(statement: Statement) -> list[str]:
    if (federation := statement.federation) is None:
        return ["in a simulation"]
    joins = "draw who joins" if statement.min_separation is None else "keep count of the rounds that they join"
    where = f"on users' own devices, which {joins} and clip; one who is away contributes nothing, and noise stays"
    sums = "masked sums: the server opens one, or nothing" if federation.masked else "plain sums: the server is trusted"
    return [where, f"{sums}; {'devices add' if federation.noise == 'devices' else 'the server adds'} the noise"]


def epsilon_against(adversary: Adversary) -> str:
    if adversary.epsilon is None:
        return "ε without sampling, not stated here"
    return "no ε" if math.isinf(adversary.epsilon) else f"ε = {epsilon_text(adversary.epsilon)}"


def start_text(start: StartFacts) -> str:
    """By its name, if it has one, and the first digits of its hash."""
    known = "" if start.signer is None else f", signed by {start.signer}"
    text = "" if start.text is None else f", trained on {start.text} ({start.licence})"
    weights = f"weights {start.weights[:8]}, {_origin(start)}{known}"
    return f"{start.name} ({weights}{text})" if start.name else f"{weights}{text}"


def _origin(start: StartFacts) -> str:
    if start.trained_on != "private":
        public = DECLARED if start.declared else "public by its own card"
        return public if start.trained_on == "public" else "of unknown origin"
    names = ", ".join(run.run for run in start.runs)
    began = f", what they began with {DECLARED}" if start.declared else ""
    if start.charged:
        assumed = "if its noise and its rounds were not chosen by their results"
        return f"of private runs on the same people ({names}), whose charges are part of its ε, {assumed}{began}"
    costs = ", ".join(f"ε = {rounded_up(run.epsilon)} at δ = {run.delta:g}" for run in start.runs)
    both = "a person who is among them and among this run's has at most the sum of all ε"
    return f"of private runs on other people ({names}: {costs}; {both}){began}"


_LISTS = {
    "bytes": "the bytes of UTF-8",
    "characters": "the characters of wordfreq's list, and bytes",
    "own words": "the most frequent words of public text",
}


def vocabulary_text(vocabulary: VocabularyFacts) -> str:
    """Where the tokens come from."""
    known = ""
    if vocabulary.contexts:
        known = f"; the contexts {', '.join(vocabulary.contexts)}, {DECLARED} of the store"
    if vocabulary.epsilon is not None and vocabulary.delta is not None:
        cost = f"ε = {rounded_up(vocabulary.epsilon, 6)} at δ = {plain_number(vocabulary.delta)}"
        return f"found in the users' own text with {cost}, which is part of this run's ε{known}"
    source = f"{DECLARED} of the store"
    if vocabulary.source == "public":
        language = f" ({vocabulary.language})" if vocabulary.language else ""
        source = f"public: {_LISTS.get(vocabulary.public_list or '', 'the list of wordfreq')}{language}"
    return f"{source}{known}" if vocabulary.kind == "words" else f"{vocabulary.kind}, {source}{known}"


def _canaries(statement: Statement) -> list[str]:
    """Who else the model was trained on."""
    if (inserted := statement.canaries) is None:
        return []
    users = f"{count_of(inserted.users, 'canary user')}, each in or out by a secret coin"
    secrets = f"{count_of(inserted.holders, 'who holds', 'who hold')} {count_of(inserted.secrets, 'secret')}"
    kinds = [*([users] if inserted.users else []), *([secrets] if inserted.secrets else [])]
    return [f"made-up users beyond the declared population: {' and '.join(kinds)} (registry {inserted.registry})"]


def _chosen(statement: Statement) -> list[str]:
    """Of the best of several runs: how it was chosen, which ε counts."""
    drawn = next((event for event, _ in statement.charged if isinstance(event, BestOfRuns)), None)
    if (found := statement.chosen) is None or drawn is None:
        return []
    number = f"a secret, drawn from a {drawn.distribution} distribution of mean {drawn.expected_runs:g}"
    return [
        f"the best by {found.score} of several runs, each with one of {count_of(found.settings, 'setting')} at random",
        f"their number is {number}; the others were erased unseen, and ε is that of the choice (Papernot and Steinke)",
    ]


def _held_out(statement: Statement) -> list[str]:
    """Of a released model: the accuracy that held-out users paid for."""
    if (found := statement.private_accuracy) is None:
        return []
    terms, over_all = found.terms, epsilon_text(statement.epsilon_held_out)
    cost = f"ε = {epsilon_text(terms.epsilon)} at δ = {plain(terms.delta)}"
    return [
        f"measured privately, with {cost} for each of them when one is added or removed: {accuracy_text(found)}",
        f"the first {terms.tokens_per_user:,} tokens of each count; over all private evaluations ε is {over_all}",
        "this release has no exact figure of them",
    ]


def accuracy_text(found: PrivateAccuracy) -> str:
    """The top-1 of a private evaluation with half of its 95 % interval."""
    if found.top1 is None or found.top1_within is None:
        return "the noise hides how well the model predicts them"
    return f"top-1 {percent(found.top1, 2)} ± {100 * found.top1_within:.2f} points (95%, of people like them)"


def _power(share: float | None) -> str:
    return "" if share is None else f", {would_have_seen(share)}"


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
    if isinstance(value, list):
        return ", ".join(f"[{format_value(item)}]" if isinstance(item, list) else format_value(item) for item in value)
    return _WORDS.get(value, value.replace("_", " ")) if isinstance(value, str) else plain(value)
