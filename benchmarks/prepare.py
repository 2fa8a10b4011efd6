"""How fast `sotto prepare` reads, and what memory it takes: by turns with another version, and on repeated corpora.

    python benchmarks/prepare.py corpus.jsonl.zst --against ../before/src --runs 3
    python benchmarks/prepare.py corpus.jsonl.zst --times 1 4 16
    python benchmarks/prepare.py corpus.jsonl --times 1 4 --spark --runs 1

Each run is a process of its own. A corpus is repeated with other user names, so that it has more users. `--against`
names the folder `src` of another version; the stores of both must have the same bytes.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

OURS = Path(__file__).parents[1] / "packages/sottovoce/src"
# Written for any version: it is run with the package of another one, too.
ONE_RUN = """
import hashlib, json, resource, sys, time
from pathlib import Path
from sottovoce.data.grouping import Grouping
from sottovoce.data.prepare import prepare
from sottovoce.data.vocabulary import Vocabulary
corpus, out, language = sys.argv[1:]
words = Vocabulary.public(10_000, language)
start, cpu = time.perf_counter(), time.process_time()
summary = prepare(corpus, out, words, Grouping(every_record_is_a_user=True))
seconds, cpu = time.perf_counter() - start, time.process_time() - cpu
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
names = ("train.arrow", "test.arrow", "store.json", "preparation.json")
digest = " ".join(hashlib.sha256(Path(out, name).read_bytes()).hexdigest() for name in names)
print(json.dumps([summary.tokens_seen, summary.users_seen, seconds, cpu, peak * 1024, digest]))
"""


ONE_SPARK_RUN = """
import json, os, sys, time
from pathlib import Path
from pyspark.sql import SparkSession
from sottovoce.data.grouping import Grouping
from sottovoce.data.spark import SparkCorpus, prepare_with_spark
from sottovoce.data.vocabulary import Vocabulary
corpus, out, scratch = sys.argv[1:]
os.environ["PYSPARK_PYTHON"] = sys.executable
words = Vocabulary.public(10_000)
builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
builder = builder.config("spark.local.dir", scratch).config("spark.driver.memory", "2g")
session = builder.getOrCreate()
session.range(2).mapInArrow(lambda batches: batches, "id long").count()
print("ready", flush=True)
start = time.perf_counter()
summary = prepare_with_spark(SparkCorpus((corpus,), shards=2), out, words, Grouping(every_record_is_a_user=True))
seconds = time.perf_counter() - start
written = sum(file.stat().st_size for file in Path(out).glob("*.arrow"))
print(json.dumps([summary.tokens_seen, summary.users_seen, seconds, written]))
"""


@dataclass(frozen=True)
class Timed:
    tokens: int
    users: int
    seconds: float
    cpu_seconds: float
    peak_bytes: int
    digest: str


def timed(source: Path, corpus: Path, language: str) -> Timed:
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-c", ONE_RUN, str(corpus), str(Path(folder) / "store"), language]
        done = subprocess.run(command, env={**os.environ, "PYTHONPATH": str(source)}, capture_output=True, text=True)
    if done.returncode:
        sys.exit(done.stderr)
    return Timed(*json.loads(done.stdout.splitlines()[-1]))


def timed_spark(corpus: Path) -> str:
    """A row of the table of Spark: CPU of all its processes, and the most that lay in its scratch folder."""
    with tempfile.TemporaryDirectory() as folder:
        scratch = Path(folder) / "scratch"
        scratch.mkdir()
        command = [sys.executable, "-c", ONE_SPARK_RUN, str(corpus), str(Path(folder) / "store"), str(scratch)]
        path = os.pathsep.join([str(OURS), os.environ.get("PYTHONPATH", "")])
        with subprocess.Popen(
            command,
            env={**os.environ, "PYTHONPATH": path},
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            start_new_session=True,
        ) as running:
            assert running.stdout is not None
            running.stdout.readline()
            before, used, most = sum(cpu_of(running.pid).values()), dict[int, float](), 0
            while running.poll() is None:
                used |= cpu_of(running.pid)
                most = max(most, sum(size_of(file) for file in scratch.rglob("*")))
                time.sleep(0.3)
            found = running.stdout.read()
    if running.returncode:
        sys.exit("Spark stopped; run ONE_SPARK_RUN alone to see why")
    tokens, users, seconds, written = json.loads(found.splitlines()[-1])
    cpu = sum(used.values()) - before
    return (
        f"{users:,} | {tokens / 1e6:.1f} | {seconds:.1f} | {cpu:.1f} | {tokens / cpu:,.0f} | {most / 1e6:.0f} | "
        f"{written / 1e6:.0f}"
    )


def size_of(file: Path) -> int:
    try:
        return file.stat().st_size if file.is_file() else 0
    except OSError:  # Spark removed it
        return 0


def cpu_of(session: int) -> dict[int, float]:
    """The CPU seconds of every process of a session, so far."""
    found = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            facts = stat.read_text().rpartition(") ")[2].split()
        except OSError:
            continue
        if int(facts[3]) == session:
            found[int(stat.parent.name)] = (int(facts[11]) + int(facts[12])) / os.sysconf("SC_CLK_TCK")
    return found


def repeated(corpus: Path, times: int, folder: Path) -> Path:
    """A file with every record of a corpus several times, each time of another user."""
    from sottovoce.data.lines import lines

    if times == 1:
        return corpus
    out = folder / f"{times}.jsonl"
    with out.open("w", encoding="utf-8") as file:
        for number in range(times):
            for line in lines(corpus):
                file.write(re.sub('"user": ?"', f'"user": "{number} ', line, count=1))
    return out


def processor() -> str:
    known = Path("/proc/cpuinfo")
    found = [line for line in known.read_text().splitlines() if line.startswith("model name")] if known.exists() else []
    return found[0].partition(": ")[2] if found else "an unknown CPU"


def main() -> None:
    parser = argparse.ArgumentParser(description="Time `sotto prepare`.")
    parser.add_argument("corpus", type=Path)
    parser.add_argument("--against", type=Path, help="the folder src of another version")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--times", type=int, nargs="+", default=[1])
    parser.add_argument("--language", default="en")
    parser.add_argument("--spark", action="store_true", help="time --engine spark in local mode")
    given = parser.parse_args()
    print(f"{len(os.sched_getaffinity(0))} cores of {processor()}, load {os.getloadavg()[0]:.1f}")
    if given.spark:
        print(
            "| times | users | million tokens | seconds | CPU seconds | tokens a CPU second | scratch MB | store MB |"
        )
        print("| --- | --- | --- | --- | --- | --- | --- | --- |")
        with tempfile.TemporaryDirectory() as folder:
            for times in given.times:
                print(f"| {times} | {timed_spark(repeated(given.corpus, times, Path(folder)))} |", flush=True)
        return
    print("| version | times | users | million tokens | seconds | tokens/s | CPU seconds | peak MiB |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- |")
    with tempfile.TemporaryDirectory() as folder:
        for times in given.times:
            corpus = repeated(given.corpus, times, Path(folder))
            versions = {"before": given.against, "this": OURS} if given.against else {"this": OURS}
            found: dict[str, list[Timed]] = {name: [] for name in versions}
            for _ in range(given.runs):
                for name, source in versions.items():
                    found[name].append(timed(source, corpus, given.language))
            for name, runs in found.items():
                wall, cpu = (statistics.median(getattr(run, key) for run in runs) for key in ("seconds", "cpu_seconds"))
                peak = max(run.peak_bytes for run in runs) / 2**20
                first = runs[0]
                print(
                    f"| {name} | {times} | {first.users:,} | {first.tokens / 1e6:.1f} | {wall:.2f} | "
                    f"{first.tokens / wall:,.0f} | {cpu:.2f} | {peak:.0f} |",
                    flush=True,
                )
            if given.against:
                ratios = [b.seconds / a.seconds for b, a in zip(found["before"], found["this"], strict=True)]
                same = len({run.digest for runs in found.values() for run in runs}) == 1
                shown = ", ".join(f"{ratio:.2f}" for ratio in ratios)
                print(f"\n{shown} times as fast; the stores have {'the same' if same else 'OTHER'} bytes\n")


if __name__ == "__main__":
    main()
