"""A recipe: plain frozen values with ranges, TOML in and out. It knows no object of the system."""

from __future__ import annotations

import dataclasses
import hashlib
import math
import re
import tomllib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import UnionType
from typing import Any, Protocol, get_args, get_origin, get_type_hints

from sottovoce_evidence import bases
from sottovoce_evidence.errors import SottoError, did_you_mean
from sottovoce_evidence.files import Facts, Json, read_plain, shipped_folder

SYNTHETIC = "demo:"  # as data.store, before a number of users
LARGEST = 2**63 - 1  # of whole numbers: what TOML asks for
_DEEP_KEY = re.compile(r"(?:[\w\"'-]{1,64}[ \t]*\.[ \t]*){32}")


@dataclass(frozen=True)
class Limits:
    """What a value may be: `low` and `high` are allowed, `above` and `below` are not."""

    meaning: str
    low: float | None = None
    above: float | None = None
    high: float | None = None
    below: float | None = None
    choices: tuple[str, ...] = ()
    needed: bool = False  # 0 stands for a value that is not set, and is refused where it is used

    @property
    def range(self) -> str:
        """In words: `> 0 and <= 1`, or nothing."""
        bounds = ((">=", self.low), (">", self.above), ("<=", self.high), ("<", self.below))
        return " and ".join(f"{sign} {bound}" for sign, bound in bounds if bound is not None)

    def contain(self, value: float) -> bool:
        return (
            math.isfinite(value)
            and (self.low is None or value >= self.low)
            and (self.above is None or value > self.above)
            and (self.high is None or value <= self.high)
            and (self.below is None or value < self.below)
        )


def _value(default: Any, meaning: str, **limits: Any) -> Any:
    """A field with its meaning and its limits."""
    return field(default=default, metadata={"limits": Limits(meaning, **limits)})


def _choice(meaning: str, *choices: str) -> Any:
    """A field with one of these values; the first is the default."""
    return _value(choices[0], meaning, choices=choices)


@dataclass(frozen=True)
class Data:
    store: str = _value("", "a folder made by `sotto prepare`, or demo:USERS for the synthetic population")


@dataclass(frozen=True)
class Model:
    kind: str = _choice("the architecture", "lstm", "gru", "stacked_lstm", "gated_cnn", "transformer", "gpt2")
    # What is not set is as the kind has it; what the kind does not have is refused.
    embedding: int | None = _value(None, "size of a word's embedding", low=1, below=65536)
    hidden: int | None = _value(None, "size of the recurrent state, or of what is inside a block", low=1, below=65536)
    layers: int | None = _value(None, "recurrent layers, or blocks, one above the other", low=1, below=257)
    dropout: float | None = _value(None, "chance that dropout zeroes a value between layers", low=0, below=1)
    variational: bool | None = _value(None, "one dropout mask for a whole unroll, on the recurrent state too")
    tied: bool | None = _value(None, "compute logits with the embedding table, not with an output table of its own")
    kernel: int | None = _value(None, "k: words that the wide convolution of a block sees", low=1, below=257)
    bottleneck: int | None = _value(None, "h: channels of the wide convolution", low=1, below=65536)
    adapter_rank: int | None = _value(None, "train adapters of this rank beside frozen matrices", low=1, below=65536)
    adapter_scale: float | None = _value(None, "s: factor of what an adapter adds; not set: 1", above=0)
    adapter_matrices: tuple[str, ...] | None = _value(
        None, "names or patterns of the matrices, such as *query*; not set: all that can have one, but for the output"
    )
    adapter_trains: tuple[str, ...] | None = _value(None, "what is trained whole too: norms, head, names or patterns")
    heads: int | None = _value(None, "attention heads of a transformer", low=1, below=257)
    kv_heads: int | None = _value(None, "heads of keys and values, which the others share", low=1, below=257)
    head_size: int | None = _value(None, "size of an attention head; embedding / heads if not set", low=1, below=65536)
    context: int | None = _value(None, "tokens before it that a token sees: the key-value cache", low=1, below=2**20)
    positions: int | None = _value(None, "learned positions; a longer text is read in pieces", low=2, below=2**20)
    biases: str | None = _value(None, "which products of attention have a bias", choices=("none", "qkv", "attention"))
    qk_norm: bool | None = _value(None, "normalise queries and keys, as in Qwen3")
    norm_eps: float | None = _value(None, "ε under the root of a norm", above=0, below=1)
    rope_base: float | None = _value(None, "base of the rotary positions", above=1)
    rope_scaling: tuple[float, ...] | None = _value(
        None, "of rotary positions as in Llama 3.1: factor, low and high frequency factor, context before", above=0
    )
    initial: str | None = _value(None, "start: english, a folder with a model, none; not set: a base that fits")
    initial_is_public: bool | None = _value(None, "the owner's word that what `initial` was trained on is public")


