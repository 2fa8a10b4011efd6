"""What a device checks, draws and sends."""

from __future__ import annotations

import errno
import json
import os
from dataclasses import replace

import jax
import numpy as np
import pytest

from fleets import FEDERATION, Seat, make_device, seated_device, some_of, tiny_recipe
from masked_fleets import node_key
from sottovoce.build.assembly import assemble
from sottovoce.federation import device as devices
from sottovoce.federation import sizes
from sottovoce.federation.limits import Limits, Participation
from sottovoce.federation.masking.context import context_of
from sottovoce.federation.masking.messages import Forwarded, KeyList, read_advert, read_shares, read_vector
from sottovoce.federation.members import BY_DEVICE, KnownMember, Membership
from sottovoce.federation.messages import Code, Contribution, Nothing, Task, digest, read_answer, unpack
from sottovoce.federation.roster import Enrolment
from sottovoce.federation.rounds import for_devices
from sottovoce.privacy.estimators import WEIGHT_STEP
from sottovoce_evidence import accounting
from sottovoce_evidence.errors import SottoError
from sottovoce_evidence.recipe import Recipe


@pytest.fixture(scope="module")
def assembly(store):
    return assemble(tiny_recipe("nowhere"), store)


@pytest.fixture(scope="module")
def task(assembly, vocabulary) -> Task:
    return Task(
        version=devices.VERSION, federation=FEDERATION, vocabulary=vocabulary.fingerprint, run="spring", round=1,
        recipe=for_devices(assembly.recipe).to_dict(), clip_norms=np.array([0.3], np.float32),
        key=np.array([1, 2], np.uint32), leaves=[np.asarray(leaf) for leaf in jax.tree.leaves(assembly.model)],
    )  # fmt: skip


def changed(task: Task, **sections) -> Task:
    return replace(task, recipe=Recipe.from_dict(task.recipe).replace(**sections).to_dict())


def rounds_joined(device, task, rounds=range(1, 41)) -> list[int]:
    """How many users contribute to each of some rounds. They do not train: it is who joins that counts."""
    device._train = lambda task, assembly, model, rows, name: Contribution(name, len(rows), 0, np.zeros(1, int), [])
    answers = [read_answer(device.answer(replace(task, round=n).to_bytes())) for n in rounds]
    return [answer.users for answer in answers]


def code_of(device, message: bytes) -> Code | None:
    answer = read_answer(device.answer(message))
    return answer.code if isinstance(answer, Nothing) else None


@pytest.mark.slow
def test_a_coin_follows_from_the_secret_and_the_round_of_a_run_alone(task, store, tmp_path):
    """Asked again, or after a restart, it falls as it fell; another secret or run is another coin."""
    devices = [make_device(tmp_path / str(n), store, "silo", 0, 13, secret=s) for n, s in enumerate((0, 0, 1))]
    first = rounds_joined(devices[0], task)
    assert rounds_joined(devices[0], task) == first
    assert rounds_joined(devices[1], task) == first
    assert rounds_joined(devices[2], task) != first
    assert rounds_joined(make_device(tmp_path / "new", store, "silo", 0, 13), replace(task, run="autumn")) != first
    # A coin a registered user: 40 rounds of 13 coins at q = 6/13 are 240 heads, give or take 11.
    assert 195 < sum(first) < 285


@pytest.mark.slow
def test_a_registered_user_without_text_is_drawn_and_adds_nothing(task, store, tmp_path):
    """The coins of the others do not depend on it."""
    whole = make_device(tmp_path / "a", store, "silo", 0, 13)
    fewer = make_device(tmp_path / "b", store, "silo", 0, 12)
    fewer._enrolled = replace(fewer._enrolled, users=13)
    more, less = rounds_joined(whole, task), rounds_joined(fewer, task)
    assert all(a - b in (0, 1) for a, b in zip(more, less, strict=True))
    assert 5 < sum(more) - sum(less) < 33  # about q of the rounds


