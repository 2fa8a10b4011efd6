"""Write docs/reference/licences.md: the licences of all packages in `requirements/`.

    python tools/licences.py            writes the page, from what is installed (requirements/browser.lock in full)
    python tools/licences.py --check    exit status 1 where the page lacks a dependency or a licence is not allowed

The licence is the package's own statement: `License-Expression`, else its classifiers, else its `License` field.
"""

from __future__ import annotations

import re
import sys
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "reference" / "licences.md"
LOCKS = {
    "core": "core.lock",
    "development": "dev.lock",
    "keyboard and its tests": "browser.lock",
    "documentation": "docs.lock",
}  # a package is listed with the first that has it

# None of these extends to a model or a release that was made with the package.
ALLOWED = {
    "0BSD",
    "Apache-2.0",
    "BSD",
    "BSD-2-Clause",
    "BSD-3-Clause",
    "CC0-1.0",
    "CNRI-Python",
    "ISC",
    "MIT",
    "MIT-0",
    "MIT-CMU",
    "MPL-2.0",
    "NCSA",
    "PSF-2.0",
    "Zlib",
}
# Read from their licence files: jax2onnx and locate have none in their metadata; the others are for other systems.
BY_HAND = {
    "colorama": "BSD-3-Clause",
    "httpx2-jsfetch": "BSD-3-Clause",
    "jax2onnx": "Apache-2.0",
    "locate": "MIT",
    "nest-asyncio": "BSD-2-Clause",
}

_CLASSIFIERS = {
    "Apache Software License": "Apache-2.0",
    "BSD License": "BSD",
    "ISC License (ISCL)": "ISC",
    "MIT License": "MIT",
    "Mozilla Public License 2.0 (MPL 2.0)": "MPL-2.0",
    "Python Software Foundation License": "PSF-2.0",
    "The Unlicense (Unlicense)": "Unlicense",
    "Public Domain": "LicenseRef-Public-Domain",
}
_FREE_TEXT = {
    "3-clause bsd license": "BSD-3-Clause",
    "apache 2.0": "Apache-2.0",
    "apache license 2.0": "Apache-2.0",
    "apache license, version 2.0": "Apache-2.0",
    "apache software license": "Apache-2.0",
    "apache": "Apache-2.0",
    "bsd": "BSD",
    "bsd 3-clause": "BSD-3-Clause",
    "bsd license": "BSD",
    "mit license": "MIT",
    "psf": "PSF-2.0",
}


def locked(name: str) -> dict[str, str]:
    """Packages of a lock file, and their versions."""
    text = (ROOT / "requirements" / name).read_text(encoding="utf-8")
    return dict(re.findall(r"^([a-z0-9-]+)==([^\s;\\]+)", text, re.MULTILINE))


def licence_of(found: Distribution) -> str | None:
    """The licence as an SPDX expression; None where the package states none."""
    facts = found.metadata
    if expression := facts.get("License-Expression"):
        return " ".join(expression.split())
    classes = [line.rpartition(" :: ")[2] for line in facts.get_all("Classifier") or () if line.startswith("License")]
    known = sorted({_CLASSIFIERS[one] for one in classes if one in _CLASSIFIERS})
    if known:
        return " OR ".join(known)
    lines = (facts.get("License") or "").strip().splitlines()
    text = lines[0].strip() if lines else ""
    return _FREE_TEXT.get(text.lower(), text or None)


def is_allowed(expression: str) -> bool:
    """Are all licences of an expression allowed? Of a choice (OR), one is enough."""
    named = [word for word in re.split(r"[()\s]+", expression) if word not in ("", "AND", "OR")]
    enough = all if " AND " in expression else any if " OR " in expression else all
    return bool(named) and enough(word in ALLOWED for word in named)


def on_the_page() -> dict[str, str]:
    """The packages on the page, with their licences."""
    _, _, rows = PAGE.read_text(encoding="utf-8").partition("| --- |")
    return dict(re.findall(r"^\| ([a-z0-9-]+) \| ([^|]+) \|", rows, re.MULTILINE))


def problems() -> list[str]:
    listed = on_the_page()
    wanted = {name for lock in LOCKS.values() for name in locked(lock)}
    found = [
        f"{name} is not on docs/reference/licences.md; `make licences` writes it"
        for name in sorted(wanted - set(listed))
    ]
    found += [f"{name} is on docs/reference/licences.md and in no lock file" for name in sorted(set(listed) - wanted)]
    for name, expression in sorted(listed.items()):
        if not is_allowed(expression):
            found.append(f"{name} is under {expression}, which is not among the licences that are allowed")
        says = _installed(name)
        if says is not None and says != expression:
            found.append(f"{name} says {says}, and docs/reference/licences.md says {expression}")
    return found


def _installed(name: str) -> str | None:
    if name in BY_HAND:
        return BY_HAND[name]
    try:
        return licence_of(distribution(name))
    except PackageNotFoundError:
        return None


def page() -> str:
    rows, seen = [], set()
    for needed, lock in LOCKS.items():
        for name in locked(lock):
            if name not in seen:
                seen.add(name)
                expression = _installed(name)
                if expression is None:
                    raise SystemExit(
                        f"error: {name} is not installed, or says nothing; add it to BY_HAND in {__file__}"
                    )
                rows.append((name, expression, needed))
    lines = [f"| {name} | {expression} | {needed} |" for name, expression, needed in sorted(rows)]
    return "\n".join([HEAD, "| package | licence | needed for |", "| --- | --- | --- |", *lines, ""])


HEAD = """# Licences

sottovoce is under Apache-2.0. These are the licences of all that it installs, as the packages state them.
`make licences` writes this page from `requirements/`, and `make lint` fails where a package is missing here or has a
licence that is not allowed. The extra `cuda` is not in the lock files: NVIDIA's libraries have licences of their own.
"""


def main() -> None:
    if sys.argv[1:] == ["--check"]:
        found = problems()
        print("\n".join(found), end="\n" if found else "")
        sys.exit(1 if found else 0)
    PAGE.write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    main()
