"""Spark writes the bytes that one machine writes: its two steps alone, and whole where PySpark is installed."""

from __future__ import annotations

import importlib.util
import json
import random
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pytest

from sottovoce.data import spark
from sottovoce.data.blocks import OwnedTexts
from sottovoce.data.encoding import encode_block
from sottovoce.data.grouping import Grouping
from sottovoce.data.prepare import needed_tokens, prepare
from sottovoce.data.spark import ORDER, SparkCorpus, prepare_with_spark, text_rows
from sottovoce.data.store import DECLARED, Store
from sottovoce.data.vocabulary import Vocabulary
from sottovoce_evidence.errors import SottoError

WORDS = Vocabulary.from_words("abcdefgh")
GROUPING = Grouping(min_tokens=6, tokens_per_user=60, test_users=0.3)
FILES = ("train.arrow", "test.arrow", "store.json", "preparation.json", "vocabulary.txt")
EMPTY = range(111, 185)
needs_spark = pytest.mark.skipif(not importlib.util.find_spec("pyspark"), reason="needs the extra spark")


def rows(count: int = 600) -> list[dict[str, object]]:
    """User 0 is all over the corpus. Two blocks of 37 records, and one record in nine, are empty."""
    drawn = random.Random(5)
    return [
        {
            "user": f"user {drawn.randrange(40) if number % 3 else 0}",
            "text": " ".join(drawn.choices([*"abcdefgh", "zzz", "né"], k=drawn.randrange(9) * (number not in EMPTY))),
            "ts": f"2026-{number % 12 + 1:02d}-{number % 28 + 1:02d}",
            "n": (number * 37) % 1000,
        }
        for number in range(count)
    ]