def test_a_device_sends_sums_of_clipped_updates_in_whole_steps(task, assembly, store, tmp_path):
    device = make_device(tmp_path, store, "silo", 0, 13)
    answer = read_answer(device.answer(task.to_bytes()))
    assert isinstance(answer, Contribution)
    grid = assembly.algorithm.mechanism.grid(task.clip_norms)
    norm = np.sqrt(sum(np.sum((leaf * grid) ** 2.0) for leaf in answer.leaves))
    assert 0 < norm <= 0.3 * answer.weight * WEIGHT_STEP
    assert all(leaf.dtype == np.int32 for leaf in answer.leaves)


@pytest.mark.slow
def test_what_users_draw_in_training_follows_from_the_devices_own_secret(task, store, tmp_path):
    """Else whoever knows the task knows what each row draws, and one user less moves the rows of a silo's others."""
    everybody = changed(task, run={"algorithm": "fedsgd"}, local={"tokens": 3}, privacy={"cohort": 13})
    sent = [
        read_answer(make_device(tmp_path / str(n), store, "silo", 0, 13, secret=secret).answer(everybody.to_bytes()))
        for n, secret in enumerate((0, 0, 1))
    ]
    assert all(isinstance(answer, Contribution) and answer.users == 13 for answer in sent)
    first, again, other = ([leaf.tobytes() for leaf in answer.leaves] for answer in sent)
    assert first == again != other


def test_a_device_answers_one_task_a_round(task, store, tmp_path):
    device = make_device(tmp_path, store, "silo", 0, 13)
    first = device.answer(task.to_bytes())
    assert device.answer(task.to_bytes()) == first  # a retried message is the same contribution
    other = replace(task, leaves=[leaf + 1 for leaf in task.leaves])
    assert code_of(device, other.to_bytes()) == Code.TWICE
    # Also after a restart: it is on disk.
    assert code_of(make_device(tmp_path, store, "silo", 0, 13), other.to_bytes()) == Code.TWICE


def test_caps_on_rounds_and_separation_hold_for_every_user(task, store, tmp_path):
    device = make_device(tmp_path, store, "silo", 0, 13, limits=Limits(rounds=4, min_separation=5))
    rounds_joined(device, task, range(1, 80))
    by_user: dict[int, list[int]] = {}
    for (_, number), rows in device._participation._joined.items():
        for row in rows:
            by_user.setdefault(row, []).append(number)
    assert max(map(len, by_user.values())) == 4
    assert min(np.diff(sorted(rounds)).min() for rounds in by_user.values()) >= 5


@pytest.mark.parametrize(
    ("limits", "sections"),
    [
        (Limits(clip_norm=0.2), {}),
        (Limits(user_rate=0.4), {}),
        (Limits(silos=2), {}),
        (Limits(steps=3), {}),
        (Limits(steps=9), {"local": {"epochs": 2}}),
        (Limits(parameters=100), {}),
        (Limits(), {"privacy": {"mode": "none", "noise_multiplier": None}}),
        (Limits(), {"privacy": {"sampling": "fixed"}}),
        (Limits(), {"privacy": {"secrets": "seeded"}}),
        (Limits(), {"run": {"algorithm": "central"}, "privacy": {"mode": "none", "noise_multiplier": None}}),
    ],
)
def test_more_than_the_owner_allows_is_refused(task, store, tmp_path, limits, sections):
    device = make_device(tmp_path, store, "silo", 0, 13, limits=limits)
    assert code_of(device, changed(task, **sections).to_bytes()) == Code.LIMITS
    assert not (tmp_path / "silo.jsonl").exists()


TALL = {"kind": "transformer", "embedding": 8, "hidden": 8, "layers": 1, "heads": 1}
SEPARATELY = {"sampling": "min_separation", "min_separation": 3, "cohort": 3}


