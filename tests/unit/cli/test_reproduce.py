"""`sotto reproduce`."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

RUNNING = "sottovoce.papers.reproduce"


def test_the_request_names_experiments_size_and_stores(sotto, stub, capsys, tmp_path):
    run = stub(f"{RUNNING}.reproduce", True)
    what = ["--table", "1", "--experiment", "ptb", "--seeds", "3", "--size", "cpu", "--rounds", "9", "--undecided"]
    texts = ["--users", "a", "b", "--other", "c", "--declared-users", "70"]
    sotto(["reproduce", "schultz2019", "--out", str(tmp_path), *what, *texts])
    request, out, stores, console = run.places
    assert (request.paper.name, request.names, request.seeds) == ("schultz2019", ["table-1", "ptb"], 3)
    assert (request.size.name, request.size.rounds, request.undecided) == ("cpu", 9, True)
    assert (stores.users, stores.other) == ((Path("a"), Path("b")), Path("c"))
    assert (stores.public, stores.declared_users) == (None, 70)
    assert out == tmp_path
    assert console.stop() is False
    assert capsys.readouterr().out == f"figures, tables and results are in {tmp_path}\n"


def test_the_first_paper_is_the_default_and_a_stopped_call_goes_on(sotto, stub, capsys, tmp_path):
    run = stub(f"{RUNNING}.reproduce", False)
    sotto(["reproduce", "--out", str(tmp_path)], 130)
    assert (run.places[0].paper.name, run.places[0].names, run.places[0].undecided) == ("mcmahan2018", [], False)
    assert capsys.readouterr().out == "stopped; the same command goes on\n"


def test_claims_are_checked_and_nothing_is_trained(sotto, stub, answer, capsys, tmp_path):
    check, run = stub(f"{RUNNING}.check_paper"), stub(f"{RUNNING}.reproduce")
    stub(f"{RUNNING}.check_claims", ([SimpleNamespace(to_json=lambda: {"holds": True})], "a table"))
    sotto(["reproduce", "popov2018", "--out", str(tmp_path), "--claims"])
    assert check.places == (tmp_path, "popov2018")
    assert capsys.readouterr().out == "a table\n"
    check.calls.clear()
    assert answer("reproduce", "--out", tmp_path, "--claims") == {"claims": [{"holds": True}]}
    assert run.calls == []


@pytest.mark.parametrize("name", [None, "mcmahan2018"])
def test_the_list_has_costs_of_every_size(answer, name):
    found = answer("reproduce", *([name] if name else []), "--list")
    papers = [found] if name else found["papers"]
    assert [paper["paper"] for paper in papers] == ([name] if name else ["mcmahan2018", "schultz2019", "popov2018"])
    for paper in papers:
        assert all(set(row["runs"]) == set(row["user_updates"]) for row in paper["experiments"])
        assert any(row["user_updates"]["gpu"] > row["user_updates"]["smoke"] > 0 for row in paper["experiments"])
