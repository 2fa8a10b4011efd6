"""What the processes of a run agree on before the first round. The processes are threads."""

from __future__ import annotations

import pytest
from tiny_run import make_recipe, make_store

from sottovoce.build.assembly import assemble
from sottovoce.commands.forecast import NOT_BEGUN, Declined
from sottovoce.commands.helper import assemble_for, sum_over, work_as_helper
from sottovoce.data.store import Store
from sottovoce.local.objective import plain
from sottovoce.multiprocess.cohort_sum import SumOverProcesses
from sottovoce_evidence.errors import SottoError
from thread_group import in_every_process


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return make_store(tmp_path_factory.mktemp("world"))


def lead(group, folder):
    """The leader assembles twice, as `train` does, and ends the run."""
    recipe, store = make_recipe(folder), Store.open(folder)
    made = [assemble_for(group, recipe, store, model=None, objective=plain, before=()) for _ in range(2)]
    summed = sum_over(group, made[0])
    group.dismiss()
    return made, summed


def test_helpers_get_the_recipe(folder):
    (made, summed), *helpers = in_every_process(
        3, lambda group: lead(group, folder) if group.is_leader else work_as_helper(group)
    )
    assert helpers == [None, None]  # dismissed without a reason
    assert isinstance(summed, SumOverProcesses)
    alone = assemble(make_recipe(folder), Store.open(folder), processes=3)
    assert made[0].recipe == made[1].recipe == alone.recipe


@pytest.mark.parametrize("missing", [False, True], ids=["another store", "no store"])
def test_a_helper_with_another_store_or_none_is_refused_everywhere(folder, tmp_path, missing):
    own = tmp_path / "nowhere" if missing else make_store(tmp_path, seed=1)
    errors = in_every_process(2, lambda group: lead(group, folder) if group.is_leader else work_as_helper(group, own))
    assert [type(error) for error in errors] == [SottoError] * 2
    message = "process 1 cannot take part: " if missing else "process 1 has another store than process 0"
    assert all(message in str(error) for error in errors)


def test_a_helper_of_a_leader_that_fails_first_names_the_reason(folder):
    def play(group):
        if not group.is_leader:
            return work_as_helper(group)
        return group.dismiss("no such recipe")

    _, error = in_every_process(2, play)
    assert str(error) == "process 0 did not begin: no such recipe"


def test_a_helper_of_a_run_that_is_declined_ends_without_an_error(folder):
    """As process 0 does: the owner said no, and nothing went wrong."""

    def play(group):
        if not group.is_leader:
            return work_as_helper(group)
        assemble_for(group, make_recipe(folder), Store.open(folder), model=None, objective=plain, before=())
        return group.dismiss(NOT_BEGUN)

    _, error = in_every_process(2, play)
    assert type(error) is Declined
