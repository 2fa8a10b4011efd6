"""A recipe: plain frozen values with ranges, TOML in and out. It knows no object of the system."""

from __future__ import annotations

import dataclasses
import hashlib
import math
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from types import UnionType
from typing import Any, get_args, get_origin, get_type_hints

from sottovoce.errors import SottoError, did_you_mean


def _value(
    default: Any, meaning: str, *, low: float | None = None, above: float | None = None, below: float | None = None,
    choices: tuple[str, ...] | None = None,
) -> Any:  # fmt: skip
    """A field with its meaning and its range: `low` is allowed, `above` and `below` are not."""
    limits = {"meaning": meaning, "low": low, "above": above, "below": below, "choices": choices}
    return field(default=default, metadata=limits)


@dataclass(frozen=True)
class Data:
    store: str = _value("", "a folder made by `sotto prepare`, or demo:USERS for the synthetic population")


@dataclass(frozen=True)
class Model:
    kind: str = _value("lstm", "the architecture", choices=("lstm",))
    embedding: int = _value(96, "size of a word's embedding", low=1, below=65536)
    hidden: int = _value(256, "size of the recurrent state", low=1, below=65536)
    initial: str | None = _value(
        None, "folder of a run whose model is trained further; its vocabulary must be the store's"
    )


@dataclass(frozen=True)
class Local:
    epochs: int = _value(1, "E: passes over the user's text (FedAvg)", low=1)
    batch: int = _value(8, "B: lanes the user's token stream is cut into", low=1)
    unroll: int = _value(10, "tokens of each lane in one local step", low=1)
    learning_rate: float = _value(6.0, "η: local learning rate", above=0)
    tokens: int = _value(0, "tokens in the one gradient of FedSGD; 0 is all of the user's", low=0)
    penalty: float = _value(0.0, "weight of a penalty ‖Δ‖² on the update so far (FedAvg)", low=0)
    objective: str = _value(
        "plain", "what a device minimises; the others keep it from forgetting what the received model knew (FedAvg)",
        choices=("plain", "rehearsal", "without_forgetting"),
    )  # fmt: skip
    user_share: float = _value(
        1.0, "λ: the user's own share of what is rehearsed, or of the target without forgetting", above=0
    )
    public: str | None = _value(None, "folder made by `sotto prepare --plain-text`: the text to rehearse")


@dataclass(frozen=True)
class Server:
    optimiser: str = _value("sgd", "what applies the averaged update", choices=("sgd", "momentum", "adam"))
    learning_rate: float = _value(1.0, "server learning rate; 1 with sgd is plain federated averaging", above=0)
    momentum: float = _value(0.9, "momentum of the momentum optimiser", low=0, below=1)


@dataclass(frozen=True)
class Privacy:
    mode: str = _value(
        "private", "private: a guarantee; experiment: parts of one, ε is infinite; none: no noise",
        choices=("private", "experiment", "none"),
    )  # fmt: skip
    users: int = _value(0, "K: the declared population, a public constant", low=0)
    cohort: float = _value(0.0, "C̃: expected users a round; q = cohort / users", low=0)
    sampling: str = _value("poisson", "how a cohort is drawn", choices=("poisson", "fixed"))
    weight_cap: float = _value(1.0, "ŵ: tokens that give a user full weight, w = min(n/ŵ, 1)", low=1)
    total_weight: float = _value(0.0, "W: declared sum of the weights; 0 is the declared population", low=0)
    min_weight: float = _value(0.0, "W_min of the clipped denominator; 0 is total_weight", low=0)
    clipping: str = _value("flat", "how an update is bounded", choices=("flat", "per_layer", "none"))
    clip_when: str = _value("every_step", "after every local step, or once", choices=("every_step", "end"))
    clip_norm: float = _value(15.0, "S: bound on the L2 norm of a user's update", above=0)
    clip_weighted: bool = _value(False, "bound w·Δ instead of Δ (fixed denominator only)")
    layer_clip_norms: tuple[float, ...] = _value(
        (), "S_j of every layer, for per_layer; empty is S/√m for each", above=0
    )
    clip_schedule: tuple[tuple[float, ...], ...] = _value((), "pairs [round, factor of clip_norm] from round 1 on")
    clip_path: str = _value(
        "steps", "how the clip norm goes from pair to pair", choices=("steps", "linear", "geometric")
    )
    adaptive_quantile: float | None = _value(
        None, "γ: the clip norm follows this quantile of the users' norms, from clip_norm on", above=0, below=1
    )
    adaptive_rate: float = _value(0.2, "η_C: how fast it follows", above=0)
    adaptive_bit_noise: float = _value(0.0, "σ_b: noise on the count of unclipped users; 0 is cohort/20", low=0)
    estimator: str = _value(
        "fixed_denominator", "how updates are averaged",
        choices=("fixed_denominator", "clipped_denominator", "true_average"),
    )  # fmt: skip
    noise_multiplier: float | None = _value(None, "z: noise_std over the sensitivity", low=0)
    noise_schedule: tuple[tuple[float, ...], ...] = _value((), "pairs [round, factor of the noise] from round 1 on")
    noise_std: float | None = _value(None, "σ given directly (experiment mode only)", low=0)
    epsilon: float | None = _value(None, "ε budget; without noise_multiplier, z is found for it", above=0)
    delta: float = _value(1e-6, "δ", above=0, below=1)
    accountant: str = _value("auto", "auto: pld where it applies", choices=("auto", "pld", "rdp", "moments"))
    secrets: str = _value("entropy", "where sampling and noise come from", choices=("entropy", "seeded"))
    randomness: str = _value(
        "standard", "standard: JAX's generator; hardened: ChaCha20 on the host", choices=("standard", "hardened")
    )
    allow_large_delta: bool = _value(False, "train although δ is not below 1/users")


