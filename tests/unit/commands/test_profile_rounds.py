"""What `benchmarks/profile_rounds.py` makes of a trace."""

from __future__ import annotations

import pytest

from benchmark_modules import load_benchmark


@pytest.fixture(scope="module")
def benchmark():
    return load_benchmark("profile_rounds")


def test_only_the_streams_of_a_gpu_count_in_order_of_time(benchmark):
    def thread(process, thread, name):
        return {"name": "thread_name", "pid": process, "tid": thread, "args": {"name": name}}

    def event(process, thread, name, begun, took):
        return {"ph": "X", "pid": process, "tid": thread, "name": name, "ts": begun, "dur": took}

    trace = [
        {"name": "process_name", "pid": 1, "args": {"name": "/device:GPU:0"}},
        {"name": "process_name", "pid": 2, "args": {"name": "/host:CPU"}},
        thread(1, 7, "Stream #7(Compute)"),
        thread(1, 8, "XLA Ops"),
        thread(2, 9, "Stream of the host"),
        event(1, 7, "late", 9.0, 1.0),
        event(1, 7, "early", 1.0, 2.0),
        event(1, 8, "the same again", 1.0, 2.0),
        event(2, 9, "host", 0.0, 5.0),
    ]
    assert benchmark.device_events({"traceEvents": trace}) == [("early", 1.0, 2.0), ("late", 9.0, 1.0)]


def test_work_on_two_streams_at_once_counts_once_and_gaps_say_what_came_next(benchmark):
    events = [benchmark.Event(*each) for each in (("a", 0, 4), ("b", 1, 2), ("c", 3, 4), ("d", 10, 1))]
    assert benchmark.busy_and_gaps(events) == (8, [(3, "d")])
    assert benchmark.busy_and_gaps([]) == (0, [])
    assert benchmark.kernels([*events, events[0]], 1) == [("a", 8 / 3 / 1e3, 0)]


def test_functions_of_a_round_say_when_they_begin_and_end(benchmark, monkeypatch):
    monkeypatch.setattr(benchmark, "ROUNDS", 2)
    workload = benchmark.WORKLOADS["demo"]
    store = workload.users(4)
    play = benchmark.play_next(workload.assemble(store, block=4, kernels="off"), store)
    found = {name: (begun, ended) for name, begun, ended in benchmark.host_times(play)}
    assert found["_add_block"][1] <= found["release"][0] <= found["charge"][0] <= found["charge"][1]
    assert found["charge"][1] <= found["add_noise"][0] <= found["step"][0] <= found["step"][1] <= found["release"][1]
