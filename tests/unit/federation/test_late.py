"""Late devices: which round an answer enters, and that its users were drawn for that round and no other."""

from __future__ import annotations

import json

import numpy as np
import pytest

from fleets import InProcess, make_device, make_roster, some_of, tiny_recipe
from free import AllFree
from sottovoce.build.assembly import assemble
from sottovoce.federation.late import Late, Owed
from sottovoce.federation.messages import Code, Contribution, Nothing
from sottovoce.federation.rounds import Coordinator
from sottovoce.runs.secrets import Secrets

SHARES = {"phone": 1, "silo": 7, "clinic": 5}
DRAWN = Contribution("task", 1, 0, np.zeros(1, np.int64), []).to_bytes()
NOBODY = Nothing(Code.NOT_DRAWN).to_bytes()


def asked(late: Late, number: int) -> int | None:
    """The round that an answer of the silo would enter, if it is asked; it is. Another device is always on time."""
    due = late.due(["silo", "quick"], number)
    assert due["quick"] == number
    if "silo" in due:
        late.ask("silo", Owed(number, due["silo"], "task"))
    return due.get("silo")


def test_a_device_that_was_late_gets_more_time_and_one_that_is_quick_less():
    late = Late(staleness=2, rounds=20)
    assert asked(late, 1) == 1
    late.end(1, here={"silo"})
    assert asked(late, 2) == 3
    assert asked(late, 3) is None, "a device is asked while its answer is on its way"
    late.end(3, here={"silo"})
    assert asked(late, 4) == 6
    late.end(6, here={"silo"})
    assert asked(late, 7) == 9, "an answer may be later than is declared"
    late.keep("silo", DRAWN, 8)
    assert asked(late, 8) is None
    late.take_waiting(9)
    late.owed.clear()  # it was counted
    assert asked(late, 10) == 11
    late.end(11, here=())  # it is away, not slow
    assert asked(late, 12) == 13


def test_rounds_are_asked_for_one_after_another_whatever_is_drawn():
    """A draw for round 4 must not be seen in round 3: neither by who was drawn, nor by who was not."""
    for answer, following in ((NOBODY, 5), (DRAWN, None)):
        late = Late(staleness=2, rounds=20, _lags={"silo": 2})
        assert asked(late, 2) == 4
        late.keep("silo", answer, 2)
        assert late.due(["silo"], 3).get("silo") == following, "a round is asked for out of turn"


def test_a_round_that_nobody_would_be_in_waits_for_those_who_need_least():
    late = Late(staleness=2, rounds=20, _lags={"silo": 1, "clinic": 2})
    assert late.due(["silo", "clinic"], 5) == {"silo": 5, "clinic": 6}
    late.ask("phone", Owed(4, 5, "task"))
    assert late.due(["silo", "clinic"], 5) == {"silo": 6, "clinic": 7}


def test_no_answer_enters_a_round_after_the_last():
    late = Late(staleness=2, rounds=3, _lags={"silo": 1})
    assert asked(late, 2) == 3
    late.end(3, here={"silo"})
    assert asked(late, 3) is None


@pytest.fixture
def fleet(store, vocabulary, tmp_path):
    """Eight rounds over devices of which the silo answers one round late, but for the second. They do not train."""

    def play(**privacy):
        roster = make_roster(tmp_path / "federation", vocabulary, store.tokens_per_user, SHARES)
        sections = {"federation": {"staleness": 1}, "run": {"rounds": 8}, "privacy": {"cohort": 10, **privacy}}
        assembly = assemble(tiny_recipe(tmp_path, **sections), some_of(store, 0, 13))
        devices, first = {}, 0
        for name, users in SHARES.items():
            devices[name] = make_device(tmp_path, store, name, first, users, secret=first)
            devices[name]._train = lambda task, assembly, params, rows, message: Contribution(
                message, len(rows), 2**10 * len(rows), np.zeros(1, np.int64),
                [np.zeros(leaf.shape, np.int64) for leaf in task.leaves],
            )  # fmt: skip
            first += users
        transport = InProcess(devices, slow=lambda name, number: int(name == "silo" and number != 2))
        payments = AllFree(lambda number: Secrets.seeded(3).keys(number, "a"))
        start = assembly.start(assembly.model)
        sums = [summed for _, summed in Coordinator(roster, transport, 1.0).rounds(assembly, "spring", start, payments)]
        return sums, {name: device._participation._joined for name, device in devices.items()}

    return play


def test_a_late_answer_enters_the_round_that_its_users_were_drawn_for(fleet):
    """Each user is drawn once for a round. A device adds one contribution to it, of those who were drawn for it."""
    sums, drawn = fleet()
    assert [int(release.split()[1]) for release in drawn["silo"]] == [1, 3, 4, 6, 8]
    for number, summed in enumerate(sums, 1):
        expected = [len(rows.get(f"spring {number} a", ())) for rows in drawn.values()]
        if number in (1, 4):  # the server did not know that the silo is slow: its answer is thrown away
            expected[1] = 0
        assert summed.users == sum(expected), "users are in a round that they were not drawn for"
    assert [summed.answers.get(Code.LATE, 0) for summed in sums] == [0, 1, 0, 0, 1, 0, 1, 0]
    assert sum(summed.users for summed in sums) > sum(map(len, [*drawn["phone"].values(), *drawn["clinic"].values()]))


def test_separation_and_participations_count_at_the_round_entered(fleet, tmp_path):
    sums, drawn = fleet(sampling="min_separation", min_separation=3, participations=2, cohort=3, noise="tree")
    lines = (tmp_path / "federation" / "joined" / "spring.jsonl").read_text().splitlines()
    joined = [json.loads(line) for line in lines]
    silo = {line["round"]: line["joined"]["silo"] for line in joined if "silo" in line.get("joined", {})}
    assert silo
    entered = {int(release.split()[1]): len(rows) for release, rows in drawn["silo"].items() if rows}
    assert silo.items() <= entered.items()
    assert set(entered) - set(silo) <= {1, 4}  # answers that were thrown away
    assert sum(summed.users for summed in sums) == sum(sum(line.get("joined", {}).values()) for line in joined)
    assert not any(code in summed.answers for summed in sums for code in (Code.EARLY, Code.HISTORY))
