"""The blocks of a mechanism, by the name that a recipe uses."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from functools import cache
from typing import Any, Generic, TypeVar

from sottovoce_evidence.errors import SottoError, did_you_mean


class Block:
    """A sampler, a clip or an estimator. A subclass is a frozen dataclass."""

    @classmethod
    @cache
    def takes(cls, setting: str) -> bool:
        """Does the constructor ask for this setting?"""
        return setting in inspect.signature(cls).parameters


Kind = TypeVar("Kind", bound=Block)


class Registry(dict[str, type[Kind]], Generic[Kind]):
    """Kinds of a block by name. `setting` is where a recipe names one; an unknown name is refused."""

    def __init__(self, setting: str, kinds: Mapping[str, type[Kind]]):
        super().__init__(kinds)
        self.setting = setting

    def __missing__(self, name: str) -> type[Kind]:
        raise SottoError(f"{self.setting}={name!r} must be one of {', '.join(self)}{did_you_mean(name, self)}")

    def build(self, name: str, **settings: Any) -> Kind:
        """The block of this name, with those of the settings that its constructor asks for."""
        kind = self[name]
        return kind(**{key: value for key, value in settings.items() if kind.takes(key)})
