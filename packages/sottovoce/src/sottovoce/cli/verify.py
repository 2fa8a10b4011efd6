"""`sotto verify`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

from sottovoce.cli.display import print_json
from sottovoce.cli.options import Json, option


def verify(
    folder: Annotated[Path, option("Folder of a release.")],
    *,
    signer: Annotated[str | None, option("Fingerprint or public key of the owner; no other signature counts.")] = None,
    unsigned: Annotated[bool, option("Check a release that has no signature too: anyone may have made it.")] = False,
    json: Json = False,
) -> None:
    """Check the files and the signature of a release, and compute its statement and its ε again.

    Exit status 1 if a check fails, or needs code that is not here. It needs neither a GPU nor jax nor the private text.
    `sotto-verify` of the distribution sottovoce-evidence is the same, without this library.

    Examples:
        sotto verify released
    """
    from sottovoce_evidence.main import lines
    from sottovoce_evidence.verify import verify_release

    found = verify_release(folder, signer=signer, unsigned=unsigned)
    if json:
        print_json(found.to_json())
    else:
        print("\n".join(lines(found)))
    if not found.verified:
        sys.exit(1)