@dataclass(frozen=True)
class Run:
    algorithm: str = _value(
        "fedavg", "UserUpdate of Algorithm 1; central: SGD on pooled text, never private",
        choices=("fedavg", "fedsgd", "central"),
    )  # fmt: skip
    rounds: int = _value(100, "T", low=1)
    seed: int = _value(0, "initial weights and public order", low=0)
    evaluate_every: int = _value(20, "rounds between evaluations on held-out users; 0 is never", low=0)
    evaluate_users: int = _value(200, "held-out users in an evaluation; 0 is all", low=0)
    checkpoint_every: int = _value(10, "rounds between checkpoints", low=1)
    kernels: str = _value(
        "auto", "auto: kernels written for the model and the device, where there are any", choices=("auto", "off")
    )
    block: int = _value(
        0, "users computed at once on a device; 0 chooses by model size and device", low=0, below=2**15 + 1
    )
    devices: int = _value(0, "devices of a process that users are shared out over; 0 is all there are", low=0)


SECTIONS: dict[str, type] = {
    "data": Data, "model": Model, "local": Local, "server": Server, "privacy": Privacy, "run": Run,
}  # fmt: skip


@dataclass(frozen=True)
class Recipe:
    """All that defines a run, before any data is read."""

    data: Data = Data()
    model: Model = Model()
    local: Local = Local()
    server: Server = Server()
    privacy: Privacy = Privacy()
    run: Run = Run()

    @staticmethod
    def load(source: str | Path) -> Recipe:
        """From a TOML file, or by the name of a shipped recipe."""
        path = Path(source)
        if path.suffix == ".toml" or path.is_file():
            try:
                text = path.read_text(encoding="utf-8")
            except (OSError, UnicodeDecodeError) as error:
                raise SottoError(f"cannot read the recipe {str(path)!r}: {error}") from None
            return Recipe.parse(text, str(path))
        shipped = resources.files("sottovoce") / "recipes" / f"{source}.toml"
        if not shipped.is_file():
            names = shipped_recipes()
            raise SottoError(
                f"no recipe {str(source)!r}: neither a file nor one of {', '.join(names)}"
                f"{did_you_mean(str(source), names)}"
            )
        return Recipe.parse(shipped.read_text(encoding="utf-8"), str(source))

    @staticmethod
    def parse(text: str, name: str = "recipe") -> Recipe:
        try:
            values = tomllib.loads(text)
        except tomllib.TOMLDecodeError as error:
            raise SottoError(f"{name} is not valid TOML: {error}") from None
        return Recipe.from_dict(values, name)

    @staticmethod
    def from_dict(values: Mapping[str, Any], name: str = "recipe") -> Recipe:
        for section, keys in values.items():
            if section not in SECTIONS:
                raise SottoError(f"{name}: unknown section [{section}]{did_you_mean(section, SECTIONS)}")
            if not isinstance(keys, Mapping):
                raise SottoError(f"{name}: {section} must be a section, [{section}], not the value {keys!r}")
        return Recipe(**{section: _build(kind, values.get(section, {}), section) for section, kind in SECTIONS.items()})

    def replace(self, **sections: Mapping[str, Any]) -> Recipe:
        """A copy with some values changed: `recipe.replace(run={"rounds": 20})`."""
        values = self.to_dict()
        for section, keys in sections.items():
            values.setdefault(section, {}).update(keys)
        return Recipe.from_dict(values)

    def with_settings(self, settings: Iterable[str]) -> Recipe:
        """Apply `section.key=value` texts, as given to `--set`."""
        values = self.to_dict()
        for setting in settings:
            path, equals, text = setting.partition("=")
            section, dot, key = path.strip().partition(".")
            if not (equals and dot and key):
                raise SottoError(f"--set {setting!r} must look like section.key=value, for example run.rounds=20")
            if section not in SECTIONS:
                raise SottoError(f"--set {setting!r}: unknown section {section!r}{did_you_mean(section, SECTIONS)}")
            fields = get_type_hints(SECTIONS[section])
            if key not in fields:
                raise SottoError(f"--set {setting!r}: unknown key {key!r} in [{section}]{did_you_mean(key, fields)}")
            values.setdefault(section, {})[key] = _from_text(text.strip(), fields[key], f"{section}.{key}")
        return Recipe.from_dict(values, "--set")

    def to_dict(self) -> dict[str, dict[str, Any]]:
        sections = dataclasses.asdict(self)
        return {
            section: {key: value for key, value in keys.items() if value is not None}
            for section, keys in sections.items()
        }

    def to_toml(self) -> str:
        import tomli_w

        return tomli_w.dumps(self.to_dict())

    def sha256(self) -> str:
        return hashlib.sha256(self.to_toml().encode()).hexdigest()