ADAPTER_KEYS = ("adapter_rank", "adapter_scale", "adapter_matrices", "adapter_trains")


@dataclass(frozen=True)
class Local:
    epochs: int = _value(1, "E: passes over the user's text (FedAvg)", low=1)
    batch: int = _value(8, "B: lanes the user's token stream is cut into", low=1)
    unroll: int = _value(10, "tokens of each lane in one local step", low=1)
    learning_rate: float = _value(6.0, "η: local learning rate", above=0, below=1e38)
    tokens: int = _value(0, "tokens in the one gradient of FedSGD, or of an example of els; 0 is all", low=0)
    gradient_clip: float | None = _value(None, "bound on the L2 norm of the gradient of a local step (FedAvg)", above=0)
    penalty: float = _value(0.0, "weight of a penalty ‖Δ‖² on the update so far (FedAvg)", low=0)
    objective: str = _choice("what a device minimises (FedAvg)", "plain", "rehearsal", "without_forgetting")
    user_share: float = _value(1.0, "λ: share of the user's own text, or target, against forgetting", above=0, high=1)
    public: str | None = _value(None, "folder of `sotto prepare --plain-text`, for rehearsal")


@dataclass(frozen=True)
class Server:
    optimiser: str = _choice("what applies the averaged update", "sgd", "momentum", "adam")
    learning_rate: float = _value(
        1.0, "server learning rate; 1 with sgd is plain federated averaging", above=0, below=1e38
    )
    momentum: float = _value(0.9, "momentum of the momentum optimiser", low=0, below=1)
    schedule: tuple[tuple[float, ...], ...] = _value((), "pairs [round, factor of learning_rate] from round 1 on")


@dataclass(frozen=True)
class Privacy(Facts, sparse=True):
    mode: str = _choice("a guarantee, parts of one (ε is infinite), or no noise", "private", "experiment", "none")
    users: int = _value(0, "K: the declared population, a public constant", low=0, needed=True)
    cohort: float = _value(0.0, "C̃: expected users a round; q = cohort / users", low=0, needed=True)
    sampling: str = _value("poisson", "how a cohort is drawn")
    min_separation: int = _value(0, "b: rounds from one that a user joins to the next, for min_separation", low=0)
    participations: int = _value(0, "k: rounds that a user joins at most, for min_separation; 0: as many as fit", low=0)
    examples_per_user: int = _value(0, "G: examples of a user at most, for els; cohort then counts examples", low=0)
    weight_cap: float = _value(1.0, "ŵ: tokens that give a user full weight, w = min(n/ŵ, 1)", low=1)
    total_weight: float = _value(
        0.0, "W: declared sum of the weights (W_min where it is clipped); 0: the population", low=0
    )
    clipping: str = _value("flat", "how an update is bounded")
    clip_when: str = _choice("when an update is clipped: after every local step, or at the end", "every_step", "end")
    clip_norm: float = _value(15.0, "S: bound on the L2 norm of a user's update", above=0)
    clip_schedule: tuple[tuple[float, ...], ...] = _value((), "pairs [round, factor of clip_norm] from round 1 on")
    adaptive_quantile: float | None = _value(None, "γ: the clip norm follows this quantile of norms", above=0, below=1)
    adaptive_bit_noise: float = _value(0.0, "σ_b: noise on the count of unclipped users; 0 is cohort/20", low=0)
    estimator: str = _value("fixed_denominator", "how updates are averaged")
    noise_multiplier: float | None = _value(None, "z: noise_std over the sensitivity", low=0)
    noise: str = _value("independent", "noise of the rounds: independent, or correlated by banded or blt")
    noise_bands: int = _value(0, "bands of the strategy matrix, for banded; 0: the least separation, 64 at most", low=0)
    noise_buffers: int = _value(4, "buffers of the strategy matrix, for blt", low=1, below=11)
    noise_coefficients: tuple[float, ...] = _value((), "of the strategy matrix (blt: scales); found if empty", low=0)
    noise_decays: tuple[float, ...] = _value((), "of the buffers of blt; found if empty", low=0)
    noise_schedule: tuple[tuple[float, ...], ...] = _value((), "pairs [round, factor of the noise] from round 1 on")
    noise_std: float | None = _value(None, "σ given directly (experiment mode only)", low=0)
    epsilon: float | None = _value(None, "ε budget; without noise_multiplier, z is found for it", above=0)
    delta: float = _value(1e-6, "δ: the chance that the guarantee does not hold", above=0, below=1)
    accountant: str = _choice("how ε is computed; auto: pld where it applies", "auto", "pld", "rdp", "moments")
    secrets: str = _choice("source of sampling and noise; others can guess run.seed", "entropy", "seeded")

    @property
    def places(self) -> int:
        """What a cohort is drawn from: the declared users, or all their examples."""
        return self.users * max(1, self.examples_per_user)

    @property
    def rate(self) -> float:
        """The chance of each to join a round."""
        return self.cohort / self.places

    @property
    def declared_weight(self) -> float:
        """W: the declared sum of the weights, one for each place if it is not given."""
        return self.total_weight or float(self.places)


