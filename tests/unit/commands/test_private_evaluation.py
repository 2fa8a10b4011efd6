"""A private evaluation: paid for before it is drawn, by held-out users alone, and drawn once."""

from __future__ import annotations

import errno
import json
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import numpy as np
import pytest
from tiny_run import make_store

from power_cut import FullDisk
from sottovoce.commands import convert, export, private_evaluation, release_folder
from sottovoce.commands.model_folder import ModelFolder
from sottovoce.commands.private_evaluation import FOLDER, evaluate_privately, may_show_exact, private_accuracy
from sottovoce.commands.report import report_run
from sottovoce.data.store import Store
from sottovoce.evaluation.private_prediction import BoundedCounts
from sottovoce.privacy.bounded_sums import BoundedSums, NoisySums
from sottovoce.reporting import sentences
from sottovoce.runs.baselines import Baselines, Score
from sottovoce.runs.checkpoint import digest
from sottovoce.runs.folder import RunFolder
from sottovoce.runs.secrets import Secrets
from sottovoce.web.watch.follow import Follower
from sottovoce_evidence import accounting, files
from sottovoce_evidence.accounting import HeldOutSums
from sottovoce_evidence.errors import DamagedRun, SottoError
from sottovoce_evidence.files import sealed
from sottovoce_evidence.ledger import StoreLedger
from sottovoce_evidence.private_accuracy import Terms
from sottovoce_evidence.release import exact_figures
from sottovoce_evidence.statement import EXACT_ACCURACY, Statement
from sottovoce_evidence.verify import _held_out, verify_release

CLEAR = NoisySums((3_000, 1_000, 1_000, 15_000), 2_560_000, (600, 3_000, 20_000), 400)


@pytest.fixture(autouse=True)
def counts(monkeypatch):
    """What is measured of every user; the model is not asked."""
    monkeypatch.setattr(
        private_evaluation,
        "count_bounded",
        lambda model, users, tokens: BoundedCounts(np.full((users.users, 4), 2.0), np.full(users.users, 4.0)),
    )


@pytest.fixture
def clear(monkeypatch):
    """Many users more, so that the noise hides nothing."""
    monkeypatch.setattr(BoundedSums, "draw", lambda mechanism, rows: CLEAR)


def paid(store):
    return StoreLedger(store / "ledger.jsonl").spent_on_held_out()


def test_the_charge_is_on_disk_before_the_noise_is_drawn(run, store, monkeypatch):
    seen = []

    def draw(mechanism, rows):
        seen.append((paid(store), len(rows), mechanism.event()))
        assert not list((store / FOLDER).glob("*.json"))
        return CLEAR

    monkeypatch.setattr(BoundedSums, "draw", draw)
    found = evaluate_privately(run.path, epsilon=2.0, delta=1e-5)
    ((charges, users, event),) = seen
    assert charges == [(event, 1)]
    assert users == Store.open(store, "test").users
    assert event == found.accuracy.terms.event == HeldOutSums(found.accuracy.terms.noise_multiplier, 16)
    assert accounting.epsilon([(event, 1)], 1e-5) <= 2.0
    assert accounting.epsilon([(event, 1)], 1e-5) == found.epsilon_held_out


