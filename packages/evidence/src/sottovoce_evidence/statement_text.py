"""A privacy statement in sentences, and how its figures are written wherever they are shown."""

from __future__ import annotations

import math
from typing import Any

from sottovoce_evidence.accounting import BestOfRuns, rounded_down, rounded_up
from sottovoce_evidence.accounting.events import ADDED, REPLACED
from sottovoce_evidence.adversaries import Adversary, adversaries
from sottovoce_evidence.errors import count_of, plain_number, plural, short_exponent
from sottovoce_evidence.files import Json
from sottovoce_evidence.private_accuracy import PrivateAccuracy
from sottovoce_evidence.statement import (
    Declared,
    FederationFacts,
    MechanismFacts,
    NotCovered,
    Schedule,
    StartFacts,
    Statement,
    VocabularyFacts,
)

DECLARED = "declared public by the owner"
LOUD = "WARNING"  # how a note to a reviewer begins that is read first
PROTECTS = "users whose text the model was trained on; not those held out, on whom it is measured"
_WORDS = {
    ADDED: "one user is added or removed",
    REPLACED: "one user is replaced by another",
    "entropy": "operating-system entropy, kept apart from the seed",
    "seeded": "derived from the seed: anyone who knows it can undo the noise",
    "user": "user: all the text of one person",
}

PRACTICE = "This run is a practice: it was trained on synthetic people. Its accuracy says nothing about real text."


def prose(statement: Statement) -> str:
    """All paragraphs, and what is not covered."""
    uncovered = [f"Not covered: {'; '.join(uncovered_texts(statement))}."] if statement.private else []
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
        texts.append(f"The vocabulary was {vocabulary_text(statement.vocabulary)}. {alone}")
    if statement.across_devices:
        joins = "draw who joins" if statement.min_separation is None else "keep count of the rounds that they join"
        texts.append(
            f"Users were trained on their own devices, which {joins} and clip the updates. {_added_up(statement)} "
            "Every registered user counts, connected or not: one who is away contributes nothing, and denominator and "
            f"noise stay."
        )
        texts += _adversaries(statement)
    texts += _start(statement) + _canaries(statement)
    if statement.starts > 1:
        texts.append(
            f"Training was begun or resumed {statement.starts} times. Rounds that a crash took away were never shown."
        )
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
    rows = [f"{one.who}: {one.sees} ({epsilon_against(one)})" for one in adversaries(statement)]
    return [f"Who sees what: {'; '.join(rows)}."] if rows else []


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
        f"by {accountant_text(statement)}."
    )


def _noise(mechanism: MechanismFacts) -> str:
    z, std = mechanism.noise_multiplier, mechanism.noise_std
    if (correlation := mechanism.correlation) is None:
        more = "" if mechanism.devices is None else " or more"
        scale = f"of standard deviation {std:.4g}{more} (noise multiplier {z:.4g})"
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
    return _sampled(name, declared, rounds) + more


_SUMMARIES = {
    "poisson": "Poisson: every user joins a round independently",
    "examples": "examples: every example of a user joins a round independently",
    "fixed": "fixed size: every round draws the same number of users",
    "in_turn": "in turn: a public rule puts every user into a group, and each round asks one group",
    "min_separation": "least separation: users come at irregular times, never too soon after their last, and so often "
    "at most",
}


def _sampled(name: str, declared: Declared, participations: int) -> str:
    """How users join a round, where one user joins so many at most."""
    cohort, users = f"{declared.cohort:g}", f"{declared.users:,}"
    texts = {
        "poisson": f"Every user joins a round independently with probability {declared.cohort / declared.users:.4g} "
        f"({cohort} expected of {users} declared)",
        "examples": "Every example of a user joins a round independently, by a coin of its own "
        f"({cohort} places of examples expected, of {users} declared users)",
        "fixed": f"Every round draws exactly {cohort} of {users} declared places, or of as many as there are users; an "
        "empty place adds nothing",
        "in_turn": "Users join in turn: a public hash of a user's id puts them into one of "
        f"{int(declared.users // declared.cohort):,} groups ({cohort} expected of {users} declared), and every round "
        f"asks one group. Each joins at most {participations} of the planned rounds, without amplification by sampling",
        "min_separation": f"It is public when a user joins ({cohort} expected of {users} declared), so sampling "
        f"amplifies nothing. Each joins at most {participations} of the planned rounds",
    }
    how = name.replace("_", " ")  # of a sampler of the owner's own code
    return texts.get(name, f"Users join a round by {how} sampling ({cohort} of {users} declared)")


def _start(statement: Statement) -> list[str]:
    """Where the model came from, if not from the seed."""
    return [] if statement.start is None else [f"The model began with {start_text(statement.start)}."]


