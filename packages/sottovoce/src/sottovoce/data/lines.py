"""The lines of a text file: plain or packed, in any encoding, one at a time, never a whole file."""

from __future__ import annotations

import bz2
import codecs
import gzip
import io
import lzma
import zlib
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

from sottovoce_evidence.errors import SettingError, SottoError

PACKED = (".gz", ".zst", ".bz2", ".xz")
MANY_BLANK = 64  # blank lines, after which more are expected: looking ahead costs as much as reading some
LONGEST_LINE = 64 * 2**20  # bytes: a longer line is a file without line ends, which may not fit in memory
ONE_OBJECT = "put one whole object on each line (jq -c '.[]')"
NOT_UTF8 = "text is not UTF-8; convert the file (iconv -f LATIN1 -t UTF-8), or name its encoding ({encoding.name})"
_BUFFER = 2**18
_ARROWS_WINDOW = 2**27  # bytes: Arrow unpacks .zst with a window up to this, and `zstd --long=31` writes 2 GiB
_WINDOWS, _LATIN = "cp1252", "latin-1"  # the second has a letter for every byte


def format_of(path: Path) -> tuple[str, str]:
    """`a.jsonl.gz` -> (".jsonl", ".gz"), `a.csv` -> (".csv", "")."""
    suffixes = [suffix.lower() for suffix in path.suffixes]
    packed = suffixes.pop() if suffixes and suffixes[-1] in PACKED else ""
    return (suffixes[-1] if suffixes else ""), packed


def lines(path: str | Path) -> Generator[str, None, None]:
    """The lines of a UTF-8 file with their ends, unpacked if its name says that it is packed."""
    with opened(Path(path)) as reader:
        yield from iter(reader.next, "")


class LineReader:
    """The lines of an open file. `number` is the number of the last line.

    Where `guess` is on, a line that is not UTF-8 is read as Windows-1252: the line alone decides, so nobody's text
    changes how another's is read. `guessed` counts such lines.
    """

    def __init__(self, path: Path, stream: io.BufferedReader, guess: bool = False, number: int = 0) -> None:
        self.number, self.guessed = number, 0
        self._path, self._stream, self._guess = path, stream, guess

    def next(self) -> str:
        """The next line with its end; empty at the end of the file."""
        raw = self._stream.readline(LONGEST_LINE + 1)
        if not raw:
            return ""
        self.number += 1
        if len(raw) > LONGEST_LINE:
            raise SottoError(f"{self._path}:{self.number}: a line of more than {LONGEST_LINE} bytes; {ONE_OBJECT}")
        try:
            # Only the first line can begin with a byte order mark. A mark alone is a blank line.
            return raw.decode("utf-8-sig" if self.number == 1 else "utf-8") or "\n"
        except UnicodeDecodeError:
            if not self._guess:
                raise SettingError(f"{self._path}:{self.number}: {NOT_UTF8}", encoding=None) from None
            self.guessed += 1
            return _guessed(raw)

    def block(self, size: int) -> bytes:
        """The next lines, whole, of about so many bytes; empty at the end of the file. A line too long is cut off."""
        raw = self._stream.read(size)
        if raw and not raw.endswith(b"\n"):
            raw += self._stream.readline(LONGEST_LINE + 1)
        self.number += raw.count(b"\n")
        return raw

    def next_filled(self) -> str:
        """The next line that is not blank; empty at the end of the file."""
        blank = 0
        while (line := self.next()).isspace():
            blank += 1
            if blank % MANY_BLANK == 0:
                self.skip_blank()
        return line

    def skip_blank(self, blanks: bytes | None = None) -> None:
        """Skip all blank lines that come next: a small packed file can hold a billion of them."""
        while ahead := self._stream.peek():
            blank = ahead[: len(ahead) - len(ahead.lstrip(blanks))]
            whole = blank.rfind(b"\n") + 1
            if not whole:
                return
            self.number += blank.count(b"\n", 0, whole)
            self._stream.read(whole)
            if whole < len(ahead):
                return


class Position:
    """How many bytes of some files have been read, before they are unpacked."""

    def __init__(self) -> None:
        self._before = 0
        self._current: Callable[[], int] = int

    @property
    def bytes(self) -> int:
        return self._before + self._current()

    @contextmanager
    def within(self, path: Path, current: Callable[[], int]) -> Generator[None, None, None]:
        """A file is read, and `current` tells how far."""
        self._current = current
        try:
            yield
        finally:
            self._current = int
            self._before += path.stat().st_size


@contextmanager
def opened(
    path: Path, encoding: str | None = None, *, guess: bool = False, position: Position | None = None
) -> Generator[LineReader, None, None]:
    """A file to be read by line. Without `encoding` it is UTF-8, or UTF-16 if it begins so."""
    must_be_file(path)
    with readable(path), _open(path) as stream:
        found = encoding or _encoding(stream.peek(2)[:2])
        text = stream if found == "utf-8" else io.BufferedReader(_AsUtf8(stream, found), _BUFFER)
        try:
            with (position or Position()).within(path, _tell(stream)), text:
                yield LineReader(path, text, guess and encoding is None)
        except UnicodeError:  # of another encoding: lines of UTF-8 have their own error
            template = "{}: text is not {}; name its encoding with {encoding.name}"
            if encoding is not None:
                known = "UTF-8, UTF-16 and, in tables, lines of Windows-1252 are recognised"
                template = f"{{}}: text is not {{}}; leave {{encoding.name}} out: {known}"
            raise SettingError(template, path, found, encoding=None) from None


