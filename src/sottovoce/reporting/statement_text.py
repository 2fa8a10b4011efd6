"""A privacy statement in words, from its facts."""

from __future__ import annotations

from typing import Any

from sottovoce.accounting import rounded_up
from sottovoce.accounting.events import ADDED
from sottovoce.privacy.sampling import SAMPLERS
from sottovoce.reporting.wording import epsilon_text, is_unfinished, of_other_relation, would_have_seen


def paragraphs(private: bool, epsilon: float, delta: float, facts: dict[str, Any]) -> list[str]:
    if not private:
        return [
            "This run gives no privacy guarantee: ε is infinite. Its model may depend on any one person's text as much "
            "as training made it. Do not release it outside the circle that may read the text itself.",
            *_start(facts),
            *_canaries(facts),
        ]
    mechanism = facts["mechanism"]
    factor, beside = rounded_up(epsilon), rounded_up(delta, 2).replace("e-0", "e-")
    change = "is added or removed" if facts["relation"] == ADDED else "is replaced by any other, added or removed"
    told = [
        f"This run satisfies ({factor}, {beside})-differential privacy for users whose text it was trained on, not "
        f"for those held out{_projected(facts)}: whatever is computed from the released model changes in probability "
        f"by a factor of at most e^{factor} (and {beside} beside it) when the whole text of any one person it was "
        f"trained on {change}.{_when_replaced(facts)}",
        f"{_joins(facts)}. A user's update{', times its weight,' if 'clip_weighted' in mechanism else ''} is clipped "
        f"to L2 norm {mechanism['clip_norm']:g} ({mechanism['clipping'].replace('_', ' ')}, "
        f"{mechanism['clip_when'].replace('_', ' ')}), averaged by the {mechanism['estimator'].replace('_', ' ')} "
        f"estimator, whose sensitivity is {mechanism['sensitivity']:.4g}, and Gaussian noise of standard deviation "
        f"{mechanism['noise_std']:.4g} (noise multiplier {mechanism['noise_multiplier']:.4g}) is added to every "
        f"coordinate.{_changes(mechanism)} {facts['rounds_done']} of {facts['rounds_planned']} planned rounds were "
        f"done; the figure is for all that are planned, by {facts['accountant']}.",
        _store_total(facts),
    ]
    if "own text" in facts["vocabulary"]["source"]:
        told.append(
            f"The vocabulary was {facts['vocabulary']['source']}: a model is released with its words. Training alone "
            f"has ε = {epsilon_text(facts['epsilon_training'])} at the same δ."
        )
    if facts.get("across_devices"):
        told.append(
            "Users were trained on their own devices, each of which flips its users' coins and clips their updates; "
            "the server adds up, adds the noise and is trusted. Every registered user counts, connected or not: one "
            "who is away contributes nothing, and neither denominator nor noise changes."
        )
    told += _start(facts) + _canaries(facts)
    if facts["charged_again"]:
        told.append(
            f"{facts['charged_again']} rounds were begun, broken off and done again with fresh noise; they are "
            f"paid for twice, and the figure counts that."
        )
    if facts.get("out_of_date"):
        told.append(
            "More was charged for this run since its statement was written, by a copy of it that went on: its ε is out "
            "of date until `sotto resume` writes it again."
        )
    if facts.get("charged_beside"):
        told.append(
            f"Beside this model, {facts['charged_beside']} rounds were charged for other copies of the run that went "
            f"on, or for rounds that a crash kept from being done; the figure counts them."
        )
    if facts["secrets"] == "seeded":
        told.append(
            "The secrets of this run come from its seed: whoever knows the seed can undo the noise, and the guarantee "
            "holds only against those who do not. Take privacy.secrets = 'entropy' for a model to be released."
        )
    told += _audits(facts)
    told.append("Not covered: " + "; ".join(facts["not_covered"]) + ".")
    return told


def _when_replaced(facts: dict[str, Any]) -> str:
    if "epsilon_replaced" not in facts:
        return ""
    return f" When it is replaced by any other, the factor is at most e^{epsilon_text(facts['epsilon_replaced'])}."


def _projected(facts: dict[str, Any]) -> str:
    """Of rounds that are not done, ε is what they will cost."""
    if not is_unfinished(facts):
        return ""
    done, planned = facts["rounds_done"], facts["rounds_planned"]
    return f" (projected: ε is that of all {planned} planned rounds, of which {done} are done)"