def start_text(start: StartFacts) -> str:
    """By its name, if it has one, and the first digits of its hash."""
    known = "" if start.signer is None else f", signed by {start.signer}"
    weights = f"weights {start.weights[:8]}, {_origin(start)}{known}"
    return f"{start.name} ({weights})" if start.name else weights


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
        names = ", ".join(vocabulary.contexts)
        known = f"; the contexts {names}, declared public by the owner of the store"
    if vocabulary.epsilon is not None and vocabulary.delta is not None:
        cost = f"ε = {rounded_up(vocabulary.epsilon, 6)} at δ = {plain_number(vocabulary.delta)}"
        return f"found in the users' own text with {cost}, which is part of this run's ε{known}"
    source = f"{DECLARED} of the store"
    if vocabulary.source == "public":
        language = f" ({vocabulary.language})" if vocabulary.language else ""
        source = f"public: {_LISTS.get(vocabulary.public_list or '', 'the list of wordfreq')}{language}"
    return f"{source}{known}" if vocabulary.kind == "words" else f"{vocabulary.kind}, {source}{known}"


def accountant_text(statement: Statement) -> str:
    """With the versions that gave ε."""
    library = f"dp-accounting {statement.software.get('dp-accounting', 'of an unknown version')}"
    own = f"sottovoce {statement.software.get('sottovoce-evidence', 'of an unknown version')}"
    names = {"pld": f"PLD ({own}, {library})", "rdp": f"RDP ({library})"}
    return names.get(statement.accountant, "the moments accountant (Abadi et al. 2016, orders 1 to 32)")


def uncovered_texts(statement: Statement) -> list[str]:
    """What the guarantee does not cover, in words."""
    found = statement.federation or FederationFacts(0)
    several, colluding = count_of(found.colluding, "device"), f"{found.survivors} devices or more"
    kept = f"{count_of(found.stand_ins, 'device')}, which it made: it could stand in for"
    texts: dict[NotCovered, str] = {
        "held_out": "held-out users: accuracy is measured on them exactly, and they are not protected",
        "settings": "choosing hyper-parameters by looking at results on the private text, other than through runs "
        "charged to the store",
        "later_runs": "the store's total, where later runs were chosen by the results of earlier ones",
        "owners_files": "diagnostics.jsonl, participation.json, preparation.json, audits, the secrets, the checkpoints "
        "and timing: they are for the owner only",
        "other_models": "models of non-private or experimental runs on the same store: releasing one voids this "
        "statement",
        "second_ids": "a person who holds two user ids, or text about one person written by another",
        "shared_records": f"what up to {statement.owners_per_record} people own together: it is in the text of each of "
        "them",
        "records_as_users": "a person with several records: every record counts as one user",
        "philox": "anyone who can tell the output of Philox from chance: it draws who joins a round, and is not a "
        "cipher",
        "start": "the people whose text the model was trained on before this run began",
        "turns": "when a user's turn would be: it follows from their id by a public rule",
        "separated_rounds": "in which rounds a user joins, if they are known to take part: no secret chance decides it",
        "watchers": "anyone who watches the network, and the server: they see who takes part, so sampling amplifies "
        "nothing",
        "watchers_of_masked_sums": "anyone who watches the network, the server, and the devices of a round: they know "
        "who takes part, so sampling amplifies nothing",
        "server": "the server: it adds up what devices send before the noise is in, and is trusted to keep none of it",
        "server_of_masked_sums": f"the server: it opens one sum over {colluding} before the noise is in, and no "
        f"device's own, unless more than {several} collude with it",
        "server_with_more": f"the server with more than {several} that collude with it",
        "kept_keys": f"the server, if it kept the keys of {kept} {plural(found.stand_ins, 'it', 'them')}, and see what "
        "the others send",
        "spoiled_rounds": "a device that breaks the rules: nobody can clip what it sends, so it can spoil a round; "
        "what others send stays hidden",
        "late_silos": "time and failures: a silo that is late because of one of its users is missing from a round with "
        "all of them, and one whose training fails sends zeros for all of them",
        "silos_draw": "silos: a device that holds several users is trusted to draw, to clip and to add up each of them "
        "apart",
        "rehearsed": "the authors of the text that devices rehearse: the owner declares it public",
    }
    return [texts[code] for code in statement.not_covered]


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
    drawn = next((event for event, _ in statement.charged if isinstance(event, BestOfRuns)), None)
    if found is None or drawn is None:
        return []
    tried = (
        "with the same settings" if found.settings == 1 else f"each with one of {found.settings} settings, at random"
    )
    return [
        f"The model is the best of several such runs, {tried}. Their number was drawn from a {drawn.distribution} "
        f"distribution of mean {drawn.expected_runs:g} and is a secret. The score was {found.score}. The others were "
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
    if isinstance(value, str) and value in _SUMMARIES:
        return _SUMMARIES[value]
    return _WORDS.get(value, value.replace("_", " ")) if isinstance(value, str) else plain(value)