def write(path: Path, records: list[dict[str, object]]) -> Path:
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def in_two_steps(folder: Path, records: list[dict[str, object]], shards: int) -> list[dict]:
    """What the tasks do, in small batches, and Arrow's sort in place of Spark's."""
    folder.mkdir()
    work = spark._Work(folder, GROUPING, WORDS, needed_tokens(WORDS, DECLARED), shards)
    batches = []
    for start in range(0, len(records), 37):
        some = records[start : start + 37]
        texts = OwnedTexts.of([((str(row["user"]),), str(row["text"])) for row in some], 1)
        order = pa.RecordBatch.from_pydict({"number": pa.nulls(len(some), pa.float64()), "written": [""] * len(some)})
        found = encode_block(texts, GROUPING, WORDS)
        batches.append(text_rows(found, order, (0, start // 111, start % 111), (list(range(shards)), shards)))
    random.Random(1).shuffle(batches)
    table = pa.Table.from_batches(batches)
    table = table.sort_by([(name, "ascending") for name in ORDER if name not in ("number", "tokens")])
    written = list(spark._writer(work)(iter(table.to_batches(max_chunksize=50))))
    return [json.loads(each) for batch in written for each in batch.column("facts").to_pylist() if each]


@pytest.mark.parametrize("shards", [1, 3])
def test_both_steps_give_the_rows_of_one_machine(tmp_path: Path, shards: int) -> None:
    prepare(write(tmp_path / "c.jsonl", rows()), tmp_path / "store", WORDS, GROUPING)
    facts = in_two_steps(tmp_path / "steps", rows(), shards)
    corpus = SparkCorpus(files=("c.jsonl",), shards=shards)
    work = spark._Work(tmp_path / "steps", GROUPING, WORDS, needed_tokens(WORDS, DECLARED), shards)
    spark._finished(work, corpus, facts, 0, DECLARED)
    for split in ("train", "test"):
        one, other = Store.open(tmp_path / "store", split), Store.open(tmp_path / "steps", split)
        assert len(other.rows.mappings) == shards
        assert one.fingerprint == other.fingerprint
        assert one.names_fingerprint == other.names_fingerprint
        picked = list(range(0, one.users, 2))
        assert (one.gather(picked).tokens == other.gather(picked).tokens).all()
    names = FILES if shards == 1 else FILES[3:]
    assert json.loads((tmp_path / "steps" / "preparation.json").read_text())["records_empty"] > len(EMPTY)
    assert [(tmp_path / "store" / name).read_bytes() for name in names] == [
        (tmp_path / "steps" / name).read_bytes() for name in names
    ]


def test_a_shard_without_users_is_an_empty_file(tmp_path: Path) -> None:
    facts = in_two_steps(tmp_path / "steps", rows(), 200)
    assert len(facts) < 200
    work = spark._Work(tmp_path / "steps", GROUPING, WORDS, needed_tokens(WORDS, DECLARED), 200)
    summary = spark._finished(work, SparkCorpus(files=("c.jsonl",), shards=200), facts, 0, DECLARED)
    store = Store.open(tmp_path / "steps")
    assert store.users == summary.train_users
    assert sum(len(store[row]) for row in range(store.users)) == summary.train_tokens


def test_an_error_of_a_task_is_one_line_and_one_of_spark_shows_no_value() -> None:
    task = Exception("org.apache.spark...\nTraceback\n  x\nsottovoce.errors.SottoError: c.jsonl:3: not JSON\n\tat java")
    assert spark._one_line(task) == "c.jsonl:3: not JSON"
    assert "ann" not in spark._one_line(Exception("cannot cast 'ann' to int\n at java"))


@pytest.fixture(scope="module")
def session() -> Iterator[object]:
    """Local mode with two threads, and pieces of files so small that a user is in all of them."""
    import os
    import sys

    from pyspark.sql import SparkSession

    os.environ["PYSPARK_PYTHON"] = sys.executable
    settings = {
        "spark.ui.enabled": "false",
        "spark.sql.files.maxPartitionBytes": "12000",
        "spark.sql.files.openCostInBytes": "0",
        "spark.sql.execution.arrow.maxRecordsPerBatch": "50",
        "spark.sql.shuffle.partitions": "3",
    }
    builder = SparkSession.builder.master("local[2]")
    for name, value in settings.items():
        builder = builder.config(name, value)
    with builder.getOrCreate() as made:
        yield made


@pytest.mark.slow
@needs_spark
@pytest.mark.filterwarnings("ignore")
@pytest.mark.timeout(1200)
def test_spark_writes_the_store_of_one_machine(session, tmp_path: Path) -> None:
    """Over files and tables, several partitions, a user in all of them, and records out of order."""
    records = rows(900)
    first, second = write(tmp_path / "b file.jsonl", records[:500]), write(tmp_path / "a.jsonl", records[500:])
    prepare([first, second], tmp_path / "one", WORDS, GROUPING)
    wanted = {name: (tmp_path / "one" / name).read_bytes() for name in FILES}
    assert session.read.text([str(first), str(second)]).rdd.getNumPartitions() > 4

    def made(name: str, corpus: SparkCorpus) -> dict[str, bytes]:
        prepare_with_spark(corpus, tmp_path / name, WORDS, GROUPING)
        assert not list((tmp_path / name).glob(".*"))
        return {each: (tmp_path / name / each).read_bytes() for each in FILES if (tmp_path / name / each).exists()}

    assert made("lines", SparkCorpus((first, second))) == wanted
    sharded = made("shards", SparkCorpus((first, second), shards=3))
    assert sharded["preparation.json"] == wanted["preparation.json"]
    assert Store.open(tmp_path / "shards").fingerprint == Store.open(tmp_path / "one").fingerprint

    # Ordered by a number, as text of JSON, as a column of parquet, and as a table that is in another order.
    ordered = sorted(records, key=lambda row: row["n"])
    by_number = write(tmp_path / "ordered.jsonl", ordered)
    prepare(by_number, tmp_path / "by number", WORDS, GROUPING)
    wanted = {name: (tmp_path / "by number" / name).read_bytes() for name in FILES}
    assert made("json", SparkCorpus((first, second), order_field="n")) == wanted
    session.createDataFrame(records[::-1]).repartition(7).createOrReplaceTempView("people")
    assert made("table", SparkCorpus(table="people", order_field="n", shards=1)) == wanted
    from pyarrow import parquet

    parquet.write_table(pa.Table.from_pylist(ordered), tmp_path / "p.parquet", row_group_size=100)
    assert made("parquet", SparkCorpus((tmp_path / "p.parquet",))) == wanted

    # By a date, and by times with and without a time zone.
    since = datetime(1998, 1, 1)
    times = [since + timedelta(days=row["n"], seconds=row["n"] / 2) for row in records]
    dated = pa.Table.from_pylist(records).append_column("day", pa.array([time.date() for time in times]))
    for name, zone in (("at", None), ("there", "UTC")):
        dated = dated.append_column(name, pa.array(times, pa.timestamp("us", zone)))
    parquet.write_table(dated, tmp_path / "dated.parquet", row_group_size=100)
    for name in ("day", "at", "there"):
        assert made(name, SparkCorpus((tmp_path / "dated.parquet",), order_field=name)) == wanted

    # Faults of tasks: one line, and nothing is left.
    for number, (text, message) in enumerate(
        (("oops\n", "not JSON"), ('{"user": null, "text": "a"}\n', "the user in 'user' is null"))
    ):
        bad = tmp_path / f"bad {number}.jsonl"
        bad.write_text(first.read_text() + text)
        with pytest.raises(SottoError, match=message) as caught:
            prepare_with_spark(SparkCorpus((bad,)), tmp_path / "never", WORDS, GROUPING)
        assert "\n" not in str(caught.value)
        assert not (tmp_path / "never").exists()
    with pytest.raises(SottoError, match="has no value in the field that orders"):
        prepare_with_spark(SparkCorpus((first,), order_field="other"), tmp_path / "never", WORDS, GROUPING)
