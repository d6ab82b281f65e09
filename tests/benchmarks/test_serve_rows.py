"""What was measured of a server becomes a row that the tables take."""

from __future__ import annotations

from benchmarks.card.machine import Gpu, Machine
from benchmarks.measurement import Arrivals, Measurement, Numbers, Points, Workload
from benchmarks.papers.chunk_arrivals import Load
from benchmarks.serve_arrivals import prompts_of
from benchmarks.serve_clients import Asking, _written
from benchmarks.serve_rows import said_by, serve_row
from benchmarks.tables.page import page

GPUS = tuple(Gpu("NVIDIA H100 80GB HBM3", f"GPU-{i}", 80.0, 700.0, "580.1") for i in range(4))
ARRIVALS = Arrivals(
    rate=2, requests=40, shared=True, mean=12.5, normalised=Points(p50=12, p99=15)
)  # fmt: skip


def row(flags: list[str], gpus: tuple[Gpu, ...] = GPUS) -> Measurement:
    machine = Machine(gpus, "a CPU, 2 cores", "abcdef1", "13.0" if gpus else None)
    workload = Workload(name="w", problems=40, samples=1, output=512)
    return serve_row("arrivals", "./m8", flags, machine, workload, Numbers(arrivals=(ARRIVALS,)))


def test_the_cards_are_those_of_all_engines() -> None:
    assert said_by(["--max-sequences=32", "--no-compile"]) == {
        "max_sequences": "32", "no_compile": "",
    }  # fmt: skip
    assert row(["--workers=2", "--tensor-parallel-size=2"]).card.count == 4
    assert row([]).card.count == 1 and row([]).card.kind == "gpu"
    assert row(["--device=cpu"]).card.kind == row([], ()).card.kind == "cpu"


def test_a_row_is_named_after_what_it_is_of_and_stands_in_the_page() -> None:
    found = row([])
    assert found.row == "arrivals-m8" and found.name.endswith("-h100-80gb-hbm3-arrivals-m8")
    assert Measurement.model_validate_json(found.model_dump_json()) == found
    assert "| 2.0 | shared | 12.5 | 12.0 | 15.0 |" in page([found])


def test_prompts_share_all_but_their_last_block_or_nothing() -> None:
    load = Load(40, 8, (1.0,))
    shared = prompts_of(load, 3, 500, True, "1")
    assert len({tuple(prompt[:24]) for prompt in shared}) == 1
    assert len({tuple(prompt[24:]) for prompt in shared}) == 3
    others = [*prompts_of(load, 3, 500, False, "1"), *prompts_of(load, 1, 500, True, "2")]
    assert len({tuple(prompt[:16]) for prompt in others} | {tuple(shared[0][:16])}) == 5
    assert {len(prompt) for prompt in shared + others} == {40}


def test_the_raw_client_writes_a_whole_request() -> None:
    head, _, body = _written(Asking(1, "m", 8, 4, "raw"), "hä").partition(b"\r\n\r\n")
    assert b"Content-Length: %d" % len(body) in head and body.startswith(b'{"model": "m"')
