"""Runs over devices, without a network: what is on disk, what is paid, what is said."""

from __future__ import annotations

import json
from collections import Counter
from contextlib import contextmanager
from itertools import pairwise

import jax
import numpy as np
import pytest
from small_world import call

import sottovoce
from fleets import InProcess, make_device, make_roster, tiny_recipe
from sottovoce.commands import federate, new_run
from sottovoce.federation.messages import Code, Contribution, read_answer
from sottovoce.federation.rounds import Coordinator
from sottovoce.runs import checkpoint as checkpoints
from sottovoce.runs.ledger import Ledger, StoreLedger
from sottovoce.runs.record import Lines
from sottovoce.runs.secrets import Secrets
from sottovoce_evidence.errors import LostProcess, SottoError

SHARES = {"phone": 1, "silo": 7, "clinic": 5}


@pytest.fixture(autouse=True)
def known_coins(monkeypatch):
    """Coins follow from the name of the run, and who is asked from its secrets: here they are always the same."""
    monkeypatch.setattr(new_run, "new_name", lambda: "spring")
    monkeypatch.setattr(new_run, "_new_secrets", lambda *parts: Secrets.seeded(0))


class Federation:
    def __init__(self, folder, store, vocabulary):
        self.folder, self.path = folder, folder / "federation"
        self.roster = make_roster(self.path, vocabulary, store.tokens_per_user, SHARES)
        firsts = np.cumsum([0, *SHARES.values()]).tolist()
        self.devices = {
            name: make_device(folder / "devices", store, name, first, SHARES[name])
            for name, first in zip(SHARES, firsts, strict=False)
        }

    def coordinator(self, fleet: InProcess | None = None) -> Coordinator:
        return Coordinator(self.roster, fleet or InProcess(self.devices), 1.0)


@pytest.fixture
def federation(tmp_path, store, vocabulary) -> Federation:
    return Federation(tmp_path, store, vocabulary)


@pytest.mark.slow
def test_a_run_over_devices_looks_like_any_other(federation, tmp_path, capsys):
    run = tmp_path / "run"
    result = sottovoce.train(tiny_recipe(federation.path), run, coordinator=federation.coordinator())
    assert (result.round, result.ended) == (3, "finished")
    assert Ledger.open(run / "ledger.jsonl").rounds == 3
    assert sum(count for _, count in StoreLedger(federation.path / "ledger.jsonl").spent()) == 3
    said = json.loads((run / "privacy.json").read_text())
    assert said["private"] is True
    assert {"adversaries", "silos"} <= set(said["not_covered"])
    assert (said["registered"]["devices"], said["registered"]["keys_made_by_server"]) == (3, 3)
    assert "epsilon_server" not in said  # it sees every update
    # Nobody's numbers are in what is public; how devices answered is for the owner.
    assert set(Lines(run / "record.jsonl").read()[0]) == {"round", "epsilon", "delta", "clip_norm", "noise_std"}
    assert Lines(run / "diagnostics.jsonl").read()[0]["answers"]
    assert call("report", run) == 0
    assert (run / "report.html").stat().st_size > 1000
    capsys.readouterr()
    # What needs text says where it is.
    assert call("evaluate", run) == 2
    assert "on its devices" in capsys.readouterr().err
    assert call("resume", run) == 2
    assert "sotto federate resume" in capsys.readouterr().err
    assert call("train", run / "recipe.toml", "--out", tmp_path / "other") == 2
    assert "sotto federate server" in capsys.readouterr().err


PHONES = {"silo": 3, **{f"phone-{number}": 1 for number in range(8)}}


@pytest.fixture
def phones(tmp_path, store, vocabulary, monkeypatch) -> Federation:
    monkeypatch.setitem(globals(), "SHARES", PHONES)
    return Federation(tmp_path, store, vocabulary)


def separated_recipe(federation, **privacy):
    bounded = {"sampling": "min_separation", "min_separation": 2, "participations": 3, "cohort": 4, "users": 11}
    bounded |= {"noise": "banded", "noise_coefficients": (1.0, 0.5)}
    return tiny_recipe(federation.path, privacy={**bounded, **privacy}, run={"rounds": 6})


@pytest.mark.slow
def test_correlated_noise_over_devices_asks_only_who_is_free(phones, tmp_path):
    run, fleet = tmp_path / "run", InProcess(phones.devices)
    seen = []

    def looks(progress):  # at what is on disk when a round is shown
        saved = checkpoints.newest(run / "checkpoints")
        seen.append((progress.round, saved.round))

    result = sottovoce.train(separated_recipe(phones), run, coordinator=phones.coordinator(fleet), observer=looks)
    assert (result.round, result.ended) == (6, "finished")
    assert all(done == saved for done, saved in seen)
    # Each phone is asked two rounds apart or more, three times at most; the silo in every round.
    for name in PHONES:
        rounds = [number for number, asked in enumerate(fleet.asked, 1) if name in asked]
        if name == "silo":
            assert len(rounds) > 3
        else:
            assert len(rounds) <= 3
            assert all(later - earlier >= 2 for earlier, later in pairwise(rounds))
    phones_asked = [len(asked - {"silo"}) for asked in fleet.asked]
    assert set(phones_asked) <= {2, 3}  # 4 · 8 / 11 of them, as a rule
    answers = Counter(code for line in Lines(run / "diagnostics.jsonl").read() for code in line["answers"])
    assert set(answers) <= {"joined", "away"}  # away: not asked
    statement = result.statement
    assert statement.privacy.noise == "banded"
    assert result.epsilon_realised is None  # the users of a silo are not told apart
    assert "separated_rounds" in statement.not_covered
    assert call("release", run, "--out", tmp_path / "release", "--yes") == 0
    assert call("verify", tmp_path / "release") == 0


