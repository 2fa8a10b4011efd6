"""The contracts of the command line: what the outside may call, and what it gets back."""

from __future__ import annotations

import math
import re
import signal
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file
from small_world import Sotto, World, files_of, parse_json, read_lines, results_of

from sottovoce.evaluation.figures import Evaluation
from sottovoce.runs.ledger import StoreLedger

VERBS = ("demo", "prepare", "plan", "train", "resume", "evaluate", "audit", "release", "report")
SCORES = {"top1", "top3", "top5", "perplexity", "targets", "oov_rate", "top1_words", "bits_per_byte", "bytes"}
PLAN = ("plan", "--users", 10_000, "--cohort", 100, "--rounds", 200, "--delta", 1e-6, "--accountant", "rdp")
SOTTO = Path(sys.executable).with_name("sotto")


# Help


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_explains_itself(sotto: Sotto, verb: str) -> None:
    outcome = sotto(verb, "--help")
    assert outcome.status == 0
    assert outcome.err == ""
    assert f"sotto {verb}" in outcome.out


def test_help_lists_every_verb_and_no_argument_is_help_too(sotto: Sotto) -> None:
    helped = sotto("--help")
    assert helped.status == 0
    for verb in VERBS:
        assert re.search(rf"\b{verb}\b", helped.out)
    assert sotto() == helped


def test_the_version_is_one_line(sotto: Sotto) -> None:
    outcome = sotto("--version")
    assert outcome.status == 0
    assert re.fullmatch(r"\d+\.\d+\.\d+\n", outcome.out)


# Plan