@pytest.mark.parametrize(
    "sections",
    [
        {"model": {"embedding": 40_000, "hidden": 40_000}},
        {"model": {"embedding": 40_000, "hidden": 40_000, "adapter_rank": 1}},
        {"model": {**TALL, "head_size": 65_535, "context": 2**20 - 1}},  # no parameters: what attention remembers
        {"model": {"embedding": 1000, "hidden": 1000, "adapter_rank": 900}},
        {"run": {"rounds": 10**12}, "federation": {"survivors": 2, "noise": "devices"}},
        {"privacy": {**SEPARATELY, "participations": 10**12}},
        {"privacy": {**SEPARATELY, "noise": "blt"}},
        {"privacy": {"noise_multiplier": None, "epsilon": 1.0}},
        {"privacy": {**SEPARATELY, "noise": "banded", "noise_coefficients": [1.0] * 5000}},
    ],
)
def test_what_a_recipe_would_make_a_device_hold_is_looked_at_before_anything_is_made(
    task, store, tmp_path, monkeypatch, sections
):
    made = []
    monkeypatch.setattr(devices, "assemble", lambda *_: made.append(1))
    limits = Limits(parameters=100_000, frozen_parameters=30_000_000)
    device = make_device(tmp_path, store, "silo", 0, 13, limits=limits)
    assert code_of(device, changed(task, **sections).to_bytes()) == Code.LIMITS
    assert not made


def test_a_run_whose_training_does_not_fit_the_machine_is_refused(task, store, tmp_path, monkeypatch):
    """Counted by shapes, for as many users as are computed at once, whoever has text."""
    for bytes_here, expected in ((2**40, None), (1000, Code.LIMITS)):
        monkeypatch.setattr(sizes, "memory_for_training", lambda bytes_here=bytes_here: bytes_here)
        device = make_device(tmp_path / str(bytes_here), store, "silo", 0, 13)
        device._draw = lambda task, assembly: np.array([0])
        rounds_joined(device, task, rounds=())  # does not train
        assert code_of(device, task.to_bytes()) == expected


def test_the_clip_norm_that_counts_is_the_one_of_the_round(task, store, tmp_path):
    device = make_device(tmp_path, store, "silo", 0, 13, limits=Limits(clip_norm=1.0))
    for wrong in (1.5, 0.31, 0.29, 1e-24, 1e-35, 0.0, -0.1, np.nan):  # the recipe has 0.3, and it does not adapt
        asked = replace(task, clip_norms=np.array([wrong], np.float32))
        assert code_of(device, asked.to_bytes()) == Code.LIMITS


def test_a_clip_norm_that_adapts_stays_within_the_range_of_float32(task, store, tmp_path):
    """Beneath it nothing would be clipped, and noise is in units of the norm that is sent."""
    adapting = changed(task, privacy={"adaptive_quantile": 0.5, "adaptive_bit_noise": 6.0})
    for number, (norm, code) in enumerate(((0.2, None), (1e-8, None), (1e-10, Code.LIMITS), (1e-35, Code.LIMITS))):
        device = make_device(tmp_path / str(number), store, "silo", 0, 13)
        asked = replace(adapting, clip_norms=np.array([norm], np.float32))
        answer = read_answer(device.answer(asked.to_bytes()))
        assert (answer.code if isinstance(answer, Nothing) else None) == code