SEPARATION_KEYS = ("min_separation", "participations")
CORRELATION_KEYS = ("noise", "noise_bands", "noise_buffers", "noise_coefficients", "noise_decays")


@dataclass(frozen=True)
class Run:
    algorithm: str = _choice(
        "UserUpdate; els: gradients of sampled examples; central: SGD on pooled text, never private",
        "fedavg",
        "fedsgd",
        "els",
        "central",
    )
    rounds: int = _value(100, "T: rounds of training", low=1)
    seed: int = _value(0, "seed of the initial weights and of public orders", low=0)
    evaluate_every: int = _value(20, "rounds between evaluations on held-out users; 0 is never", low=0)
    evaluate_users: int = _value(200, "held-out users in an evaluation; 0 is all", low=0)
    checkpoint_every: int = _value(
        10, "most rounds between checkpoints; nothing of a round is shown before one holds it", low=1
    )
    kernels: str = _choice(
        "auto: kernels that are proved on the device; any_model: a GPU program for any model",
        "auto",
        "any_model",
        "off",
    )
    block: int = _value(0, "users computed at once on a device; 0 chooses by model and device", low=0, below=2**15 + 1)
    devices: int = _value(0, "devices of a process that train users; 0 is all there are", low=0)


@dataclass(frozen=True)
class Audit:
    """Canaries: made-up users who train with the others, on top of the declared population."""

    users: int = _value(0, "canary users of an audit in one run, each in or out by a secret coin; 40 at least", low=0)
    secrets: int = _value(0, "secret sequences of words that canary users hold", low=0)
    holders: tuple[int, ...] = _value((1, 4, 16), "numbers of users who hold a secret, used in turn", low=1)
    copies: int = _value(0, "times that a holder wrote the secret; 0 fills their text", low=0)
    prefix: int = _value(2, "first words of a secret, which an attacker knows", low=1)
    words: int = _value(3, "words of a secret that are to be guessed", low=1)

    @property
    def plants(self) -> bool:
        return bool(self.users or self.secrets)


@dataclass(frozen=True)
class Federation(Facts, sparse=True):
    """How the answers of real devices are added up. A simulation has no server to hide from."""

    survivors: int = _value(0, "devices in a masked sum, at least; 0: none is masked, the server sees each's", low=0)
    colluding: int = _value(0, "t: devices that may collude with the server, at most", low=0)
    noise: str = _choice("who adds the noise: the server, or devices before they are masked", "server", "devices")
    server_noise_multiplier: float | None = _value(
        None, "z of the noise of honest devices, which holds against the server; not set: noise_multiplier", above=0
    )
    participations: int = _value(0, "devices' noise: rounds that a user joins at most; 0: by the sampling", low=0)
    max_silos: int = _value(1, "m: silos (or devices) that one person may be a user of; each clips to S/m", low=1)

    @property
    def masked(self) -> bool:
        """Does the server see the sum over many devices alone, and not that of each?"""
        return self.survivors > 0


