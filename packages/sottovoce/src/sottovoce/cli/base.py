"""`sotto base`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import cyclopts

from sottovoce.cli.display import gentle_stop, print_json, print_table, progress_of_rounds
from sottovoce.cli.options import Json, option
from sottovoce_evidence.errors import count_of

app = cyclopts.App(name="base", help="Models of public text, from which private training starts.", help_on_error=False)


@app.command
def train(
    store: Annotated[Path, option("Public text: a text file, or a folder of `sotto prepare --plain-text`.")],
    *,
    out: Annotated[Path, option("Folder of the new base.")],
    name: Annotated[str | None, option("What the card calls it (default: the name of the folder).")] = None,
    text: Annotated[str, option("What the text is, for the card.")] = "public text",
    licence: Annotated[str, option("Licence of the text, for the card.")] = "not stated",
    language: Annotated[str | None, option("Code of its language: its public words, how words are cut.")] = None,
    key: Annotated[Path | None, option("Ed25519 key that signs (default: yours, made on first use).")] = None,
    passes: Annotated[float, option("How often the text is read.")] = 5.0,
    recipe: Annotated[str, option("The model, and how it is trained.")] = "base",
    json: Json = False,
) -> None:
    """Train a base on public text. Start a private run from it with `sotto train RECIPE --from FOLDER`.

    Examples:
        sotto base train public --out base --passes 5
    """
    from sottovoce.commands.base import Text, train_base

    about = Text(name or out.name, text, licence, language, key)
    with gentle_stop() as stop, progress_of_rounds(out.name, quiet=json) as observer:
        done = train_base(store, out, about, passes=passes, recipe=recipe, observer=observer, stop=stop)
    if json:
        return print_json({"out": str(out), **done.base.to_json()})
    scores = {"top-1, perplexity on text held out": f"{done.base.top1:.2%}, {done.base.perplexity:.4g}"}
    recites = done.base.longest_recited
    recited = {} if recites is None else {"longest passage of its text that it recites": count_of(recites, "word")}
    print_table(f"Base {out}", {"tokens": f"{done.base.tokens:,}", **scores, **recited})
    words = (out / "vocabulary.txt").is_file()
    tokens = f"--vocabulary {out / 'vocabulary.txt'}" if words else f"--tokenizer {out / 'tokenizer.json'}"
    print(f"next: sotto prepare YOURS {tokens} --out STORE")
    return print(f"then: sotto train RECIPE --from {out} --out RUN")


@app.command(name="list")
def list_bases(*, json: Json = False) -> None:
    """List the bases in the package.

    Examples:
        sotto base list
    """
    from sottovoce_evidence import bases

    cards = {name: bases.read_base(folder) for name in bases.shipped() if (folder := bases.find(name))}
    if json:
        return print_json({name: card.to_json() for name, card in cards.items()})
    for name, card in cards.items():
        sizes = ", ".join(f"{setting} {value}" for setting, value in card.model.items())
        facts = {"model": f"{card.kind}: {sizes}", "vocabulary": f"{card.vocabulary:,} words", "text": card.text}
        print_table(f"Base {name}", facts | {"licence": card.licence})
    return None