def must_be_file(path: Path) -> None:
    if path.is_dir():
        raise SottoError(f"{path} is a folder; name a file")
    if not path.exists():
        raise SottoError(f"{path} does not exist; check the path")


@contextmanager
def readable(path: Path) -> Generator[None, None, None]:
    """Faults of the file system and of packed files become one line."""
    try:
        yield
    except (OSError, EOFError, zlib.error, lzma.LZMAError) as error:
        # Python's own message has the first bytes of the file in it.
        reason = "not gzip, or damaged" if isinstance(error, gzip.BadGzipFile) else one_line(error)
        raise SottoError(f"cannot read {path} ({reason}); check that it is whole and yours to read") from None


def one_line(error: BaseException) -> str:
    return " ".join((getattr(error, "strerror", None) or str(error) or type(error).__name__).split())


def known_encoding(name: str | None) -> bool:
    try:
        return name is None or bool("a".encode(name))
    except LookupError:
        return False


def _open(path: Path) -> io.BufferedReader:
    match format_of(path)[1]:
        case ".gz":
            return io.BufferedReader(cast(io.RawIOBase, gzip.open(path, "rb")), _BUFFER)
        case ".bz2":
            return io.BufferedReader(cast(io.RawIOBase, bz2.open(path, "rb")), _BUFFER)
        case ".xz":
            return io.BufferedReader(cast(io.RawIOBase, lzma.open(path, "rb")), _BUFFER)
        case ".zst":
            import pyarrow as pa

            if _window_of(path) > _ARROWS_WINDOW:
                return io.BufferedReader(_LongZst(path), _BUFFER)
            return io.BufferedReader(pa.input_stream(str(path), compression="zstd"), _BUFFER)
        case _:
            return cast(io.BufferedReader, path.open("rb", _BUFFER))


def _tell(stream: io.BufferedReader) -> Callable[[], int]:
    """How far a file has been read: of a packed one, the bytes before unpacking, where that is known."""
    raw: Any = stream.raw
    if isinstance(raw, gzip.GzipFile):
        packed: Any = raw.fileobj
        return packed.tell
    return stream.tell if isinstance(raw, io.FileIO) else int


def _encoding(start: bytes) -> str:
    if start in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE):
        return "utf-16"
    # Without a mark: a first letter of ASCII has a zero byte next to it.
    zeros = [byte == 0 for byte in start]
    return "utf-16-le" if zeros == [False, True] else "utf-16-be" if zeros == [True, False] else "utf-8"


def _guessed(raw: bytes) -> str:
    try:
        return raw.decode(_WINDOWS)
    except UnicodeDecodeError:
        return raw.decode(_LATIN)


def _window_of(path: Path) -> int:
    """How far back a .zst file refers, in bytes, by the header of its first frame (RFC 8878, section 3.1.1.1)."""
    with path.open("rb") as file:
        header = file.read(6)
    if len(header) < 6 or header[:4] != b"\x28\xb5\x2f\xfd" or header[4] & 0x20:  # no frame, or one without a window
        return 0
    base = 1 << (10 + (header[5] >> 3))
    return base + base // 8 * (header[5] & 7)


class _LongZst(io.RawIOBase):
    """A .zst file with a long window, as the dumps of Reddit have it."""

    def __init__(self, path: Path) -> None:
        try:
            import zstandard
        except ImportError:
            raise SottoError(
                f"{path} was packed with a long window, for which zstandard is needed; `pip install "
                "'sottovoce[dumps]'`, or unpack it (zstd -d --long=31)"
            ) from None
        self._file, self._ready = path.open("rb"), b""
        self._fault: Any = zstandard.ZstdError
        self._unpacker: Any = zstandard.ZstdDecompressor(max_window_size=2**31)
        self._frame: Any = self._unpacker.decompressobj()

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any, /) -> int:
        while not self._ready:
            packed = (self._frame.unused_data if self._frame.eof else b"") or self._file.read(_BUFFER)
            if not packed:
                if self._frame.eof:
                    break
                raise EOFError("it ends in the middle")
            if self._frame.eof:
                self._frame = self._unpacker.decompressobj()
            try:
                self._ready = self._frame.decompress(packed)
            except self._fault as error:
                raise OSError(one_line(error)) from None
        size = min(len(buffer), len(self._ready))
        buffer[:size], self._ready = self._ready[:size], self._ready[size:]
        return size

    def close(self) -> None:
        if not self.closed:
            self._file.close()
        super().close()


class _AsUtf8(io.RawIOBase):
    """A stream of another encoding, as UTF-8: lines are found in bytes."""

    def __init__(self, stream: io.BufferedReader, encoding: str) -> None:
        self._stream, self._decoder, self._ready = stream, codecs.getincrementaldecoder(encoding)(), b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any, /) -> int:
        while not self._ready:
            raw = self._stream.read1(_BUFFER)
            self._ready = self._decoder.decode(raw, final=not raw).encode("utf-8", "surrogatepass")
            if not raw:
                break
        size = min(len(buffer), len(self._ready))
        buffer[:size], self._ready = self._ready[:size], self._ready[size:]
        return size