class HasRecipe(Protocol):
    """A run's folder. `runs` does not know recipes, and recipes do not know `runs`."""

    @property
    def recipe_file(self) -> Path: ...


@dataclass(frozen=True)
class Recipe:
    """All that defines a run, before any data is read."""

    data: Data = Data()
    model: Model = Model()
    local: Local = Local()
    server: Server = Server()
    privacy: Privacy = Privacy()
    run: Run = Run()
    audit: Audit = Audit()
    federation: Federation = Federation()

    @staticmethod
    def load(source: str | Path) -> Recipe:
        """From a TOML file, whose relative paths start at its own folder, or by the name of a shipped recipe."""
        path = Path(source)
        if path.suffix == ".toml" or path.is_file():
            recipe, folder = Recipe._read(path), path.parent
            return recipe if folder == Path() else recipe.with_paths(lambda found: str(folder / found))
        shipped = shipped_folder("recipes") / f"{source}.toml"
        if not shipped.is_file():
            names = shipped_recipes()
            raise SottoError(
                f"no recipe {str(source)!r}: neither a file nor one of {', '.join(names)}"
                f"{did_you_mean(str(source), names)}"
            )
        return Recipe.parse(shipped.read_text(encoding="utf-8"), str(source))

    @staticmethod
    def of(run: HasRecipe) -> Recipe:
        """The recipe of a run's folder, or of a release, whose names of folders are no paths."""
        return Recipe._read(run.recipe_file)

    @staticmethod
    def _read(path: Path) -> Recipe:
        try:
            text = read_plain(path).decode()
        except FileNotFoundError:
            raise SottoError(f"there is no recipe {str(path)!r}; `sotto init` makes one") from None
        except (OSError, UnicodeDecodeError) as error:
            why = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
            raise SottoError(f"cannot read the recipe {str(path)!r}: {why}") from None
        return Recipe.parse(text, str(path))

    def with_paths(self, of: Callable[[str], str]) -> Recipe:
        """The same with `of` each path in it. Names, such as those of synthetic people and shipped bases, are none."""
        store, initial, public = self.data.store, self.model.initial, self.local.public
        sections: dict[str, Mapping[str, Any]] = {}
        if store and not store.startswith(SYNTHETIC):
            sections["data"] = {"store": of(store)}
        if initial is not None and not bases.is_name(initial):
            sections["model"] = {"initial": of(initial)}
        if public is not None:
            sections["local"] = {"public": of(public)}
        return self.replace(**sections)

    @staticmethod
    def parse(text: str, name: str = "recipe") -> Recipe:
        try:
            if _DEEP_KEY.search(text):  # the parser takes hours over a key of a hundred thousand parts
                raise RecursionError
            values = tomllib.loads(text)
        except (ValueError, RecursionError) as error:  # the latter by lists in lists, the former by endless numbers too
            hint = "" if Path(name).suffix in ("", ".toml") else "; is it a recipe? `sotto init` writes one"
            raise SottoError(f"{name} is not valid TOML: {_why_not(error)}{hint}") from None
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
        values, texts = self.to_dict(), {}
        for setting in settings:
            path, equals, text = setting.partition("=")
            section, dot, key = path.strip().partition(".")
            if not (equals and dot and key):
                raise SottoError(f"--set {setting!r} must look like section.key=value, for example run.rounds=20")
            if texts.setdefault((section, key), text.strip()) != text.strip():
                raise SottoError(f"--set gives {section}.{key} two values; give it once")
            kinds = get_type_hints(SECTIONS[section]) if section in SECTIONS else {}
            value = _from_text(text.strip(), kinds[key], f"{section}.{key}") if key in kinds else text
            values.setdefault(section, {})[key] = value
        return Recipe.from_dict(values, "--set")

    def to_dict(self) -> dict[str, Json]:
        """Every section, with every key that is set: what another version takes for granted changes nothing."""
        return {
            section: {key: value for key, value in keys.items() if value is not None}
            for section, keys in dataclasses.asdict(self).items()
        }

    def to_toml(self) -> str:
        import tomli_w

        return tomli_w.dumps(self.to_dict())

    def sha256(self) -> str:
        return hashlib.sha256(self.to_toml().encode()).hexdigest()


