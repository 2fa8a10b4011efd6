"""Write a first recipe for a store: settings that were measured, with the reason for each next to it."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from sottovoce.build.assembly import filled_model, model_settings
from sottovoce.commands.bases import fitting
from sottovoce.commands.noisy_count import count_users
from sottovoce.data.store import Store
from sottovoce.data.tokenizer_files import find_tokenizer, option_of
from sottovoce.files import write_aside
from sottovoce_evidence import bases
from sottovoce_evidence.errors import SettingError, SottoError, count_of, plain_number
from sottovoce_evidence.recipe import Recipe

MEASURED = (2_000, 30_000)  # declared users for which the recipe `small` was chosen
DELTA = 1e-5
_TEMPLATE = """\
# A recipe for {store}, written by `sotto init`. Change what you like; keys that are not here
# have defaults: docs/reference/recipe.md.
# What it costs and what to expect, before you train: sotto plan FILE

[data]
store = {quoted}

[model]
{start}

[local]
{local}

[server]
{server}

[privacy]
# How many people there are to train on: {counted}. This number becomes public.
# Take one that you could have named without looking at the text.
users = {users}
# People in a round, on average. More need more time, and less noise for each.
cohort = {cohort}
# S: the bound on what one person can change in a round.
clip_norm = {clip_norm}
# The guarantee: noise is chosen for this ε. A smaller one protects more and needs more noise.
epsilon = {epsilon:g}
# The chance that the guarantee fails: well below 1/users.
delta = {delta}