def test_strangers_old_versions_and_noise_are_refused(task, store, tmp_path):
    device = make_device(tmp_path, store, "silo", 0, 13)
    message = task.to_bytes()
    assert code_of(device, replace(task, version="0.0.1").to_bytes()) == Code.VERSION
    assert code_of(device, message.replace(b'"protocol": 1', b'"protocol": 9')) == Code.VERSION
    assert code_of(device, replace(task, federation="other").to_bytes()) == Code.STRANGER
    assert code_of(device, replace(task, vocabulary="other").to_bytes()) == Code.STRANGER
    assert code_of(device, replace(task, leaves=task.leaves[:-1]).to_bytes()) == Code.MALFORMED
    assert code_of(device, replace(task, clip_norms=np.ones(2, np.float32)).to_bytes()) == Code.MALFORMED
    assert code_of(device, replace(task, run="spring 1").to_bytes()) == Code.MALFORMED
    for broken in (b"", b"\0" * 100, message[:-5], message[: len(message) // 2]):
        assert code_of(device, broken) == Code.MALFORMED


def test_who_joins_is_on_disk_before_anything_is_computed(task, store, tmp_path, monkeypatch):
    """So that a crash, at any time after, cannot make a user join again."""
    device, seen = make_device(tmp_path, store, "silo", 0, 13), []
    monkeypatch.setattr(device, "_train", lambda *_: seen.append((tmp_path / "silo.jsonl").read_text()))
    device.answer(task.to_bytes())
    line = json.loads(seen[0])
    assert line["task"] == digest(task.to_bytes())
    assert (line["run"], line["round"]) == task.which


def test_a_disk_that_was_full_for_a_while_spoils_nothing(task, store, tmp_path, monkeypatch):
    """The task fails, and is taken when there is room again; what a device remembers can be read ever after."""
    device, write = make_device(tmp_path, store, "silo", 0, 13), os.write

    def full(file: int, data: bytes) -> int:
        if len(data) < 20:
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(file, data[: len(data) // 2])

    rounds_joined(device, task, [1])
    with monkeypatch.context() as patched:
        patched.setattr("os.write", full)
        assert code_of(device, replace(task, round=2).to_bytes()) == Code.FAILED
    rounds_joined(device, task, [2, 3])
    remembered = Participation(tmp_path / "silo.jsonl")
    assert list(remembered._joined) == [("spring", number) for number in (1, 2, 3)]


def test_who_joined_is_for_the_owner_of_the_device_alone(task, store, tmp_path):
    before = os.umask(0)  # whatever the mask of the system leaves open
    try:
        make_device(tmp_path, store, "silo", 0, 13).answer(task.to_bytes())
    finally:
        os.umask(before)
    assert (tmp_path / "silo.jsonl").stat().st_mode & 0o777 == 0o600


def test_an_error_carries_a_code_and_never_a_text(task, store, tmp_path, monkeypatch, caplog):
    device = make_device(tmp_path, store, "silo", 0, 13)

    def fail(*arguments):
        raise RuntimeError("the secret word is swordfish")

    monkeypatch.setattr(device, "_draw", fail)
    answer = device.answer(task.to_bytes())
    assert b"swordfish" not in answer
    assert read_answer(answer) == Nothing(Code.FAILED)
    assert "swordfish" in caplog.text  # the owner of the device may know


def test_where_training_fails_zeros_are_sent(task, store, tmp_path, caplog):
    """Also where nothing is clipped, and sums are no whole numbers."""
    quiet = changed(task, privacy={"mode": "none", "noise_multiplier": None, "clipping": "none"})
    for number, one in enumerate((task, quiet)):
        folder = tmp_path / str(number)
        device = make_device(folder, store, "silo", 0, 13, limits=Limits(private_only=False))
        honest = read_answer(device.answer(one.to_bytes()))
        failing = make_device(folder / "failing", store, "silo", 0, 13, limits=Limits(private_only=False))
        failing._train = lambda *arguments: [][0]
        zeros = read_answer(failing.answer(one.to_bytes()))
        assert isinstance(zeros, Contribution)
        assert (zeros.task, zeros.users, zeros.weight) == (honest.task, 0, 0)
        assert not any(leaf.any() for leaf in zeros.leaves)
        assert [(leaf.shape, leaf.dtype) for leaf in zeros.leaves] == [
            (leaf.shape, leaf.dtype) for leaf in honest.leaves
        ]
        assert failing._participation._joined == device._participation._joined
    assert "zeros go in the place of its sums" in caplog.text


def test_the_form_of_an_answer_does_not_tell_who_has_text(task, store, tmp_path):
    """Nor who was drawn: what follows from people is in the numbers alone."""
    asked, forms = changed(task, privacy={"cohort": 13}), []
    for users in (1, 0):
        device = make_device(tmp_path / str(users), store, "phone", 0, 1)
        device._store = replace(some_of(store, 0, users), first=0)
        device._train = no_updates
        facts, arrays, leaves = unpack(device.answer(asked.to_bytes()), 2**10)
        forms.append((set(facts), set(arrays), [(leaf.shape, leaf.dtype) for leaf in leaves]))
    assert forms[0] == forms[1]


def test_a_store_larger_than_what_is_registered_is_refused(store, tmp_path):
    enrolled, participation = devices.Enrolment(FEDERATION, "silo", 0, 5), Participation(tmp_path / "p")
    with pytest.raises(SottoError, match="registered for 5"):
        devices.Device(enrolled, store, bytes(32), participation, Limits())


def test_the_secret_is_drawn_once_and_for_its_owner_alone(tmp_path):
    secret = devices.own_secret(tmp_path)
    assert len(set(secret)) > 8
    assert devices.own_secret(tmp_path) == secret
    assert (tmp_path / devices.SECRET).stat().st_mode & 0o077 == 0


SEPARATED = {"sampling": "min_separation", "min_separation": 3, "participations": 2, "cohort": 3}
SEPARATED |= {"noise": "banded", "noise_coefficients": (1.0, 0.5)}


def separated(task: Task) -> Task:
    return changed(task, privacy=SEPARATED, run={"rounds": 8})


def test_a_device_adds_nobody_where_a_server_asks_early_or_too_often(task, store, tmp_path):
    """Also after a restart, and whatever the server says of the run meanwhile. That it answers tells nothing."""
    task, joined = separated(task), []
    for number in (1, 2, 3, 4, 7, 8):
        joined += rounds_joined(make_device(tmp_path, store, "phone", 0, 1), task, rounds=[number])
    assert joined == [1, 0, 0, 1, 0, 0]
    device = make_device(tmp_path, store, "phone", 0, 1)
    lax = changed(task, privacy={**SEPARATED, "min_separation": 1, "participations": 8})
    assert code_of(device, replace(lax, round=7).to_bytes()) == Code.LIMITS


def test_the_users_of_a_silo_come_as_in_a_simulation(task, store, tmp_path):
    """By the names of the silo's users: none too early, none too often, whoever else is there."""
    device = make_device(tmp_path, store, "silo", 0, 13)
    task = separated(task)
    users = rounds_joined(device, task, rounds=range(1, 9))
    sampler = assemble(Recipe.from_dict(task.recipe), device._store).algorithm.mechanism.sampler
    assert users == [len(sampler.sample(device._store, b"", number)) for number in range(1, 9)]
    assert sum(users) > 10


# --- masked rounds --------------------------------------------------------------------------------------------------

MASKED = {"federation": {"survivors": 2}}
SHARES = {"d00": 4, "d01": 5, "d02": 4}


def no_updates(task, assembly, params, rows, name) -> Contribution:
    leaves = [np.zeros(leaf.shape, np.int64) for leaf in task.leaves]
    return Contribution(name, len(rows), len(rows), np.zeros(1, np.int64), leaves)


def masked_fleet(folder, store, limits: Limits | None = None) -> dict[str, devices.Device]:
    """Three devices that know one another. They do not train: it is what they send that counts."""
    known = {
        name: KnownMember(users, node_key(number)[1], BY_DEVICE) for number, (name, users) in enumerate(SHARES.items())
    }
    fleet, first = {}, 0
    for number, (name, users) in enumerate(SHARES.items()):
        seat = Seat(membership=Membership(node_key(number)[0], known))
        device = seated_device(folder / name, store, Enrolment(FEDERATION, name, first, users), seat, limits)
        device._train = lambda task, assembly, params, rows, digest: Contribution(
            digest,
            len(rows),
            len(rows),
            np.zeros(1, np.int64),
            [np.zeros(leaf.shape, np.int64) for leaf in task.leaves],
        )
        fleet[name], first = device, first + users
    return fleet


def shared_list(adverts: dict[str, bytes], context: str) -> KeyList:
    read = {name: read_advert(answer, context) for name, answer in adverts.items()}
    return KeyList(
        context, tuple(read), tuple(one.entry for one in read.values()), tuple(one.signature for one in read.values())
    )


def forwarded(answers: dict[str, bytes], context: str, receiver: str) -> bytes:
    """The shares of the others, as a server passes them on."""
    senders = [name for name in SHARES if name != receiver]
    sealed = [read_shares(answers[sender], context, 2)[_place(sender, receiver)] for sender in senders]
    return Forwarded(context, tuple(senders), tuple(sealed)).to_bytes()


def _place(sender: str, receiver: str) -> int:
    return [name for name in SHARES if name != sender].index(receiver)


@pytest.fixture
def everybody(task) -> Task:
    return changed(task, **MASKED, privacy={"cohort": 13})


def test_a_masked_round_goes_on_in_memory_and_after_a_crash_the_device_is_out_of_it(everybody, store, tmp_path, caplog):
    message = everybody.to_bytes()
    context = context_of(everybody, digest(message))
    fleet = masked_fleet(tmp_path, store)
    adverts = {name: device.answer(message) for name, device in fleet.items()}
    assert fleet["d00"].answer(message) == adverts["d00"]  # asked again: the same keys
    listed = shared_list(adverts, context).to_bytes()
    shares = {name: device.answer(listed) for name, device in fleet.items()}
    # A crash before the vector left: the device may show fresh keys, and does not know the round of the old ones.
    crashed = masked_fleet(tmp_path, store)["d00"]
    assert code_of(crashed, listed) == Code.LOST
    assert "it was started again" in caplog.text
    again = read_advert(crashed.answer(message), context)
    assert again.mask_key != read_advert(adverts["d00"], context).mask_key
    assert code_of(crashed, listed) == Code.MALFORMED  # the list has the keys of before
    # A crash after it left: nothing of the release leaves again, under no keys.
    vector = fleet["d01"].answer(forwarded(shares, context, "d01"))
    assert read_vector(vector, context, 5 * (sum(leaf.size for leaf in everybody.leaves) + 3)).any()
    crashed = masked_fleet(tmp_path, store)["d01"]
    assert code_of(crashed, message) == Code.TWICE
    assert "leaves once" in caplog.text


def test_whether_a_masked_answer_comes_does_not_tell_who_has_text(everybody, store, tmp_path):
    """Nor who was drawn, may join or can be trained: what adds nothing adds zeros."""
    device = masked_fleet(tmp_path, store)["d00"]
    device._store = replace(some_of(store, 0, 3), first=0)

    def fails(*arguments):
        raise MemoryError

    for number, (drawn, train) in enumerate((([3], device._train), ([], device._train), ([0], fails)), 1):
        device._draw = lambda task, assembly, drawn=drawn: np.array(drawn, np.int64)
        device._train = train
        asked = replace(everybody, round=number)
        message = asked.to_bytes()
        read_advert(device.answer(message), context_of(asked, digest(message)))
        assert not device._masking.participant._vector.any()


def test_keys_are_fresh_in_every_round_and_run(everybody, store, tmp_path):
    device = masked_fleet(tmp_path, store)["d01"]
    tasks = [everybody, replace(everybody, round=2), replace(everybody, run="autumn")]
    keys = set()
    for one in tasks:
        message = one.to_bytes()
        advert = read_advert(device.answer(message), context_of(one, digest(message)))
        keys |= {advert.mask_key, advert.seal_key}
    assert len(keys) == 6


def test_every_vector_has_noise_of_its_own(everybody, store, tmp_path, monkeypatch):
    """Two vectors with one noise would differ by updates alone."""
    drawn = lambda key, size, std: np.random.default_rng(list(key)).integers(-(2**20), 2**20, size)  # noqa: E731
    monkeypatch.setattr(devices, "rounded_gaussian", drawn)
    fleet, noise = masked_fleet(tmp_path, store), set()
    noised = changed(everybody, federation={"noise": "devices", "participations": 3})
    for number in (1, 2, 3):
        for device in fleet.values():
            device.answer(replace(noised, round=number).to_bytes())
            noise.add(device._masking.participant._vector.tobytes())  # they do not train: it is noise alone
    assert len(noise) == 9


def test_a_device_without_members_refuses_masked_rounds_and_says_what_to_copy(everybody, store, tmp_path, caplog):
    assert code_of(make_device(tmp_path, store, "d00", 0, 4), everybody.to_bytes()) == Code.STRANGER
    assert "copy members.json of the federation into the folder of this device" in caplog.text
    assert not (tmp_path / "d00.jsonl").exists()  # nobody was drawn


@pytest.mark.parametrize(
    ("limits", "masked", "code"),
    [
        (Limits(survivors=3), True, Code.LIMITS),
        (Limits(colluding=1), True, Code.LIMITS),
        (Limits(masked_only=True), True, None),
        (Limits(masked_only=True), False, Code.LIMITS),
    ],
)
def test_the_owner_decides_what_a_masked_round_must_declare(everybody, store, tmp_path, limits, masked, code):
    device = masked_fleet(tmp_path, store, limits)["d01"]
    task = everybody if masked else changed(everybody, federation={"survivors": 0})
    assert code_of_any(device, task.to_bytes()) == code


def test_a_device_on_which_one_user_changes_others_takes_part_in_no_private_run(task, store, tmp_path, monkeypatch):
    def refuse(*given):
        raise SottoError("what a user sends is not the same in every block")

    monkeypatch.setattr(devices, "check_seats", refuse)
    assert code_of(make_device(tmp_path, store, "silo", 0, 13), task.to_bytes()) == Code.LIMITS


def test_what_the_owner_allows_is_compared_before_made_up_users_are_trained(task, store, tmp_path, monkeypatch):
    tried = []
    monkeypatch.setattr(devices, "check_seats", lambda *given: tried.append(given))
    device = make_device(tmp_path, store, "silo", 0, 13, limits=Limits(steps=9))
    assert code_of(device, changed(task, local={"epochs": 10**9}).to_bytes()) == Code.LIMITS
    assert not tried
    for _ in range(2):
        device.answer(task.to_bytes())
    assert len(tried) == 1


def test_what_left_in_all_runs_together_is_within_the_owners_limit(everybody, store, tmp_path, caplog):
    """Also under other names of runs, after a restart, and without text: what counts is what was answered."""
    noised = changed(everybody, federation={"noise": "devices", "server_noise_multiplier": 0.8, "participations": 2})
    once = changed(noised, federation={"participations": 1})
    mechanism = assemble(Recipe.from_dict(noised.recipe), store).algorithm.mechanism
    ((event, twice),) = mechanism.devices.against_server
    limit = accounting.epsilon([(event, twice + 1)], devices.SERVER_DELTA) * 1.001

    def asked(task: Task, run: str, number: int, *, text: int = 5, limit: float = limit) -> str | None:
        device = masked_fleet(tmp_path, store, Limits(server_epsilon=limit))["d01"]  # after a restart
        device._store = replace(some_of(store, 4, 4 + text), first=4)
        return code_of_any(device, replace(task, run=run, round=number).to_bytes())

    assert asked(noised, "spring", 1, text=0) is None  # all are drawn, and nobody has text yet
    assert asked(noised, "summer", 1) is None  # 1 round of spring and 2 of this one
    assert asked(noised, "spring", 2) is None  # the same: what left in summer is 1
    assert asked(noised, "summer", 2) == Code.LIMITS  # 2 of spring, and summer may have 2
    assert asked(noised, "autumn", 1) == asked(once, "winter", 1) == Code.LIMITS
    assert "and with this run" in caplog.text
    assert asked(once, "winter", 1, limit=1.4 * limit) is None  # the owner allows more
    # With less noise than the run began with, what left could not be added up.
    louder = changed(noised, federation={"server_noise_multiplier": 0.7})
    assert asked(louder, "spring", 3, limit=0.0) == Code.LIMITS
    # What left without noise is seen: no later limit can hold.
    assert asked(everybody, "bare", 1, limit=0.0) is None
    assert asked(once, "last", 1, limit=1e6) == Code.LIMITS


def code_of_any(device, message: bytes) -> str | None:
    return unpack(device.answer(message), 2**20)[0].get("nothing")