def test_an_evaluation_that_fails_stays_charged_and_keeps_nothing(run, store, monkeypatch):
    monkeypatch.setattr(BoundedSums, "draw", lambda mechanism, rows: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        evaluate_privately(run.path, epsilon=2.0)
    assert sum(count for _, count in paid(store)) == 1
    assert not list((store / FOLDER).iterdir())


def test_the_same_question_is_paid_for_once_and_any_other_again(run, store, clear):
    first = evaluate_privately(run.path, epsilon=2.0)
    again = evaluate_privately(run.path, epsilon=2.0)
    assert (first.kept, again.kept, again.accuracy) == (False, True, first.accuracy)
    assert again.evaluations == 1
    others = [
        evaluate_privately(run.path, epsilon=1.0),
        evaluate_privately(run.path, epsilon=2.0, delta=1e-7),
        evaluate_privately(run.path, epsilon=2.0, tokens_per_user=8),
    ]
    assert [found.evaluations for found in others] == [2, 3, 4]
    assert others[-1].epsilon_held_out == accounting.epsilon(paid(store), 1e-6)
    for file in (store / FOLDER).iterdir():
        file.unlink()
    assert evaluate_privately(run.path, epsilon=2.0).evaluations == 5


def test_users_who_were_trained_on_pay_nothing(run, store, clear):
    ledger = StoreLedger(store / "ledger.jsonl")
    before = ledger.spent()
    evaluate_privately(run.path, epsilon=2.0)
    assert ledger.spent() == before != []


def test_the_kept_answer_has_no_exact_figure(run, store):
    evaluate_privately(run.path, epsilon=2.0)
    (file,) = (store / FOLDER).iterdir()
    kept = json.loads(file.read_text())
    assert set(kept) >= {"weights", "terms", "users", "targets"}
    assert "fingerprint" not in file.read_text()
    file.write_text(file.read_text().replace('"users": ', '"users": 1'))
    with pytest.raises(DamagedRun, match="charged again"):
        evaluate_privately(run.path, epsilon=2.0)


def test_an_answer_without_its_charge_is_refused(run, store, clear, monkeypatch):
    evaluate_privately(run.path, epsilon=2.0)
    monkeypatch.setattr(StoreLedger, "spent_on_held_out", lambda ledger: [])
    with pytest.raises(DamagedRun, match="has 0 charges for the 1 answer like"):
        evaluate_privately(run.path, epsilon=2.0)


def test_two_answers_need_two_charges(run, begun, store, clear):
    """A ledger of before the second would show half of what was released."""
    other = begun("other", run={"seed": 7})
    evaluate_privately(run.path, epsilon=2.0)
    early = {name: (store / name).read_bytes() for name in ("ledger.jsonl", "ledger.head")}
    evaluate_privately(other.path, epsilon=2.0)
    assert evaluate_privately(run.path, epsilon=2.0).evaluations == 2
    for name, contents in early.items():
        (store / name).write_bytes(contents)
    with pytest.raises(DamagedRun, match="has 1 charge for the 2 answers"):
        evaluate_privately(run.path, epsilon=2.0)
    with pytest.raises(DamagedRun, match="has 1 charge for the 2 answers"):
        private_accuracy(store, digest(run.load_weights()))


def test_the_same_question_at_the_same_time_is_asked_once(run, store, monkeypatch):
    drawn = []

    def draw(mechanism, rows):
        time.sleep(0.1)  # so that all have asked
        drawn.append(rows)
        return CLEAR

    monkeypatch.setattr(BoundedSums, "draw", draw)
    with ThreadPoolExecutor(4) as several:
        found = list(several.map(lambda _: evaluate_privately(run.path, epsilon=2.0), range(4)))
    assert len(drawn) == 1
    assert sorted(one.kept for one in found) == [False, True, True, True]
    assert {one.evaluations for one in found} == {1}


def test_another_path_to_the_same_people_is_the_same_question(run, store, tmp_path, clear):
    first = evaluate_privately(run.path, epsilon=2.0)
    (tmp_path / "link").symlink_to(store)
    (tmp_path / "release").symlink_to(run.path)
    again = evaluate_privately(tmp_path / "release", tmp_path / "link", epsilon=2.0)
    assert (again.kept, again.evaluations, again.accuracy) == (True, 1, first.accuracy)
    store.rename(tmp_path / "moved")
    assert evaluate_privately(run.path, tmp_path / "moved", epsilon=2.0).kept


@pytest.mark.parametrize(
    ("terms", "words"),
    [
        ({"epsilon": 0.0}, "must be above 0"),
        ({"epsilon": 21.0}, "at most 20"),
        ({"epsilon": 1.0, "tokens_per_user": 17}, "from 1 to 16"),
        ({"epsilon": 1.0, "delta": 0.0}, "delta"),
        ({"epsilon": 1.0, "delta": 0.5}, "delta"),
    ],
    ids=str,
)
def test_terms_that_are_none_cost_nothing(run, store, terms, words):
    with pytest.raises(SottoError, match=words):
        evaluate_privately(run.path, **terms)
    assert not paid(store)


def test_a_release_says_the_private_accuracy(run, store, clear, released):
    evaluate_privately(run.path, epsilon=1.0)
    found = evaluate_privately(run.path, epsilon=2.0)
    assert private_accuracy(store, digest(run.load_weights())) == found.accuracy
    assert private_accuracy(store, "another model") is None
    release = released(run)
    statement = json.loads((release / "privacy.json").read_text())
    assert statement["private_accuracy"]["top1"] == 0.15
    assert statement["epsilon_held_out"] == found.epsilon_held_out
    assert EXACT_ACCURACY not in statement["not_covered"]
    assert (
        "**Private accuracy** on about 400 held-out users (ε = 2 at δ = 1e-6 for each)"
        in (release / "README.md").read_text()
    )


KINDS = (".json", ".jsonl", ".md", ".html", ".toml")
MEASURED = {"users": 40, "top1": 0.1234, "top3": 0.2345, "top5": 0.3456, "perplexity": 77.7}


def test_a_release_with_a_private_accuracy_has_no_exact_figure_of_held_out_users(run, clear, released):
    run.record.append({"round": 0, "evaluation": MEASURED})
    baselines = Baselines(token="the", constant=Score(40, 0.1357, 0.2468, 0.3579, None))
    run.write_json(run.baselines_file, sealed(baselines.to_json()))
    exact = ("0.1234", "12.3", "77.7", "0.1357", "13.6")

    def files_with_them(release):
        texts = {file.name: file.read_text(errors="ignore") for file in release.iterdir() if file.suffix in KINDS}
        return {name for name, text in texts.items() if any(figure in text for figure in exact)}

    before = released(run)
    assert files_with_them(before) == {"record.jsonl", "baselines.json", "README.md"}
    assert len(list(exact_figures(RunFolder.of_release(before)))) == 2
    evaluate_privately(run.path, epsilon=2.0)
    release = released(run, "private release")
    assert not files_with_them(release)
    assert not list(exact_figures(RunFolder.of_release(release)))
    assert json.loads((release / "record.jsonl").read_text()) == {"round": 0}
    assert not (release / "baselines.json").exists()


@pytest.fixture
def without(begun):
    """A run without a guarantee on the same people."""
    other = begun("without", privacy={"mode": "none"})
    other.record.append({"round": 0, "evaluation": MEASURED})
    return other


@pytest.mark.parametrize("seed", [0, 4], ids=["of the same people", "of others"])
def test_beside_another_store_in_the_place_of_theirs_no_exact_figure_is_shown(
    run, without, store, clear, tmp_path, seed
):
    """It has no charge of them. Of a run that charged nobody, only what its store held tells the two apart."""
    run.record.append({"round": 0, "evaluation": MEASURED})
    assert may_show_exact(run)
    assert may_show_exact(without)
    evaluate_privately(run.path, epsilon=2.0)
    store.rename(tmp_path / "theirs")
    (tmp_path / "new").mkdir()
    make_store(tmp_path / "new", seed=seed).rename(store)
    for each in [run, without] if seed else [run]:
        assert not may_show_exact(each)
        assert "12.3" not in report_run(each.path).read_text()
        assert "0.1234" not in str(Follower([each.path], may_show_exact).poll())


def test_erased_secrets_of_a_run_that_charged_nobody_leave_nothing_that_tells(run, without):
    for each in (run, without):
        Secrets.erase(each.secrets)
    assert may_show_exact(run)
    assert not may_show_exact(without)


def test_a_delta_that_gives_a_user_away_is_refused(run, store, monkeypatch):
    monkeypatch.setattr(private_evaluation, "coarse_count", lambda users: 600_000)
    with pytest.raises(SottoError, match="about 600,000"):
        evaluate_privately(run.path, epsilon=1.0)
    assert not paid(store)


def test_a_later_model_on_the_same_people_has_no_exact_figure_either(run, begun, store, clear, released):
    """An exact figure of another model would void what held-out users were promised; so would that of a lost answer."""
    other = begun("other", run={"seed": 7})
    other.record.append({"round": 0, "evaluation": MEASURED})
    evaluate_privately(run.path, epsilon=2.0)
    release = released(other)
    assert "private_accuracy" not in json.loads((release / "privacy.json").read_text())
    assert json.loads((release / "record.jsonl").read_text()) == {"round": 0}
    assert not (release / "baselines.json").exists()
    readme = (release / "README.md").read_text()
    assert "No accuracy on held-out users is released." in readme
    assert "12.3" not in readme
    assert "private" in release_folder.ReleaseFolder(other, release, release_folder.Publication(), "").notes[0]


BEFORE = "Exact figures of the same people were published before."


def says_before(release):
    """Does a release say that exact figures were published before? It must then say that nothing covers them."""
    statement = json.loads((release / "privacy.json").read_text())
    assert not list(sentences.faults(RunFolder.of_release(release), Statement.from_json(statement)))
    found = BEFORE in statement["prose"]
    assert found == (EXACT_ACCURACY in statement["not_covered"]) == (BEFORE in (release / "README.md").read_text())
    return found


def test_a_release_does_not_deny_the_exact_figures_of_an_earlier_one(run, begun, clear, released):
    """Of the same run, or of any other on the same store."""
    other = begun("other", run={"seed": 7})
    run.record.append({"round": 0, "evaluation": MEASURED})
    released(run)
    for each in (run, other):
        evaluate_privately(each.path, epsilon=2.0)
        draft = release_folder.ReleaseFolder(each, each.path, release_folder.Publication(), "")
        assert any("were published before" in note for note in draft.notes)
        assert says_before(released(each, "second release"))


def test_a_release_after_one_without_exact_figures_says_nothing_of_them(run, clear, released):
    run.record.append({"round": 0, "evaluation": MEASURED})
    evaluate_privately(run.path, epsilon=2.0)
    assert not says_before(released(run))
    Secrets.erase(run.secrets)
    assert not says_before(released(run, "further copy"))


def test_an_earlier_release_of_which_nothing_is_known_counts_as_exact(run, store, clear, released):
    evaluate_privately(run.path, epsilon=2.0)
    Secrets.erase(run.secrets)
    assert says_before(released(run))


@pytest.mark.parametrize("who", [0, 1], ids=["nobody paid", "they paid"])
def test_an_export_has_no_exact_figure_of_people_who_paid_for_a_private_one(run, store, clear, monkeypatch, who):
    monkeypatch.setattr(convert, "open_session", lambda contents: contents)
    monkeypatch.setattr(convert, "run_session", lambda graph, tokens, state: [np.ones((len(tokens), 3))])
    if who:
        evaluate_privately(run.path, epsilon=2.0)
    found = export._accuracy(ModelFolder.open(run.path), {"top1": b""})
    assert (found["top1"] is None) == bool(who)


@pytest.mark.slow
def test_verify_computes_the_epsilon_of_held_out_users_again(run, clear, released):
    evaluate_privately(run.path, epsilon=2.0)
    checks = {check.name: check for check in verify_release(released(run)).checks}
    assert checks["epsilon of held-out users"].result == "passed"


def test_an_accuracy_with_less_noise_than_it_claims_is_not_verified():
    assert _held_out(Terms(1.0, 1e-6, 4.225, 40, 10.0)).result == "passed"
    assert _held_out(Terms(1.0, 1e-6, 4.1, 40, 10.0)).result == "failed"


@pytest.mark.parametrize("free", [0, 1_000, 4_200, 6_000], ids=str)
def test_a_full_disk_costs_nothing_or_the_answer_is_kept(run, store, clear, monkeypatch, free):
    with monkeypatch.context() as full:
        FullDisk(free, full)
        with suppress(SottoError):
            evaluate_privately(run.path, epsilon=2.0)
        assert bool(paid(store)) == (free == 6_000)
    assert evaluate_privately(run.path, epsilon=2.0).evaluations == 1
    assert [file.suffix for file in (store / FOLDER).iterdir()] == [".json"]


def test_an_answer_that_is_lost_says_what_was_charged(run, clear, monkeypatch):
    def lost(draft, path):
        raise OSError(errno.EIO, "Input/output error", str(path))

    monkeypatch.setattr(files.os, "replace", lost)
    with pytest.raises(SottoError, match=r"Input/output error\); ε = 2 at δ = 1e-6 was charged for an answer that is"):
        evaluate_privately(run.path, epsilon=2.0)


def test_where_nothing_can_be_written_nobody_is_charged_and_it_says_so(run, store, clear):
    (store / FOLDER).write_text("a file in the place of the folder")
    with pytest.raises(SottoError, match="nobody was charged"):
        evaluate_privately(run.path, epsilon=2.0)
    assert not paid(store)