def shipped_recipes() -> list[str]:
    """The names of the recipes in the package."""
    folder = resources.files("sottovoce") / "recipes"
    return sorted(entry.name.removesuffix(".toml") for entry in folder.iterdir() if entry.name.endswith(".toml"))


def _build(kind: type, values: Mapping[str, Any], section: str) -> Any:
    hints = get_type_hints(kind)
    fields = {item.name: item for item in dataclasses.fields(kind)}
    checked = {}
    for key, value in values.items():
        if key not in fields:
            raise SottoError(f"unknown key {section}.{key}{did_you_mean(key, fields)}")
        checked[key] = _check(value, hints[key], fields[key].metadata, f"{section}.{key}")
    return kind(**checked)


def _check(value: Any, kind: Any, limits: Mapping[str, Any], name: str) -> Any:
    wanted = _plain_type(kind)
    if value is None and wanted is not kind:
        return None
    if get_origin(wanted) is tuple:
        if not isinstance(value, list | tuple):
            raise SottoError(f"{name}={value!r} must be a list; it is {limits['meaning']}")
        return tuple(_check(item, get_args(wanted)[0], limits, name) for item in value)
    if wanted is float and type(value) is int:
        value = float(value)
    if type(value) is not wanted:
        raise SottoError(f"{name}={value!r} must be {_KIND_NAMES[wanted]}; it is {limits['meaning']}")
    if limits["choices"] and value not in limits["choices"]:
        allowed = ", ".join(limits["choices"])
        raise SottoError(f"{name}={value!r} must be one of {allowed}{did_you_mean(str(value), limits['choices'])}")
    if wanted in (int, float):
        _check_range(value, limits, name)
    return value


def _check_range(value: float, limits: Mapping[str, Any], name: str) -> None:
    low, above, below = limits["low"], limits["above"], limits["below"]
    inside = (
        math.isfinite(value)
        and (low is None or value >= low)
        and (above is None or value > above)
        and (below is None or value < below)
    )
    if not inside:
        bounds = [f">= {low}" if low is not None else "", f"> {above}" if above is not None else ""]
        bounds.append(f"< {below}" if below is not None else "")
        allowed = " and ".join(bound for bound in bounds if bound) or "finite"
        raise SottoError(f"{name}={value} must be {allowed}; it is {limits['meaning']}")


_KIND_NAMES = {int: "a whole number", float: "a number", str: "a text", bool: "true or false"}


def _plain_type(kind: Any) -> type:
    """`float` for `float | None`."""
    if isinstance(kind, UnionType):
        return next(member for member in get_args(kind) if member is not type(None))
    return kind


def _from_text(text: str, kind: Any, name: str) -> Any:
    wanted = _plain_type(kind)
    if text.lower() == "none" and wanted is not kind:
        return None
    if wanted is str:
        return text.strip("\"'")
    if get_origin(wanted) is tuple:
        try:
            return tomllib.loads(f"value = {text}")["value"]
        except tomllib.TOMLDecodeError:
            raise SottoError(f"{name}={text} must be a list such as [1.0, 2.0] or [[1, 1.0], [100, 0.5]]") from None
    if wanted is bool:
        if text.lower() in ("true", "false"):
            return text.lower() == "true"
    else:
        try:
            return wanted(text)
        except ValueError:
            pass
    raise SottoError(f"{name}={text} must be {_KIND_NAMES[wanted]}")
