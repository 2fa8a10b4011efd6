"""Make a base: a model of public text, in a folder from which anyone may start a private run."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
from safetensors.numpy import save

from sottovoce.audit.recitation import find_recited
from sottovoce.build.assembly import build_model, load_model, model_settings
from sottovoce.commands.model_folder import base_weights
from sottovoce.commands.train import Observer, Stop, never, train
from sottovoce.data.grouping import Grouping
from sottovoce.data.languages import DEFAULT, find_language
from sottovoce.data.lines import lines
from sottovoce.data.prepare import prepare
from sottovoce.data.store import Store
from sottovoce.data.tokenizer_files import save_tokenizer
from sottovoce.data.vocabulary import Vocabulary
from sottovoce.evaluation.prediction import evaluate, token_counts
from sottovoce.files import check_empty, made_aside, work_folder
from sottovoce.models.lora import merge_weights
from sottovoce.runs.folder import RunFolder
from sottovoce.runs.owner_key import owner_key
from sottovoce_evidence.bases import CARD, FREQUENCIES, PLAIN, PUBLIC, WEIGHTS, Base, is_plain
from sottovoce_evidence.errors import SettingError, SottoError
from sottovoce_evidence.files import pretty, sealed, sha256_of
from sottovoce_evidence.recipe import ADAPTER_KEYS, Recipe
from sottovoce_evidence.signature import BASE, sign_folder

PASSES = 5.0
HELD_OUT = 0.05  # of a text file


@dataclass(frozen=True)
class Text:
    """What a base's card says of its text, and the key that signs it."""

    name: str
    text: str = "public text"
    licence: str = "not stated"
    language: str | None = None  # a code such as "de"
    key: Path | None = None  # that of the owner unless given


class Trained(NamedTuple):
    """A base, and where it lies."""

    out: Path
    base: Base


def train_base(
    store: str | Path,
    out: str | Path,
    about: Text,
    *,
    passes: float = PASSES,
    recipe: Recipe | str | Path = "base",
    observer: Observer | None = None,
    stop: Stop = never,
) -> Trained:
    """Train a model on public text, in any language, and write it as a signed base.

    Args:
        store: made by `sotto prepare --plain-text`; or a text file. Its vocabulary is the public list of its language,
            so that the base fits every store of that list; where the language is not named or has no list, the most
            frequent words of the text.
        out: the folder of the new base.
        about: what its card says of the text.
        passes: how often the text is read.
        recipe: the model and how it is trained; the shipped one is `base`.
        observer: is called after every round.
        stop: is asked after every round; a base that is stopped is not written.

    Guarantee: a base is trained on public text alone: a store of people's text is refused.
    """
    if not passes > 0:
        raise SettingError("{passes:g} must be above 0; it is how often the text is read", passes=passes)
    if not is_plain(about.name):
        raise SettingError(f"{{name!r}} is no name for a base; give one of {PLAIN}", name=about.name)
    chosen = recipe if isinstance(recipe, Recipe) else Recipe.load(recipe)
    out = Path(out)
    check_empty(out)
    key = owner_key(about.key)
    with made_aside(out) as draft, work_folder(out.resolve().parent, "base") as aside:
        folder = _prepared(Path(store), aside / "store", about.language) if Path(store).is_file() else store
        text, held_out = Store.open(folder), Store.open(folder, "test")
        if text.people:
            raise SottoError(f"{store} holds people's text; a base needs public text (`sotto prepare --plain-text`)")
        if not held_out.users:
            more = "give more text" if Path(store).is_file() else "prepare it with --test-users 0.01"
            raise SottoError(f"{store} holds nothing out to measure a base on; {more}")
        pieces = min(int(chosen.privacy.cohort), text.users)
        rounds = max(round(passes * text.users / pieces), 1)
        chosen = chosen.replace(
            data={"store": str(folder)},
            privacy={"mode": "none", "users": text.users, "cohort": pieces},
            run={"algorithm": "central", "rounds": rounds},
        )
        result = train(chosen, aside / "run", observer=observer, stop=stop)
        if result.ended != "finished":
            raise SottoError(f"stopped at round {result.round} of {rounds}: no base was written")
        base = _write(RunFolder.open(aside / "run"), draft, text, held_out, about, passes)
        sign_folder(draft, key, BASE)
    return Trained(out, base)


def _prepared(text: Path, out: Path, language: str | None) -> Path:
    """The store of a file of public text."""
    rules = None if language is None else find_language(language)
    if rules is None or rules.listed is None:
        vocabulary = Vocabulary.of_text(lines(text), language=DEFAULT if rules is None else rules.code)
    else:
        vocabulary = Vocabulary.public(language=rules.code)
    prepare([text], out, vocabulary, Grouping(test_users=HELD_OUT, plain_text=True))
    return out


def _write(run: RunFolder, draft: Path, text: Store, held_out: Store, about: Text, passes: float) -> Base:
    """Weights in float16, which take half the space; how good they are is measured as they are written.

    A base has no adapters: they are merged.
    """
    recipe = Recipe.of(run).replace(model=dict.fromkeys(ADAPTER_KEYS))
    halved = {name: array.astype(np.float16) for name, array in merge_weights(run.load_weights()).items()}
    (draft / WEIGHTS).write_bytes(save(halved))
    words = save_tokenizer(text.vocabulary, draft)
    counts = token_counts(text, range(text.users))
    (draft / FREQUENCIES).write_text("".join(f"{count}\n" for count in counts), encoding="utf-8")
    model = load_model(build_model(recipe, text.vocabulary.size), base_weights(draft))
    found = evaluate(model, held_out)
    base = Base(
        name=about.name,
        kind=recipe.model.kind,
        model=model_settings(recipe),
        words=text.vocabulary.fingerprint,
        vocabulary=text.vocabulary.size,
        text=about.text,
        tokens=int(counts.sum()),
        licence=about.licence,
        command=f"sotto base train STORE --name {about.name} --passes {passes:g}",
        passes=passes,
        top1=found.top1,
        perplexity=found.perplexity,
        files={name: sha256_of(draft / name) for name in (WEIGHTS, words.name, FREQUENCIES)},
        trained_on=PUBLIC,
        language=about.language,
        longest_recited=find_recited(model, text).longest,
    )
    (draft / CARD).write_bytes(pretty(sealed(base.to_json())))
    return base
