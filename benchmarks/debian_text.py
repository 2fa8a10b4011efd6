"""Text of translated manuals, from Debian packages: a record a paragraph, the document as its user.

    apt-get download libreoffice-help-de manpages-de
    python benchmarks/debian_text.py --language de libreoffice-help-de_*.deb > users.jsonl
    python benchmarks/debian_text.py --language de --plain-text --without users.jsonl manpages-de_*.deb > public.txt

It reads HTML, Mallard, DocBook and man pages. It leaves out navigation, examples of code, tables of man pages, text
that was not translated, and each paragraph that it has seen before (`--without` names paragraphs of another output).
It needs `dpkg-deb`. No text of these packages is part of sottovoce.
"""

import argparse
import gzip
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path

SKIPPED = re.compile("aside|button|code|footer|head|header|info|nav|noscript|pre|screen|script|style|title")
SKIPPED_IN_DOCBOOK = re.compile(
    "articleinfo|authorgroup|bookinfo|cmdsynopsis|footnote|indexterm|legalnotice|literallayout|programlisting|refmeta"
    "|remark|revhistory|screen|sect[1-5]info|sectioninfo|chapterinfo|synopsis|title|titleabbrev"
)
INLINE_IN_DOCBOOK = re.compile(
    "accel|acronym|anchor|application|citetitle|classname|command|computeroutput|email|emphasis|envar|filename"
    "|firstterm|foreignphrase|function|glossterm|gui[a-z]+|hardware|interface|inlinemediaobject|keycap|keycombo|keysym"
    "|link|literal|menuchoice|mousebutton|option|parameter|phrase|productname|prompt|quote|replaceable|shortcut"
    "|subscript|superscript|systemitem|trademark|type|ulink|userinput|varname|wordasword|xref"
)
VOID = re.compile("area|base|br|col|hr|img|include|input|link|meta|wbr")
INLINE = re.compile(
    "a|abbr|acronym|app|b|cmd|em|emph|file|font|gui|guiseq|i|kbd|key|keyseq|link|q|small|span|strong|sub|sup|tt|u|var"
)
BOILERPLATE = re.compile(
    r"navheader|navfooter|\btoc\b|\bMAC\b|programlisting|\bscreen\b|legalnotice|\bcode\b|contents|tocwrapper"
)
ESCAPES = {"\\-": "-", "\\(aq": "'", "\\(dq": '"', "\\(co": "©", "\\e": "\\", "\\ ": " ", "\\~": " "}
_ENTITIES = {name: f"&{name};" for name in ("amp", "lt", "gt", "quot", "apos", "nbsp")}  # the parser knows these
LATIN = {"de"}
MIN_CHARACTERS = 20
"""Shorter paragraphs are titles and labels."""


class _Paragraphs(HTMLParser):
    """The paragraphs of an HTML, Mallard or DocBook page."""

    def __init__(self, docbook: bool = False) -> None:
        super().__init__(convert_charrefs=True)
        self._left_out = SKIPPED_IN_DOCBOOK if docbook else SKIPPED
        self._inline = INLINE_IN_DOCBOOK if docbook else INLINE
        self.paragraphs: list[str] = []
        self._parts: list[str] = []
        self._skipped: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if VOID.fullmatch(tag):
            if tag in ("br", "hr"):
                self._parts.append(" ")
            return
        if self._skipped:
            self._skipped.append(tag)
            return
        # The class of a body is that of its page.
        marked = tag != "body" and BOILERPLATE.search(dict(attrs).get("class") or "")
        if self._left_out.fullmatch(tag) or marked:
            self._skipped.append(tag)
        if not self._inline.fullmatch(tag):
            self._end()

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        del tag, attrs

    def handle_endtag(self, tag: str) -> None:
        if self._skipped:
            while self._skipped and self._skipped.pop() != tag:
                pass
        elif not self._inline.fullmatch(tag):
            self._end()

    def handle_data(self, data: str) -> None:
        if not self._skipped:
            self._parts.append(data)

    def _end(self) -> None:
        self.paragraphs.append("".join(self._parts))
        self._parts = []

    def close(self) -> None:
        super().close()
        self._end()


def paragraphs_of_html(page: str) -> list[str]:
    """Its paragraphs, without navigation and code."""
    parser = _Paragraphs()
    parser.feed(page)
    parser.close()
    return parser.paragraphs