def _store_total(facts: dict[str, Any]) -> str:
    """Of the day it is told; where nobody can ask the store any more, of the day the run ended."""
    was, when = ("was", ", when this run ended") if facts.get("store_gone") else ("is", "")
    total = f"{epsilon_text(facts['epsilon_store'])} at the same δ{of_other_relation(facts)}"
    return f"Over every private run on the same store, ε {was} {total}{when}."


def _joins(facts: dict[str, Any]) -> str:
    """How users come to a round."""
    declared = facts["declared"]
    cohort, users, name = declared["cohort"], declared["users"], facts["sampling"]
    if name not in SAMPLERS:  # a sampler that is not installed here
        return f"Users join a round by {name.replace('_', ' ')} sampling ({cohort:g} of {users:,} declared)"
    return SAMPLERS[name].describe(cohort, users, facts.get("turns", facts["rounds_planned"]))


def _start(facts: dict[str, Any]) -> list[str]:
    """Where the model came from, if not from the seed."""
    if "start" not in facts:
        return []
    start = facts["start"]
    if "run" not in start:
        return [f"The model began with {start['source']}."]
    return [f"The model did not begin untrained: {start['source']} (run {start['run']})."]


def _canaries(facts: dict[str, Any]) -> list[str]:
    """Who else the model was trained on."""
    if not (planted := facts.get("canaries")):
        return []
    kinds = []
    if planted["users"]:
        kinds.append(f"{planted['users']:,} canary users, each in or out by a secret coin")
    if planted["secrets"]:
        kinds.append(f"{planted['holders']:,} who hold {planted['secrets']:,} planted secrets")
    return [
        f"Made-up users were planted on top of the declared population: {' and '.join(kinds)} (registry "
        f"{planted['registry']}). They change nobody's chance to join, nor q and W. An audit by canaries is of this "
        f"model itself."
    ]


def _audits(facts: dict[str, Any]) -> list[str]:
    """Of a released model: the audits that it passed, and those that were not run."""
    passed = [f"by {one['audit']}" for one in facts.get("audits", ()) if one["result"] == "passed"]
    missing = [f"by {one['audit']}" for one in facts.get("audits", ()) if one["result"] == "not run"]
    told = []
    if passed:
        told.append(
            f"The model was audited {' and '.join(passed)} before its release, and the claim was not contradicted; "
            f"that proves nothing beyond the claim."
        )
    for one in facts.get("audits", ()):
        if one["result"] == "passed" and "would_notice" in one:
            told.append(f"The audit by {one['audit']} {would_have_seen(one['would_notice'])}.")
    if missing:
        told.append(f"It was not audited {' or '.join(missing)}.")
    return [" ".join(told)] if told else []


def _changes(mechanism: dict[str, Any]) -> str:
    """What does not stay as it is in round 1."""
    said = []
    if _varies(mechanism.get("clip_schedule", [])):
        values = _values(mechanism["clip_schedule"], mechanism["nominal_clip_norm"], mechanism["clip_path"])
        said.append(f"The clip norm, and the noise with it, follow a schedule: {values}.")
    if adaptive := mechanism.get("adaptive"):
        said.append(
            f"The clip norm, and the noise with it, follow the {adaptive['quantile']:g} quantile of the norms of "
            f"users' updates, read from {adaptive['bits']} noised count(s) of clipped users (noise "
            f"{adaptive['bit_noise']:g}); update and counts together are charged the noise multiplier of their round."
        )
    if _varies(mechanism.get("noise_schedule", [])):
        values = _values(mechanism["noise_schedule"], mechanism["nominal_noise_multiplier"], "steps")
        said.append(f"The noise multiplier follows a schedule: {values}; every round is charged its own.")
    return "".join(f" {sentence}" for sentence in ["These are figures of round 1.", *said]) if said else ""


def _varies(schedule: list[list[float]]) -> bool:
    return len({factor for _, factor in schedule}) > 1


def _values(schedule: list[list[float]], nominal: float, path: str) -> str:
    """The values that a schedule of factors stands for, and how it gets from one to the next."""
    values = [(f"{nominal * factor:.4g}", f"round {number:g}") for number, factor in schedule]
    if path == "steps":
        return ", ".join(f"{value} from {when} on" for value, when in values)
    points = ", ".join(f"{value} in {when}" for value, when in values)
    return f"{points}, on a {path} path between them, and constant after that"