def test_a_command_that_is_broken_off_says_so(sotto: Sotto, monkeypatch: pytest.MonkeyPatch) -> None:
    def ctrl_c(*arguments: object, **more: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("sottovoce.planning.plan.make_plan", ctrl_c)
    ended = sotto("plan", "--users", 1000, "--cohort", 10, "--rounds", 5, "--delta", 1e-5, "--epsilon", 4)
    assert (ended.status, ended.err) == (130, "interrupted\n")


def test_a_plan_for_a_noise_multiplier_has_every_promised_figure(sotto: Sotto) -> None:
    plan = sotto(*PLAN, "--noise-multiplier", 1.1, "--json").json()
    assert plan["noise_multiplier"] == 1.1
    assert plan["user_rate"] == pytest.approx(0.01)
    assert (plan["rounds"], plan["delta"], plan["users"], plan["cohort"]) == (200, 1e-6, 10_000, 100)
    assert (plan["accountant"], plan["sampling"], plan["relation"]) == ("rdp", "poisson", "add-or-remove-one-user")
    assert 0.5 < plan["epsilon"] < 2
    assert plan["curve"][-1] == {"round": 200, "epsilon": plan["epsilon"]}


def test_a_plan_tells_epsilon_at_several_deltas(sotto: Sotto) -> None:
    several = ("--noise-multiplier", 1.1, "--delta", 1e-6, 1e-9)
    arguments = (*PLAN[:7], *PLAN[9:], *several)
    plan = sotto(*arguments, "--json").json()
    assert (plan["delta"], plan["epsilons"][0]) == (1e-6, {"delta": 1e-6, "epsilon": plan["epsilon"]})
    assert plan["epsilons"][1]["delta"] == 1e-9
    assert plan["epsilons"][1]["epsilon"] > plan["epsilon"]
    assert "ε at δ = 1e-9" in sotto(*arguments).out


@pytest.mark.slow
def test_the_reader_of_a_pipe_may_leave_early() -> None:
    """`sotto plan ... | true`"""
    with subprocess.Popen(
        [SOTTO, *map(str, PLAN), "--noise-multiplier", "1.1"], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait(60) == 128 + signal.SIGPIPE


# Prepare


def test_prepare_says_what_was_kept_and_cut_and_writes_it_beside_the_store(
    sotto: Sotto, world: World, tmp_path: Path
) -> None:
    out = tmp_path / "new" / "store"
    summary = sotto(*world.prepare(out, "--test-users", 0.2, "--json")).json()
    assert (summary["records"], summary["users_seen"], summary["users_kept"]) == (120, 30, 30)
    assert summary["train_users"] + summary["test_users"] == 30
    assert summary["test_users"] > 0
    # Six words, a full stop, BOS and EOS: nine tokens a text.
    assert summary["tokens_seen"] == 120 * 9
    assert summary["unknown_rate"] == 0
    assert parse_json((out / "preparation.json").read_text()) == summary
    assert [path.name for path in tmp_path.rglob("*") if path.name.startswith(".")] == []


# Train


def test_a_finished_run_has_everything_that_belongs_to_a_run(world: World) -> None:
    for name in ("recipe.toml", "record.jsonl", "diagnostics.jsonl", "ledger.jsonl", "privacy.json", "model/card.json"):
        assert (world.run / name).is_file()
    weights = load_file(world.run / "model" / "weights.safetensors")
    assert len(weights) == 11
    assert all(np.isfinite(array).all() for array in weights.values())
    words = (world.run / "model" / "vocabulary.txt").read_text().splitlines()
    assert {"tea", "<bos>", "."} <= set(words)
    assert any(array.shape == (len(words), 4) for array in weights.values())


def test_the_record_has_a_line_a_round_with_growing_epsilon_and_evaluations_when_due(world: World) -> None:
    record = read_lines(world.run / "record.jsonl")
    assert [line["round"] for line in record] == [1, 2, 3, 4]
    epsilons = [line["epsilon"] for line in record]
    assert epsilons == sorted(set(epsilons))
    assert ["evaluation" in line for line in record] == [False, True, False, True]
    # How much held-out people wrote is not told.
    assert record[-1]["evaluation"].keys() == {*SCORES, "users", "perplexity_in_vocabulary"} - {"targets", "bytes"}
    statement = parse_json((world.run / "privacy.json").read_text())
    assert epsilons[-1] <= statement["epsilon"] == statement["epsilon_spent"] <= epsilons[-1] * (1 + 1e-3)  # rounded up


def test_what_is_private_of_a_run_is_for_its_owner_alone(world: World) -> None:
    def mode(path: Path) -> int:
        return stat.S_IMODE(path.stat().st_mode)

    assert mode(world.run / "diagnostics.jsonl") == 0o600
    assert mode(world.run / "secrets") == 0o700
    assert {mode(key) for key in (world.run / "secrets").iterdir()} == {0o600}
    assert mode(world.store) == 0o700
    public = (world.run / "record.jsonl").read_text()
    for word in ("norm_quantiles", "loss", "clipped", "seconds"):
        assert word not in public


def test_train_answers_with_one_object_and_is_silent_beside_it(sotto: Sotto, world: World, tmp_path: Path) -> None:
    out = tmp_path / "a" / "run"
    outcome = sotto("train", world.recipe, "--out", out, "--json")
    answer = outcome.json()
    assert outcome.err == ""
    assert (answer["run"], answer["round"], answer["ended"]) == (str(out), 4, "finished")
    assert (answer["private"], answer["delta"], answer["notes"]) == (True, 0.01, [])
    assert answer["epsilon"] == parse_json((out / "privacy.json").read_text())["epsilon"]
    assert answer["evaluation"].keys() >= SCORES
    assert [path.name for path in out.parent.iterdir()] == ["run"]


def test_the_same_seed_with_seeded_secrets_is_the_same_run_to_the_bit(
    sotto: Sotto, world: World, tmp_path: Path
) -> None:
    assert sotto("train", world.recipe, "--out", tmp_path / "run", "--json").status == 0
    assert results_of(tmp_path / "run") == results_of(world.run)


def test_entropy_makes_two_runs_of_one_seed_differ_and_seeded_secrets_are_owned_up_to(
    sotto: Sotto, world: World, tmp_path: Path
) -> None:
    short = ("--set", "run.rounds=1", "--set", "privacy.secrets=entropy", "--set", "run.evaluate_every=0")
    for name in ("one", "two"):
        assert sotto("train", world.recipe, "--out", tmp_path / name, *short, "--json").json()["evaluation"] is None
    one, two = (results_of(tmp_path / name) for name in ("one", "two"))
    assert one["recipe.toml"] == two["recipe.toml"]
    assert one["model/weights.safetensors"] != two["model/weights.safetensors"]
    for run, secrets in ((world.run, "seeded"), (tmp_path / "one", "entropy")):
        assert parse_json((run / "privacy.json").read_text())["privacy"]["secrets"] == secrets


def test_train_tells_people_of_every_step_without_a_terminal(sotto: Sotto, world: World, tmp_path: Path) -> None:
    outcome = sotto("train", world.recipe, "--out", tmp_path / "run")
    assert outcome.status == 0
    assert "round 4 of 4" in outcome.err
    assert "\x1b" not in outcome.out + outcome.err
    epsilon = parse_json((tmp_path / "run" / "privacy.json").read_text())["epsilon"]
    assert f"ε {math.ceil(epsilon * 100) / 100:.2f}" in outcome.err
    assert "sotto report" in outcome.out
    assert "4 of 4" in outcome.out


def test_settings_change_the_recipe_that_is_kept(sotto: Sotto, world: World, tmp_path: Path) -> None:
    out = tmp_path / "run"
    settings = ("--set", "run.rounds=2", "--set", "run.seed=11", "--set", "privacy.noise_multiplier = 2.5")
    assert sotto("train", world.recipe, "--out", out, *settings, "--json").json()["round"] == 2
    kept = (out / "recipe.toml").read_text()
    for line in ("rounds = 2", "seed = 11", "noise_multiplier = 2.5", f'store = "{world.store}"'):
        assert line in kept.splitlines()
    assert len(read_lines(out / "record.jsonl")) == 2


def test_an_epsilon_without_noise_is_met_by_the_planned_rounds(sotto: Sotto, world: World, tmp_path: Path) -> None:
    settings = (
        "--set",
        "privacy.noise_multiplier=none",
        "--set",
        "privacy.epsilon=2",
        "--set",
        "privacy.accountant=pld",
    )
    answer = sotto("train", world.recipe, "--out", tmp_path / "run", *settings, "--json").json()
    assert (answer["round"], answer["ended"]) == (4, "finished")
    assert 1.9 < answer["epsilon"] <= 2


def test_the_store_is_charged_for_the_planned_rounds_of_every_run(
    sotto: Sotto, world: World, own_store: Path, tmp_path: Path
) -> None:
    own = ("--set", f"data.store={own_store}", "--set", "run.rounds=1", "--set", "run.evaluate_every=0", "--json")
    first = sotto("train", world.recipe, "--out", tmp_path / "one", *own).json()
    assert sotto("train", world.recipe, "--out", tmp_path / "two", *own).json()["epsilon"] == first["epsilon"]
    assert [line["count"] for line in read_lines(own_store / "ledger.jsonl") if "count" in line] == [1, 1]
    assert parse_json((tmp_path / "one" / "privacy.json").read_text())["epsilon_store"] == first["epsilon"]
    assert parse_json((tmp_path / "two" / "privacy.json").read_text())["epsilon_store"] > 1.2 * first["epsilon"]


# Budget and modes


def test_a_budget_with_noise_stops_early_with_a_usable_model_within_the_budget(
    sotto: Sotto, world: World, tmp_path: Path
) -> None:
    spent = [line["epsilon"] for line in read_lines(world.run / "record.jsonl")]
    budget = (spent[1] + spent[2]) / 2
    run = tmp_path / "run"
    limited = ("train", world.recipe, "--set", f"privacy.epsilon={budget}")
    assert "2 of 4 rounds of about 6 users: the budget is spent then" in sotto(*limited, "--dry-run").out
    outcome = sotto(*limited, "--out", run, "--json")
    answer = outcome.json()
    assert (answer["ended"], answer["round"]) == ("budget", 2)
    assert answer["epsilon"] <= budget
    assert any("budget" in note for note in answer["notes"])
    assert len(read_lines(run / "record.jsonl")) == 2
    assert [line["round"] for line in read_lines(run / "ledger.jsonl") if "event" in line] == [1, 2]
    statement = parse_json((run / "privacy.json").read_text())
    assert statement["epsilon"] == pytest.approx(spent[1], rel=1e-3)
    assert (statement["rounds_done"], statement["rounds_planned"]) == (2, 2)
    assert [line["count"] for line in read_lines(world.store / "ledger.jsonl") if "count" in line][-1] == 2
    assert sotto("evaluate", run, "--json").json()["targets"] > 0
    # Going on would pass it again: the run stands where it stood.
    before = results_of(run)
    assert sotto("resume", run, "--json").json()["ended"] == "budget"
    assert results_of(run) == before


def test_an_experiment_shows_an_infinite_epsilon_everywhere(sotto: Sotto, world: World, tmp_path: Path) -> None:
    run = tmp_path / "run"
    charged = (world.store / "ledger.jsonl").read_bytes()
    experiment = ("--set", "privacy.mode=experiment", "--set", "run.rounds=2")
    outcome = sotto("train", world.recipe, "--out", run, *experiment)
    assert outcome.status == 0
    assert "ε ∞" in outcome.err
    assert re.search(r"ε\W+∞, not private", outcome.out)
    assert {line["epsilon"] for line in read_lines(run / "record.jsonl")} == {"infinity"}
    statement = parse_json((run / "privacy.json").read_text())
    assert statement["private"] is False
    assert {statement[name] for name in ("epsilon", "epsilon_spent", "epsilon_store")} == {"infinity"}
    assert statement["privacy"]["mode"] == "experiment"
    answer = sotto("resume", run, "--json").json()
    assert (answer["epsilon"], answer["private"]) == ("infinity", False)
    # It is no private run, so it spends nothing of what the store's people were promised.
    assert (world.store / "ledger.jsonl").read_bytes() == charged


# Stop and resume


def test_a_run_stopped_by_ctrl_c_says_how_to_go_on_and_ends_as_if_never_stopped(
    sotto: Sotto, world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from sottovoce.cli import train

    @contextmanager
    def press_at_once(name: str, *, quiet: bool = False) -> Iterator[Callable[[Any], None]]:
        def press(progress: Any) -> None:
            if progress.round == 1:
                signal.raise_signal(signal.SIGINT)

        yield press

    run = tmp_path / "run"
    handler = signal.getsignal(signal.SIGINT)
    with monkeypatch.context() as patch:
        patch.setattr(train, "progress_of_rounds", press_at_once)
        outcome = sotto("train", world.recipe, "--out", run)
    assert signal.getsignal(signal.SIGINT) is handler
    assert outcome.status == 130
    assert f"sotto resume {run}" in outcome.out
    # Round 1 is seen once the checkpoint of round 2 is committed, and the round after it is finished.
    assert [line["round"] for line in read_lines(run / "record.jsonl")] == [1, 2, 3]
    # Stopping on what was seen earns nothing back: the figure is for the planned rounds.
    finished = parse_json((world.run / "privacy.json").read_text())
    stopped = parse_json((run / "privacy.json").read_text())
    assert stopped["epsilon"] == finished["epsilon"] > stopped["epsilon_spent"]
    answer = sotto("resume", run, "--json").json()
    assert (answer["ended"], answer["round"]) == ("finished", 4)
    assert results_of(run) == results_of(world.run)


def test_a_run_that_broke_off_ends_as_if_it_never_had(sotto: Sotto, world: World, unfinished: Path) -> None:
    people = StoreLedger(world.store / "ledger.jsonl")
    charged = people.spent()
    answer = sotto("resume", unfinished, "--json").json()
    assert (answer["round"], answer["ended"], answer["notes"]) == (4, "finished", [])
    assert results_of(unfinished) == results_of(world.run)
    assert people.spent() == charged


def test_resuming_a_finished_run_changes_nothing_and_answers_the_same(sotto: Sotto, world: World, run: Path) -> None:
    before = files_of(run)
    answer = sotto("resume", run, "--json").json()
    assert (answer["round"], answer["ended"]) == (4, "finished")
    assert answer["notes"] == [f"{run} is complete: round 4 of 4 was done before"]
    after = files_of(run)
    # Only the total of the store may have grown since, by other runs.
    for name in ("privacy.json", "model/card.json"):
        del before[name], after[name]
    assert after == before


@pytest.mark.parametrize("kept", [1, 30, -1])
def test_a_torn_last_line_of_the_ledger_is_repaired(sotto: Sotto, world: World, unfinished: Path, kept: int) -> None:
    """Whatever is there of the next line: its first byte, some of it, all but its end."""
    ledger = unfinished / "ledger.jsonl"
    whole = ledger.read_bytes()
    ledger.write_bytes(whole + whole.splitlines()[-1][:kept])
    assert sotto("resume", unfinished, "--json").json()["ended"] == "finished"
    assert results_of(unfinished) == results_of(world.run)


def test_a_torn_last_line_of_the_record_is_written_anew(sotto: Sotto, world: World, unfinished: Path) -> None:
    record = unfinished / "record.jsonl"
    record.write_bytes(record.read_bytes()[:-40])
    assert sotto("resume", unfinished, "--json").json()["ended"] == "finished"
    assert results_of(unfinished) == results_of(world.run)


def test_a_run_can_be_resumed_from_another_folder(
    sotto: Sotto, world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The recipe named the store by a relative path."""
    monkeypatch.chdir(world.folder)
    relative = ("--set", "data.store=store", "--set", "run.rounds=1", "--set", "run.evaluate_every=0", "--json")
    assert sotto("train", "tea.toml", "--out", tmp_path / "run", *relative).status == 0
    monkeypatch.chdir(tmp_path)
    assert sotto("resume", "run", "--json").json()["ended"] == "finished"


# Evaluate and report


def test_evaluate_uses_the_held_out_users_of_the_runs_own_store(sotto: Sotto, world: World) -> None:
    outcome = sotto("evaluate", world.run, "--json")
    scores = outcome.json()
    assert outcome.err == ""
    assert scores.keys() >= SCORES
    assert 0 <= scores["top1"] <= scores["top3"] <= scores["top5"] <= 1
    baselines, found = scores["baselines"], {name: value for name, value in scores.items() if name != "baselines"}
    assert 0 < baselines["unigram"]["top1"] <= baselines["constant"]["top1"]
    assert Evaluation.from_json(found).public.to_json() == read_lines(world.run / "record.jsonl")[-1]["evaluation"]
    assert sotto("evaluate", world.run, "--store", world.store, "--split", "test", "--json").json() == scores


def test_evaluate_on_a_corpus_counts_unknown_words_as_mistakes(sotto: Sotto, world: World, tmp_path: Path) -> None:
    corpus = tmp_path / "corpus.csv"
    corpus.write_text("who,said\nann,hot tea xylophone\nbob,cold milk\nann,xylophone\n", encoding="utf-8")
    fields = ("--user-field", "who", "--text-field", "said")
    scores = sotto("evaluate", world.run, "--corpus", corpus, *fields, "--json").json()
    assert (scores["users"], scores["targets"]) == (2, 9)
    assert scores["oov_rate"] == pytest.approx(2 / 9)
    assert scores["top5"] <= 7 / 9


@pytest.mark.slow
def test_evaluate_shows_single_users_only_when_asked(sotto: Sotto, world: World) -> None:
    assert not any(re.search(r"_p\d", name) for name in sotto("evaluate", world.run, "--json").json())
    internal = sotto("evaluate", world.run, "--internal", "--json").json()
    assert 0 <= internal["top1_p5"] <= internal["top1_p50"] <= internal["top1_p95"] <= 1
    assert not re.search(r"_p\d", "".join(sotto("evaluate", world.run, "--keystrokes", "--json").json()))
    typed = sotto("evaluate", world.run, "--keystrokes", "--internal", "--json").json()
    assert 0 <= typed["keystroke_saving_p5"] <= typed["keystroke_saving_p95"] <= 1
    shown = sotto("evaluate", world.run)
    assert "perplexity" in shown.out
    assert "over users" not in shown.out


def test_a_report_is_one_file_without_paths_of_this_machine(sotto: Sotto, run: Path) -> None:
    outcome = sotto("report", run)
    assert (outcome.status, outcome.out) == (0, f"{run / 'report.html'}\n")
    page = (run / "report.html").read_text(encoding="utf-8")
    assert not re.search(r'(src|href)="(?!data:|#)', page)
    assert str(run.parent) not in page
    assert "world" not in page
    assert "seed" in page
    assert not (run / "report-internal.html").exists()