def paragraphs_of_docbook(page: str) -> list[str]:
    """The paragraphs of a DocBook page, without what is about the book. An entity of its own is its name."""
    page = re.sub(r"<!DOCTYPE.*?(\[.*?\])?\s*>", "", page, count=1, flags=re.DOTALL)
    parser = _Paragraphs(docbook=True)
    parser.feed(re.sub(r"&([A-Za-z][\w.-]*);", lambda found: _ENTITIES.get(found[1], found[1]), page))
    parser.close()
    return parser.paragraphs


def paragraphs_of_man(source: str) -> list[str]:
    """The paragraphs of a man page's roff source, without synopsis, examples and tables."""
    paragraphs: list[str] = []
    parts: list[str] = []
    skipped_until = None
    for line in source.splitlines():
        if skipped_until:
            if re.match(skipped_until, line):
                skipped_until = None
            continue
        if line.startswith(("'\\\"", '.\\"', "'")):
            continue
        if line.startswith("."):
            request, _, rest = line[1:].strip().partition(" ")
            if request in ("B", "I", "BR", "IR", "RB", "RI", "BI", "IB", "SM", "SB"):
                pieces = [a or b for a, b in re.findall(r'"([^"]*)"|(\S+)', rest)]
                parts.append((" " if request in ("B", "I", "SM", "SB") else "").join(pieces))
            else:
                ends = {"nf": r"\.fi", "EX": r"\.EE", "TS": r"\.TE", "de": r"\.\.", "ig": r"\.\."}
                skipped_until = ends.get(request)
                paragraphs.append(" ".join(parts))
                parts = []
        elif not line.strip():
            paragraphs.append(" ".join(parts))
            parts = []
        else:
            parts.append(line)
    paragraphs.append(" ".join(parts))
    return [_without_escapes(text) for text in paragraphs]


def _without_escapes(text: str) -> str:
    text = re.sub(r"\\f(\(..|\[[^]]*\]|.)|\\s[-+]?\d|\\[,/&|^:%]|\\\".*", "", text)
    for escape, character in ESCAPES.items():
        text = text.replace(escape, character)
    return re.sub(r"\\\(..|\\\[[^]]*\]|\\\*(\(..|\[[^]]*\]|.)|\\", "", text)


def documents(folder: Path, language: str) -> Iterator[tuple[str, list[str]]]:
    """Each document of an unpacked package with its paragraphs."""
    for path in sorted(folder.rglob("*")):
        if not path.is_file() or path.is_symlink():
            continue
        name = str(path.relative_to(folder))
        if path.suffix in (".html", ".page") and re.search(rf"[/.-]{language}[/.-]", name):
            yield name, paragraphs_of_html(path.read_text("utf-8", "replace"))
        elif path.suffix in (".docbook", ".xml") and re.search(rf"/(help|HTML)/{language}/", name):
            yield name, paragraphs_of_docbook(path.read_text("utf-8", "replace"))
        elif path.suffix == ".gz" and f"/man/{language}/" in name:
            yield name, paragraphs_of_man(gzip.decompress(path.read_bytes()).decode("utf-8", "replace"))


def is_translated(text: str, language: str) -> bool:
    """Whether most letters are of the language's script; for Latin ones, whether it has no English article."""
    letters = [c for c in text if c.isalpha()]
    if language in LATIN:
        return bool(letters) and not re.search(r"\b(the|The)\b", text)
    return 2 * sum(ord(c) > 0x24F for c in letters) > len(letters)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("packages", nargs="+", type=Path)
    parser.add_argument("--language", required=True)
    parser.add_argument("--plain-text", action="store_true")
    parser.add_argument("--without", type=Path)
    arguments = parser.parse_args()
    seen = set()
    if arguments.without:
        seen = {json.loads(line)["text"] for line in arguments.without.open()}
    for package in arguments.packages:
        with tempfile.TemporaryDirectory() as folder:
            subprocess.run(["dpkg-deb", "-x", package, folder], check=True)
            for name, paragraphs in documents(Path(folder), arguments.language):
                for paragraph in paragraphs:
                    text = " ".join(paragraph.split())
                    if len(text) < MIN_CHARACTERS or text in seen or not is_translated(text, arguments.language):
                        continue
                    seen.add(text)
                    record = {"user": f"{package.name.split('_')[0]}/{name}", "text": text}
                    print(text if arguments.plain_text else json.dumps(record, ensure_ascii=False))
                if arguments.plain_text:
                    print()
    sys.stdout.flush()


if __name__ == "__main__":
    main()
