"""The headline run: 5,000 rounds of 5,000 of 763,430 made-up people, interrupted and killed, to its report.

    python benchmarks/headline.py FOLDER                      # all of it, on a machine with a GPU
    python benchmarks/headline.py FOLDER --seconds 560        # a part of it; the same line again goes on

It makes the people (`synthetic.py`), then calls `sotto` as a person would: plan, train, resume after SIGINT, resume
after kill -9, report, plan --ledger, evaluate. Whatever was done is not done again, so it may be stopped at any time
and called again. FOLDER gets `store`, `run` and `headline.json`: the seconds of each step, the rounds between
interruptions, ε of plan and of the ledger.

Of real people, from a public model:

    python benchmarks/headline.py FOLDER --store STORE --users 27000 --cohort 177 --set model.initial=BASE

A small one:

    python benchmarks/headline.py FOLDER --users 2000 --cohort 40 --rounds 20 --tokens 40 --delta 1e-5 --small
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from synthetic import Population, write_population

from sottovoce.data.vocabulary import Vocabulary

SOTTO = [sys.executable, "-c", "import sys\nfrom sottovoce.cli.main import main\nmain(sys.argv[1:])"]
SMALL = (
    "model.embedding=8",
    "model.hidden=8",
    "run.evaluate_every=5",
    "run.evaluate_users=20",
    "run.checkpoint_every=4",
)
ENDING = 45.0  # seconds that are kept for the round in progress, its checkpoint and the statement
CALL_AGAIN = 3  # the exit status when the time was up


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--users", type=int, default=763_430)
    parser.add_argument("--cohort", type=int, default=5_000)
    parser.add_argument("--rounds", type=int, default=5_000)
    parser.add_argument("--tokens", type=int, default=400, help="of each person")
    parser.add_argument("--delta", type=float, default=1e-9)
    parser.add_argument("--noise-multiplier", type=float, default=1.0)
    parser.add_argument("--store", type=Path, help="a prepared store, instead of made-up people")
    parser.add_argument("--small", action="store_true", help="a tiny model, for a machine without a GPU")
    parser.add_argument("--set", action="append", default=[], help="a value of the recipe, as for `sotto train`")
    shares = {"type": float, "nargs": "*"}
    parser.add_argument("--interrupt-at", **shares, default=[0.2], help="SIGINT after these shares of the rounds")
    parser.add_argument("--kill-at", **shares, default=[0.503], help="kill -9 after these shares: between checkpoints")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="stop after so long; exit status 3")
    arguments = parser.parse_args()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    sys.exit(Headline(arguments).play())


@dataclass
class Headline:
    asked: argparse.Namespace
    begun: float = field(default_factory=time.monotonic)

    def __post_init__(self) -> None:
        folder = self.asked.folder
        self.store, self.run = self.asked.store or folder / "store", folder / "run"
        self.file = folder / "headline.json"
        names = ("users", "cohort", "rounds", "tokens", "delta", "noise_multiplier")
        size = {name: getattr(self.asked, name) for name in names}
        self.found: dict[str, Any] = {"asked": size, "steps": {}, "training": []}
        if self.file.exists():
            self.found = json.loads(self.file.read_text())
            if self.found["asked"] != size:
                sys.exit(f"{self.file} is of {self.found['asked']}; name another folder")

    def play(self) -> int:
        self.step("machine", lambda: machine() | {"doctor": sotto("doctor", "--json", fine=(0, 1))})
        if not self.asked.store:
            self.step("prepare", self.prepare)
        self.step("plan", self.plan)
        while self.done < self.asked.rounds or not self.finished:
            if self.left < 2 * ENDING:
                return self.call_again()
            self.train()
        self.step("report", self.report)
        self.step("ledger", self.ledger)
        self.step("evaluate", lambda: sotto("evaluate", self.run, "--json"))
        self.step("summary", self.summary)
        print(json.dumps(self.found["steps"]["summary"], indent=1))
        return 0

    @property
    def left(self) -> float:
        return self.asked.seconds - (time.monotonic() - self.begun)

    @property
    def finished(self) -> bool:
        parts = self.found["training"]
        return bool(parts) and parts[-1]["ended"] == "finished"

    @property
    def done(self) -> int:
        """Rounds in the record of the run."""
        record = self.run / "record.jsonl"
        return record.read_bytes().count(b"\n") if record.exists() else 0

    def call_again(self) -> int:
        print(f"round {self.done:,} of {self.asked.rounds:,}; call it again to go on", file=sys.stderr)
        return CALL_AGAIN

    def save(self) -> None:
        partial = self.file.with_suffix(".partial")
        partial.write_text(json.dumps(self.found, indent=1) + "\n")
        partial.replace(self.file)

    def step(self, name: str, act: Any) -> None:
        """Do something once, with its time."""
        if name in self.found["steps"]:
            return
        begun = time.monotonic()
        answer = act()
        self.found["steps"][name] = {"seconds": round(time.monotonic() - begun, 2), **answer}
        self.save()
        print(f"{name}: {self.found['steps'][name]['seconds']} s", file=sys.stderr)

    def prepare(self) -> dict[str, Any]:
        asked = self.asked
        people = Population(asked.users, asked.tokens, test_users=0.01)
        summary = write_population(people, self.store, Vocabulary.public()).to_json()
        return {"summary": summary, "bytes": sum(size_of(path) for path in self.store.iterdir())}

    def plan(self) -> dict[str, Any]:
        names = ("users", "cohort", "rounds", "delta", "noise_multiplier")
        size = [part for name in names for part in ("--" + name.replace("_", "-"), getattr(self.asked, name))]
        plans = {}
        for accountant in ("pld", "rdp", "moments"):
            made = sotto("plan", *size, "--accountant", accountant, "--json")
            plans[accountant] = made["epsilon"]
        return {"epsilon": plans}

    def train(self) -> None:
        """Train or resume, until the end, the next interruption, or the time is up."""
        before, begun = self.done, time.monotonic()
        command = ("resume", self.run) if self.run.exists() else ("train", *self.recipe, "--out", self.run, "--yes")
        log = self.asked.folder / f"training-{len(self.found['training'])}.log"
        with log.open("wb") as file:
            process = subprocess.Popen([*SOTTO, *map(str, command), "--json"], stdout=file, stderr=file)
        first, sent, fewest = None, None, before
        while process.poll() is None:
            time.sleep(0.2)
            fewest = min(fewest, self.done)  # rounds after the checkpoint are taken from the record, and come again
            if first is None and self.done > fewest:
                first = time.monotonic() - begun
            sent = sent or self.interrupt(process, first is not None)
        answer = last_object(log)
        if process.returncode not in (0, 128 + signal.SIGINT, -signal.SIGKILL):
            sys.exit(f"`sotto {command[0]}` ended with {process.returncode}: {log.read_text()[-2000:]}")
        part = {
            "command": command[0],
            "ended": sent or answer.get("ended", "killed"),
            "from_round": before,
            "to_round": self.done,
            "seconds": round(time.monotonic() - begun, 2),
            "seconds_to_first_round": None if first is None else round(first, 2),
            "notes": answer.get("notes"),
        }
        self.found["training"].append(part)
        self.save()
        print(json.dumps(part), file=sys.stderr)

    def interrupt(self, process: subprocess.Popen[bytes], playing: bool) -> str | None:
        """Send what is due, once; its name."""
        asked = {"SIGINT": self.asked.interrupt_at, "SIGKILL": self.asked.kill_at}
        planned = sorted((share, name) for name, shares in asked.items() for share in shares)
        sent = sum(part["ended"] in asked for part in self.found["training"])
        for share, name in planned[sent : sent + 1]:
            if playing and share * self.asked.rounds <= self.done < self.asked.rounds:
                process.send_signal(signal.Signals[name])
                return name
        if self.left < ENDING and playing:
            process.send_signal(signal.SIGINT)
            return "time"
        return None

    @property
    def recipe(self) -> list[str]:
        asked = self.asked
        settings = [
            f"data.store={self.store}",
            f"privacy.users={asked.users}",
            f"privacy.cohort={asked.cohort}",
            f"privacy.delta={asked.delta:g}",
            f"privacy.noise_multiplier={asked.noise_multiplier:g}",
            f"run.rounds={asked.rounds}",
            *(SMALL if asked.small else ()),
            *asked.set,
        ]
        return ["headline", *(part for setting in settings for part in ("--set", setting))]

    def report(self) -> dict[str, Any]:
        sotto_text("report", self.run)
        return {"bytes": size_of(self.run / "report.html")}

    def ledger(self) -> dict[str, Any]:
        """ε of what the ledger of the run holds: nothing is projected."""
        found = {}
        for accountant in ("pld", "moments"):
            judged = sotto(
                "plan", "--ledger", self.run, "--delta", self.asked.delta, "--accountant", accountant, "--json"
            )
            found[accountant] = judged
        lines = (self.run / "ledger.jsonl").read_bytes().count(b"\n")
        return {"judged": found, "lines": lines, "bytes": size_of(self.run / "ledger.jsonl")}

    def summary(self) -> dict[str, Any]:
        statement = json.loads((self.run / "privacy.json").read_text())
        rounds = [json.loads(line) for line in (self.run / "diagnostics.jsonl").read_text().splitlines()]
        scores = [json.loads(line) for line in (self.run / "record.jsonl").read_text().splitlines()]
        seconds, users = sum(line["seconds"] for line in rounds), sum(line.get("users", 0) for line in rounds)
        named = ("private", "epsilon", "delta", "epsilon_spent", "epsilon_store", "starts", "rounds_done")
        return {
            "statement": {name: statement.get(name) for name in named},
            "user_updates": users,
            "seconds_in_rounds": round(seconds, 1),
            "seconds_of_training": round(sum(part["seconds"] for part in self.found["training"]), 1),
            "users_per_second_in_rounds": round(users / seconds, 1),
            "interruptions": [part["ended"] for part in self.found["training"][:-1]],
            "evaluations": [
                {"round": line["round"], "top1": line["evaluation"]["top1"]} for line in scores if "evaluation" in line
            ],
            "run_bytes": sum(size_of(path) for path in self.run.rglob("*")),
        }


def sotto(*arguments: object, fine: tuple[int, ...] = (0,)) -> dict[str, Any]:
    return json.loads(sotto_text(*arguments, fine=fine).splitlines()[-1])


def sotto_text(*arguments: object, fine: tuple[int, ...] = (0,)) -> str:
    done = subprocess.run([*SOTTO, *map(str, arguments)], capture_output=True, text=True)
    if done.returncode not in fine:
        sys.exit(f"`sotto {arguments[0]}` ended with {done.returncode}: {done.stderr[-2000:]}")
    return done.stdout.strip()


def last_object(log: Path) -> dict[str, Any]:
    """The JSON object that a command printed at its end; nothing where it was killed."""
    for line in reversed(log.read_text(errors="replace").splitlines()):
        if line.startswith("{"):
            return json.loads(line)
    return {}


def size_of(path: Path) -> int:
    return path.stat().st_size if path.is_file() else 0


def machine() -> dict[str, Any]:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return {"cpu": names[0] if names else platform.machine(), "cores": len(os.sched_getaffinity(0))}


if __name__ == "__main__":
    main()