SECTIONS: dict[str, type] = get_type_hints(Recipe)


def shipped_recipes() -> list[str]:
    """The names of the recipes in the package."""
    return sorted(path.stem for path in shipped_folder("recipes").glob("*.toml"))


def _build(kind: type, values: Mapping[str, Any], section: str) -> Any:
    hints = get_type_hints(kind)
    fields = {item.name: item for item in dataclasses.fields(kind)}
    checked = {}
    for key, value in values.items():
        if key not in fields:
            raise SottoError(f"unknown key {section}.{key}{did_you_mean(key, fields)}")
        checked[key] = _check(value, hints[key], fields[key].metadata["limits"], f"{section}.{key}")
    return kind(**checked)


def _check(value: Any, kind: Any, limits: Limits, name: str) -> Any:
    """The value, where its type and range are those of the key."""
    wanted, meaning = plain_type(kind), f"({limits.meaning})"
    if value is None and wanted is not kind:
        return None
    if get_origin(wanted) is tuple:
        if not isinstance(value, list | tuple):
            raise SottoError(f"{name}={value!r} must be a list {meaning}")
        return tuple(_check(item, get_args(wanted)[0], limits, name) for item in value)
    if type(value) is int and abs(value) > LARGEST:
        raise SottoError(f"{name} is a number beyond ±{LARGEST:g} {meaning}")
    if type(value) is str and "\0" in value:
        raise SottoError(f"{name}={value!r} holds a NUL, which no path or name can {meaning}")
    if wanted is float and type(value) is int:
        value = float(value)
    if type(value) is not wanted:
        raise SottoError(f"{name}={value!r} must be {_KIND_NAMES[wanted]} {meaning}")
    if limits.choices and value not in limits.choices:
        allowed = ", ".join(limits.choices)
        raise SottoError(f"{name}={value!r} must be one of {allowed}{did_you_mean(str(value), limits.choices)}")
    if isinstance(value, int | float) and wanted is not bool and not limits.contain(value):
        raise SottoError(f"{name}={value} must be {'> 0' if limits.needed else limits.range or 'finite'} {meaning}")
    return value


def _why_not(error: Exception) -> str:
    if isinstance(error, RecursionError):
        return "nested too deep"
    if not isinstance(error, tomllib.TOMLDecodeError):
        return "it holds a number of too many digits"
    return str(error).replace("Cannot overwrite a value", "a key is given twice; remove one")


_KIND_NAMES = {int: "a whole number", float: "a number", str: "a text", bool: "true or false"}


def kind_name(kind: Any) -> str:
    if get_origin(kind) is not tuple:
        return _KIND_NAMES[kind]
    inner = get_args(kind)[0]
    return "a list of pairs" if get_origin(inner) is tuple else f"a list of {_KIND_NAMES[inner].removeprefix('a ')}s"


def plain_type(kind: Any) -> type:
    """`float` for `float | None`."""
    if isinstance(kind, UnionType):
        return next(member for member in get_args(kind) if member is not type(None))
    return kind


def _from_text(text: str, kind: Any, name: str) -> Any:
    """A value as TOML has it; a text may do without quotes, and none stands for a value that is not set."""
    wanted = plain_type(kind)
    if text.lower() == "none" and wanted is not kind and name != "model.initial":  # whose "none" is a value
        return None
    if wanted is str:
        return text.strip("\"'")
    if wanted is bool:
        return {"true": True, "false": False}.get(text.lower(), text)
    try:
        return wanted(text) if wanted in (int, float) else tomllib.loads(f"value = {text}")["value"]
    except (ValueError, RecursionError):
        return text  # which is refused by its type
