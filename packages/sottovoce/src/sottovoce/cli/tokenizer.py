"""`sotto tokenizer`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import cyclopts

from sottovoce.cli.display import print_json, print_table
from sottovoce.cli.options import Flag, Json, option

app = cyclopts.App(name="tokenizer", help="Pieces of words, learned from public text.", help_on_error=False)


@app.command
def train(
    *files: Annotated[Path, option("Public text: plain files, folders or patterns.")],
    out: Annotated[Path, option("The new file: tokenizer.json.")],
    public: Annotated[Flag, option("Your word that this text is public.")] = False,
    kind: Annotated[str, option("bpe, unigram or wordpiece.")] = "bpe",
    size: Annotated[int, option("Tokens in all.")] = 8_000,
    lower_case: Annotated[Flag, option("Make all text lower case.")] = False,
    json: Json = False,
) -> None:
    """Train a tokenizer on public text, as a file of Hugging Face. People's text is refused: it would be a release.

    Examples:
        sotto tokenizer train public.txt --public --size 8000 --out tokenizer.json
    """
    from sottovoce.commands.tokenizer import train_tokenizer

    made = train_tokenizer(files, out, public=public, kind=kind, size=size, lower_case=lower_case)
    if json:
        return print_json(made.to_json())
    shown = {"bytes per token in its text": f"{made.bytes_per_token:.2f}", "hash": made.fingerprint}
    print_table(f"Tokenizer {out}", {"kind": made.kind, "tokens": f"{made.size:,}", **shown})
    if made.size < size:
        print(
            f"note: {size:,} tokens were asked for, and this text has no more pieces that occur often; give more text"
        )
    return print(f"next: sotto prepare YOURS --tokenizer {out} --out STORE")
