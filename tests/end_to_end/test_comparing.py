"""`sotto compare` and what `sotto watch` refuses."""

from __future__ import annotations

import json
import shutil
import stat
from pathlib import Path

import pytest
from small_world import Sotto, World

from made_audits import audit_files
from sottovoce.commands.model_folder import ModelFolder
from sottovoce.data.store import Store
from sottovoce.evaluation.breakdown import share_of
from sottovoce.evaluation.prediction import count_hits


@pytest.mark.slow
def test_runs_on_one_store_are_measured_together(sotto: Sotto, world: World, run: Path, tmp_path: Path) -> None:
    """And what is the owner's is neither in the object nor on the page, unless it is asked for."""
    elsewhere = Path(shutil.copytree(world.run, tmp_path / "elsewhere"))
    recipe = (elsewhere / "recipe.toml").read_text()
    (elsewhere / "recipe.toml").write_text(recipe.replace(str(world.store), str(tmp_path / "gone")))
    (run / "audit").mkdir(mode=0o700)
    attack = {"attack": "loss", "auc": 0.777, "low": 0.75, "high": 0.8}
    audited = {"membership": {"attacks": [attack], "weights": ModelFolder.open(run).digest}}
    (run / "audit" / "membership.json").write_text(json.dumps(audit_files(audited)["membership"]))
    page = tmp_path / "page.html"
    found = sotto("compare", run, elsewhere, "--out", page, "--json").json()
    here, there = found["runs"]
    measured = sotto("evaluate", run, "--json").json()
    assert here["measured_together"]
    assert here["evaluation"]["top1"] == pytest.approx(measured["top1"], abs=1e-4)
    # Whether the people held out fare alike is up to the last bit of a model: how unlike they fare is counted here.
    held_out = Store.open(world.store, "test")
    counts = count_hits(ModelFolder.open(run).model, held_out, range(held_out.users))
    share, within = share_of(counts.top1, counts.targets)
    assert (here["evaluation"]["top1"], here["top1_within"]) == (pytest.approx(share, abs=1e-4), pytest.approx(within))
    assert sum(here["head_words"]["10"]) == pytest.approx(1)
    assert (there["measured_together"], there["top1_within"]) == (False, None)
    assert "elsewhere" in found["notes"][0]
    assert "spread" not in here
    assert "0.777" not in json.dumps(found)
    text = page.read_text(encoding="utf-8")
    assert "0.777" not in text
    assert "How much users differ" not in text
    assert str(tmp_path) not in text
    outcome = sotto("compare", run, "--out", page, "--internal")
    assert (outcome.status, outcome.out.splitlines()[-1]) == (0, str(page))
    assert stat.S_IMODE(page.stat().st_mode) == 0o600
    assert "AUC 0.777" in page.read_text(encoding="utf-8")
