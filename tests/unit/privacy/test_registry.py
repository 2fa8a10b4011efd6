from __future__ import annotations

from dataclasses import dataclass

import pytest

from sottovoce_evidence.errors import SottoError
from sottovoce_evidence.registry import Block, Registry


@dataclass(frozen=True)
class Square(Block):
    size: float
    bright: bool = False


def test_a_block_gets_the_settings_that_its_constructor_asks_for():
    shapes = Registry[Block]("shape.kind", {"square": Square})
    assert shapes.build("square", size=2.0, colour="red") == Square(2.0)
    assert (Square.takes("bright"), Square.takes("colour")) == (True, False)


def test_an_unknown_name_is_refused_with_those_there_are():
    shapes = Registry[Block]("shape.kind", {"square": Square})
    shapes["disc"] = Block
    with pytest.raises(SottoError, match=r"shape\.kind='squares' must be one of square, disc; did you mean"):
        shapes["squares"]