[run]
# How often the model is improved. Fewer take less time, and need less noise for the same ε.
rounds = {rounds}
# Rounds from one measurement on held-out people to the next.
evaluate_every = {evaluate_every}
"""
_COMMENTS = {
    "local.learning_rate": "η: how far a person's model moves in a step on their text.",
    "local.batch": "Lanes that a person's text is cut into.",
    "local.unroll": "Tokens of each lane in a step.",
    "server.optimiser": "What applies the average of the people's updates.",
    "server.learning_rate": "How far the model moves along that average in a round.",
}


# Those of the recipe `small`, and for a transformer that starts from public text the best of four settings
# (docs/results/transformers.md).
_SMALL = {"local": {"learning_rate": 3.0}, "server": {"learning_rate": 1.5}, "privacy": {"clip_norm": 3.0}}
_TRANSFORMER = {
    "local": {"learning_rate": 0.3, "batch": 8, "unroll": 32},
    "server": {"optimiser": "adam", "learning_rate": 0.003},
    "privacy": {"clip_norm": 1.0},
}


@dataclass(frozen=True)
class FirstRecipe:
    """The text of a recipe, and what its owner should know."""

    text: str
    users: int
    notes: tuple[str, ...]

    def __repr__(self) -> str:
        return f"<FirstRecipe: {count_of(self.users, 'user')} declared, {count_of(len(self.notes), 'note')}>"


def write_recipe(
    store: str | Path,
    *,
    users: int | None = None,
    noisy_count: float | None = None,
    base: str | Path | None = None,
    out: Path | None = None,
) -> FirstRecipe:
    """A recipe for the people of a store.

    Args:
        store: made by `sotto prepare`.
        users: the number to declare. By default the count, rounded down to two digits, below 100 to tens.
        noisy_count: an ε, charged to the store, for a count with noise. It is drawn once for a store and kept.
        base: the folder of a base of your own to start from (`sotto base train`), or the name of one in the package. By
            default one in the package that fits.
        out: the file to write; it must not exist.
    """
    people = Store.open(store)
    start = _start(people, base, out)
    if not people.people:
        raise SottoError(f"{store} is public text; train a base on it with `sotto base train`")
    if users is not None and users < 1:
        raise SettingError("{users} must be at least 1; it is how many people there are", users=users)
    if users is not None and noisy_count is not None:
        raise SottoError("--users names the number and --noisy-count draws it; leave one of them out")
    if out is not None and out.exists():
        raise SottoError(f"{str(out)!r} exists; choose another --out")
    if out is not None and not out.parent.is_dir():
        raise SottoError(f"{str(out.parent)!r} is no folder; make it, or choose another --out")
    declared, counted, notes = users, "the number you gave", []
    if noisy_count is not None:
        noisy = count_users(people, noisy_count)
        declared, counted = rounded_down(noisy.users), "the count with noise, rounded down"
        cost = f"ε = {noisy.epsilon:g} at δ = {plain_number(noisy.delta)}, charged to the store once"
        notes.append(f"the number of people has noise of standard deviation {noisy.noise_std:.3g} ({cost})")
    elif declared is None:
        declared, counted = rounded_down(people.users), "the count, rounded down"
        better = "--users names one that you could say in public, --noisy-count draws one with noise"
        notes.append(f"{declared:,} is the exact count, rounded down, and becomes public; {better}")
    text = _text(_from_recipe(Path(store), out), declared, counted, start)
    Recipe.parse(text)
    if out is not None:
        write_aside(out, text.encode())
    return FirstRecipe(text, declared, (*notes, *_notes(declared, start)))


def rounded_down(count: int) -> int:
    """To two digits, and below 100 to tens: 3,958 becomes 3,900, and 24 becomes 20. At least 1."""
    unit = 10 ** max(len(str(count)) - 2, 1)
    return max(count // unit * unit, 1)


def _from_recipe(path: Path, out: Path | None) -> str:
    """A folder as the recipe names it: relative paths start at the folder of the recipe, so that both can be moved."""
    if path.is_absolute() or out is None:
        return str(path)
    return os.path.relpath(path.parent.resolve() / path.name, out.parent.resolve())


def _text(store: str, declared: int, counted: str, start: _Start) -> str:
    small = Recipe.load("small")
    return _TEMPLATE.format(
        store=" ".join(store.split()),
        quoted=json.dumps(store),
        start=start.text,
        counted=counted,
        users=declared,
        cohort=min(int(small.privacy.cohort), max(declared // 4, 1)),
        delta=plain_number(min(DELTA, 10.0 ** math.floor(math.log10(0.1 / declared)))),
        local=_commented("local", start.settings),
        server=_commented("server", start.settings),
        clip_norm=json.dumps(start.settings["privacy"]["clip_norm"]),
        epsilon=small.privacy.epsilon,
        rounds=small.run.rounds,
        evaluate_every=small.run.evaluate_every,
    )


def _keys(settings: Mapping[str, object]) -> str:
    return "\n".join(f"{key} = {json.dumps(value)}" for key, value in settings.items())


def _commented(section: str, settings: Mapping[str, Mapping[str, object]]) -> str:
    return "\n".join(
        f"# {_COMMENTS[f'{section}.{key}']}\n{_keys({key: value})}" for key, value in settings[section].items()
    )


class _Start(NamedTuple):
    """The keys of [model] with their comment, what the owner should know of them, and settings for such a model."""

    text: str
    notes: tuple[str, ...] = ()
    settings: Mapping[str, Mapping[str, object]] = _SMALL


def _start(people: Store, base: str | Path | None, out: Path | None) -> _Start:
    """A base that is named must have the tokens of the store."""
    words = people.vocabulary.without_contexts().fingerprint
    if base is None:
        small = filled_model(Recipe.load("small"))
        if found := fitting(small.model.kind, model_settings(small), words):
            return _Start(f'# Weights to start from: a model of public text in the package.\ninitial = "{found}"')
        text = "# No model in the package has the tokens of this store: training starts from nothing."
        nothing = "training starts from nothing, which takes many more people and rounds than from a base; make one of "
        return _Start(f'{text}\ninitial = "none"', (f"{nothing}public text with `sotto base train`, and use --base",))
    shipped = bases.find(str(base))
    folder = shipped or Path(base)
    if not bases.is_base(folder):
        raise SottoError(f"{str(base)!r} is no base; make one with `sotto base train`, or name one of the package")
    card = bases.read_base(folder)
    if card.words not in (people.vocabulary.fingerprint, words):
        tokens = find_tokenizer(folder)
        raise SottoError(
            f"the base {base} has other tokens than {people.path}; prepare the store with {option_of(tokens)} {tokens}"
        )
    name = str(base) if shipped else _from_recipe(folder, out)
    if bases.is_name(name) and not shipped:
        name = os.path.join(os.curdir, name)  # a folder of its own, called as one of the package
    keys = {"initial": name, "kind": card.kind, **card.model}
    sizes = _keys({key: value for key, value in keys.items() if value is not None})
    text = f"# Weights to start from, and the sizes of their model.\n{sizes}"
    chosen = "the learning rates and the clip norm were chosen for"
    if card.kind == "transformer":
        return _Start(text, (f"{chosen} a transformer of 4.4 million parameters and 27,000 people",), _TRANSFORMER)
    return _Start(text, () if card.kind == "lstm" else (f"{chosen} the LSTM of `small`, not for this {card.kind}",))


def _notes(declared: int, start: _Start) -> list[str]:
    low, high = MEASURED
    measured = f"settings were measured for {low:,} to {high:,} people; with {declared:,}"
    if declared < low:
        return [f"{measured}, expect little", *start.notes]
    return [f"{measured}, more rounds pay", *start.notes] if declared > high else [*start.notes]