@pytest.mark.slow
def test_the_next_model_leaves_only_after_the_checkpoint_with_it_is_on_disk(phones, tmp_path):
    run = tmp_path / "run"

    class Watching(InProcess):
        def exchange(self, exchange):
            saved = checkpoints.newest(run / "checkpoints")
            assert saved.round == len(StoreLedger(phones.path / "ledger.jsonl").commits("spring")) - 1
            assert exchange.name == f"round {saved.round + 1}"
            yield from super().exchange(exchange)

    fleet = Watching(phones.devices)
    assert sottovoce.train(separated_recipe(phones), run, coordinator=phones.coordinator(fleet)).round == 6
    assert len(fleet.asked) == 6


@pytest.mark.slow
def test_where_all_devices_are_phones_it_is_known_which_rounds_a_user_may_have_joined(
    tmp_path, store, vocabulary, monkeypatch
):
    monkeypatch.setitem(globals(), "SHARES", {f"phone-{number}": 1 for number in range(11)})
    phones, run = Federation(tmp_path, store, vocabulary), tmp_path / "run"
    recipe = separated_recipe(phones, cohort=5, participations=4)
    result = sottovoce.train(recipe, run, coordinator=phones.coordinator())
    (kept,) = (phones.path / "joined").glob("*.jsonl")
    asked = Counter(name for line in map(json.loads, kept.read_text().splitlines()) for name in line.get("asked", ()))
    assert asked.total() == 6 * 5
    # Fewer than they might have been asked for.
    assert result.epsilon_realised <= result.statement.epsilon
    assert "ealised" not in (run / "privacy.json").read_text()


def test_hostile_late_and_old_devices_change_nothing_but_their_own_part(federation, tmp_path):
    """Whatever they send, the run is the run in which they were away."""
    spoiled = {
        "phone": lambda answer: answer[: len(answer) // 2],
        "silo": lambda answer: answer.replace(b'"protocol": 1', b'"protocol": 7'),
        "clinic": lambda answer: answer,
    }
    recipe = tiny_recipe(federation.path, run={"rounds": 1})
    fleet = InProcess(federation.devices, lambda name, answer: spoiled[name](answer))
    sottovoce.train(recipe, tmp_path / "spoiled", coordinator=federation.coordinator(fleet))
    (line,) = Lines(tmp_path / "spoiled" / "diagnostics.jsonl").read()
    assert line["answers"] == {Code.MALFORMED: 1, Code.VERSION: 1, "joined": 1}


def test_recipes_that_devices_cannot_train_are_refused_before_anything_is_made(federation, tmp_path):
    for sections, what in (
        ({"privacy": {"sampling": "fixed"}}, "flip their own coins"),
        ({"audit": {"secrets": 2}}, "plants made-up users"),
        ({"privacy": {"secrets": "seeded"}}, "could undo all the noise; use 'entropy'"),
    ):
        with pytest.raises(SottoError, match=what):
            sottovoce.train(
                tiny_recipe(federation.path, **sections), tmp_path / "run", coordinator=federation.coordinator()
            )
        assert not (tmp_path / "run").exists()


def test_the_seed_of_a_run_does_not_travel(federation, tmp_path):
    """Also where nothing is promised: what comes from it at the server is none of a device's business."""
    fleet, seed = InProcess(federation.devices), 918273645
    recipe = tiny_recipe(
        federation.path, run={"rounds": 1, "seed": seed},
        privacy={"mode": "none", "noise_multiplier": None, "secrets": "seeded"},
    )  # fmt: skip
    sottovoce.train(recipe, tmp_path / "run", coordinator=federation.coordinator(fleet))
    assert str(seed) in (tmp_path / "run" / "recipe.toml").read_text()
    assert len(fleet.tasks) == 1
    assert str(seed).encode() not in fleet.tasks[0]


@pytest.mark.parametrize(("fault", "status"), [(KeyboardInterrupt(), 130), (LostProcess("the link is lost"), 1)])
def test_a_server_that_is_stopped_or_lost_while_it_waits_says_how_to_go_on(
    federation, tmp_path, monkeypatch, capsys, fault, status
):
    run = tmp_path / "run"

    class Waiting(InProcess):
        def exchange(self, exchange):
            raise fault

    @contextmanager
    def reach(*_):
        yield federation.coordinator(Waiting(federation.devices))

    monkeypatch.setattr(federate, "connected", reach)
    monkeypatch.setattr(federate, "require_flower", lambda: None)
    (tmp_path / "recipe.toml").write_text(tiny_recipe(federation.path).to_toml())
    code = call("federate", "server", tmp_path / "recipe.toml", "--federation", federation.path, "--out", run, "--json")
    assert code == status
    assert f"sotto federate resume {run}" in capsys.readouterr().err
    assert call("federate", "resume", run, "--json") == status
    assert not Ledger.open(run / "ledger.jsonl").rounds


def test_updates_that_are_not_noised_never_reach_the_disk_of_the_server(federation, tmp_path):
    """Not a file of the run or the federation holds 16 bytes of one."""
    answers: list[bytes] = []

    def keep(name, answer):
        answers.append(answer)
        return answer

    run = tmp_path / "run"
    sottovoce.train(
        tiny_recipe(federation.path), run, coordinator=federation.coordinator(InProcess(federation.devices, keep))
    )
    written = b"".join(
        path.read_bytes() for root in (run, federation.path) for path in root.rglob("*") if path.is_file()
    )
    pieces = 0
    for answer in map(read_answer, answers):
        for leaf in jax.tree.leaves(answer.leaves) if isinstance(answer, Contribution) else []:
            row = leaf.ravel()[:4]
            if np.count_nonzero(row) == 4:
                pieces += 1
                assert row.tobytes() not in written
    assert pieces > 5
