from __future__ import annotations

import shlex
from dataclasses import replace
from pathlib import Path

import pytest

from sharegen.results.journal.record import Record, read
from sharegen.results.journal.run_file import RunFile
from sharegen.results.screen.summary import print_summary

RUN = RunFile(
    stats={
        "prompt_tokens_asked": 9000, "prompt_tokens_computed": 300, "generated_tokens": 450,
        "preemptions": 2, "shrinks": 3,
        "peak_kv": {"reserved": 3 << 20, "used": 2 << 20},
        "kv_in_steps": {"reserved": 400, "used": 300},
        "peak_states": 6, "states_total": 34,
        "plan": {
            "kv_shared_bytes": 1 << 20, "kv_unshared_bytes": 30 << 20, "samples": 10, "nodes": 2,
            "state_bytes": 1 << 19,
        },
    },
    timings={"sampling_seconds": 4.5},
)  # fmt: skip


def sample(problem: str, index: int, answer: str | None, gold: str | None = "7") -> Record:
    return Record(problem, index, "h", f"so it is\n#### {answer}", 10, "stop", -1.0, answer, gold)


@pytest.fixture
def summarise(  # type: ignore[no-untyped-def]
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)  # a long path takes lines of the screen, and so the example's room

    def summarise(
        records: list[Record], run: RunFile = RUN, samples: int = 5, **questions: str
    ) -> str:
        path = Path("a.jsonl")
        path.write_bytes(b"".join(record.to_line() for record in records))
        print_summary(path, read(path), run, samples, questions)
        return capsys.readouterr().out

    return summarise


def test_a_vote_that_rescues(summarise) -> None:  # type: ignore[no-untyped-def]
    answers = ["3", "7", "4", "7.0", None]
    records = [sample("p", index, answer) for index, answer in enumerate(answers)]
    records += [sample("q", index, "8") for index in range(5)]
    out = summarise(records, p="How [many]?\n", q="And now?")
    for said in (
        "10, 100 tokens (stop 10)", "100 tokens/s", "9,000 asked, 300 computed (30.0x fewer)",
        "30.0 MiB unshared, 1.0 MiB shared", "preemptions", "one sample  20.0%",
        "3 times: it went on",
        "3.0 MiB reserved, 2.0 MiB used; 25.0% empty on average",
        "6 of 34 slots, 3.0 MiB",
        "the vote    50.0% (+30.0 points)",
        "(problem p)", "How [many]?", "7 ✓ gold", "--problem p", "vote", "--at 1",
    ):  # fmt: skip
        assert said in out, said
    assert "And now?" not in out


def test_what_comes_next_can_be_pasted_into_a_shell(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "my [bold] run.jsonl"
    path.write_bytes(sample("it's $1; [x]", 0, "7").to_line())
    print_summary(path, read(path), RUN, 5, {"it's $1; [x]": "?"})
    lines = capsys.readouterr().out.splitlines()
    commands = [shlex.split(line.partition("sharegen ")[2]) for line in lines[-2:]]
    assert commands == [
        ["vote", str(path), "--at", "1"],
        ["show", str(path), "--problem", "it's $1; [x]"],
    ]
    assert lines[-3] == f"journal  {path}"


FAR = {"steps": 60, "mean": 0.05, "p99": 0.3, "largest": 0.9, "changed": 0.1}


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({}, "64 steps: log-probabilities differ from the model's own attention by at most 1.2e-05 "
         "(mean 3e-06); its own back ends differ among themselves by 9.5e-06"),
        ({"among_back_ends": None, "no_yardstick": "only eager computes it"},
         "(mean 3e-06); there is no yardstick: only eager computes it"),
        ({"skipped": 3}, "by 9.5e-06; 3 steps need more memory than there is"),
        ({"steps": 0, "skipped": 64}, "verified nothing: 64 steps need more memory than there is"),
        ({"from_checkpoint": FAR},
         "by 9.5e-06; from those of the weights as the checkpoint has them by 0.05 on average, 0.3 "
         "at the 99th percentile and 0.9 at most, and the likeliest token is another one in 10.0% "
         "of 60 steps"),
    ],
)  # fmt: skip
def test_what_was_verified(summarise, changes: dict[str, object], said: str) -> None:  # type: ignore[no-untyped-def]
    verified = {"steps": 64, "skipped": 0, "largest": 1.23e-5, "mean": 3e-6,
                "among_back_ends": 9.5e-6, "no_yardstick": None, "reference": "sdpa"}  # fmt: skip
    run = RunFile(stats={"verified": verified | changes})
    assert said in " ".join(summarise([sample("p", 0, "7")], run, p="?").split())


def test_how_far_an_fp8_kv_cache_is(summarise) -> None:  # type: ignore[no-untyped-def]
    verified = FAR | {"skipped": 0, "among_back_ends": 9.5e-6, "no_yardstick": None}
    run = RunFile({"kv_cache_dtype": "fp8"}, stats={"verified": verified})
    said = " ".join(summarise([sample("p", 0, "7")], run, p="?").split())
    assert "; that is 0.05 on average, 0.3 at the 99th percentile and 0.9 at most, and the" in said


@pytest.mark.parametrize(
    ("found", "said"),
    [
        ({"samples": 64, "same": 64}, "64 samples, in another batch: all the same, byte for byte"),
        (
            {"samples": 64, "same": 61, "first": "problem 7, sample 2"},
            "64 samples, in another batch: 61 the same, byte for byte (the first that is not: "
            "problem 7, sample 2)",
        ),
    ],
)
def test_what_was_drawn_again(summarise, found: dict[str, object], said: str) -> None:  # type: ignore[no-untyped-def]
    plain = " ".join(summarise([sample("p", 0, "7")], p="?").split())
    assert "deterministic" not in plain and "drawn again" not in plain
    run = RunFile({"deterministic": True}, stats={"drawn_again": found})
    out = " ".join(summarise([sample("p", 0, "7")], run, p="?").split())
    assert f"drawn again {said}" in out and "mode deterministic: each sample's bits" in out


@pytest.mark.parametrize(
    ("stats", "said"),
    [
        ({"steps_by_levels": {"0": 30, "0 1": 70}},
         "decoding 100 steps, 90% of 5 slots taken; shared text read once"),
        ({"steps_by_levels": {"": 100}}, "90% of 5 slots taken; each sample read all of its text"),
        ({"steps_by_levels": {"": 2, "0": 98}}, "taken; shared text read once in 98 of them"),
        ({"slow_steps": 104, "slow_attention": "a head size of 512 (at most 256)"},
         "slow attention 104 steps in plain torch, as no kernel serves: a head size of 512 (at "
         "most 256)"),
        ({"completions": 70, "copies": 60}, "90% of 5 slots taken"),
        ({"copies": 60}, "60 completions repeat another of their problem"),
        ({"slow_steps": 4, "slow_attention": None}, "4 steps in plain torch, as no kernel serves"),
    ],
)  # fmt: skip
def test_how_the_steps_went(summarise, stats: dict[str, object], said: str) -> None:  # type: ignore[no-untyped-def]
    known = {"decode_steps": 100, "slots": 5, "generated_tokens": 460, "completions": 10}
    out = summarise([sample("p", 0, "7")], RunFile(stats=known | stats), p="?")
    assert said in " ".join(out.split())


def test_how_long_the_host_had_nothing_to_do(summarise) -> None:  # type: ignore[no-untyped-def]
    run = RunFile(
        stats={"device": "cuda", "waited_seconds": 30.0, "engines": 2},
        timings={"sampling_seconds": 50.0},
    )
    out = " ".join(summarise([sample("p", 0, "7")], run, p="?").split())
    assert "host waited for the GPU for 30% of the time" in out
    on_cpu = replace(run, stats=run.stats | {"device": "cpu"})
    assert "waited" not in summarise([sample("p", 0, "7")], on_cpu, p="?")


def test_how_many_answers_could_be_read(summarise) -> None:  # type: ignore[no-untyped-def]
    answer = {"patterns": [r"\d+"], "gold": {"field": "solution"}}
    run = replace(RUN, configuration={"answer": answer})
    known = [sample("p", 0, "7"), sample("p", 1, None), sample("q", 0, None, gold=None)]
    out = summarise(known, run, p="?", q="?")
    assert "read in 1 of 3 completions" in out and "known of 1 of 2 problems" in out
    assert "no answer could be read" not in out and "no gold answer" not in out
    out = summarise([sample("p", 0, None, gold=None)], run, p="?")
    assert "read in 0 of 1 completions" in out and "no answer could be read" in out
    assert "no gold answer is known: see answer.gold" in out
    out = summarise(known, replace(RUN, configuration={"answer": {"patterns": ["x"]}}), p="?")
    assert "gold answers" not in out
    assert "read in" not in summarise(known, p="?")


def test_a_recipe_may_want_no_vote(summarise) -> None:  # type: ignore[no-untyped-def]
    records = [sample("p", index, answer) for index, answer in enumerate(["7", "8", "7"])]
    assert "the vote" in summarise(records, p="?")
    without = summarise(records, replace(RUN, extent={"vote": False}), p="?")
    assert "accuracy" in without and "66.7%" in without
    assert "the vote" not in without and "sharegen vote" not in without


def test_only_what_was_asked_counts(summarise) -> None:  # type: ignore[no-untyped-def]
    records = [sample(problem, index, "7") for problem in "pq" for index in range(5)]
    records.append(Record("r", None, None, error="no"))
    out = summarise(records, samples=2, p="?")
    assert "2, 20 tokens" in out and "one sample  100.0%" in out
    assert "1 bad row" in out


def test_what_a_killed_run_did_not_count_is_said(summarise) -> None:  # type: ignore[no-untyped-def]
    records = [sample("p", index, "7") for index in range(5)]
    stats = RUN.stats | {"samples_recorded": 3, "prompt_tokens_recomputed": 40}
    out = summarise(records, replace(RUN, stats=stats, counts={"samples": 5}), p="?")
    out = " ".join(out.split())  # the terminal is narrow
    assert "of 3 of 5 completions on record, a run that was killed left no counts" in out
    assert "300 computed (30.0x fewer; 40 of them again, as the KV cache was too small)" in out
    told = replace(RUN, stats=stats | {"samples_recorded": 5}, counts={"samples": 5})
    assert "left no counts" not in " ".join(summarise(records, told, p="?").split())


def test_failed_samples_are_counted_and_one_is_told(summarise) -> None:  # type: ignore[no-untyped-def]
    failed = Record("p", 1, "h", finish_reason="error", error="NaN: use another dtype")
    out = " ".join(summarise([sample("p", 0, "7"), failed], p="?").split())
    assert "error 1" in out and "failed 1, problem p, sample 1: NaN: use another dtype" in out


def test_a_bad_row_that_has_been_asked_since_is_none(summarise) -> None:  # type: ignore[no-untyped-def]
    bad = Record("p", None, None, error="no room")
    assert "1 bad row" in summarise([bad, sample("q", 0, "7")], p="?", q="?")
    assert "bad row" not in summarise([bad, sample("p", 0, "7")], p="?")


def test_without_gold_or_answers(summarise) -> None:  # type: ignore[no-untyped-def]
    out = summarise([sample("p", 0, None, None)], RunFile(), p="?")
    assert "accuracy" not in out and "sharegen vote" not in out and "tokens/s" not in out
    assert "sharegen show" in out


def test_programs_are_to_be_scored_next(summarise) -> None:  # type: ignore[no-untyped-def]
    run = RunFile(configuration={"dataset": {"rows": "apps"}})
    out = summarise([sample("p", 0, None, None)], run, p="?")
    assert out.index("next     sharegen score") < out.index("sharegen show")
    assert "--execute" in out and "sharegen vote" not in out


QUESTION = "Tom has 432 pens in boxes of 44. " * 20 + "How many does he have in hand?"
WHOLE = RunFile(
    {"answer": {"extract": "number", "gold": {"field": "answer"}}},
    stats={
        "prompt_tokens_asked": 3_205_440, "prompt_tokens_computed": 11_376, "engines": 2,
        "generated_tokens": 286_659, "decode_steps": 1_199, "slots": 256, "completions": 4_000,
        "steps_by_levels": {"": 2, "0 1": 1_197},
        "peak_kv": {"reserved": 108 << 20, "used": 94 << 20},
        "kv_in_steps": {"reserved": 400, "used": 300},
        "plan": {"kv_shared_bytes": 31 << 20, "kv_unshared_bytes": 9390 << 20, "computed": 10_624},
    },
    timings={"sampling_seconds": 35.3},
)  # fmt: skip


def test_a_screen_of_80_by_24_holds_it_all(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    answers = ["7"] * 4 + ["3"] * 3 + [str(number) for number in range(10, 23)]
    records = [sample("p", index, answer) for index, answer in enumerate(answers)]
    print_summary(Path("a.jsonl"), records, WHOLE, 20, {"p": QUESTION})
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) < 24 and max(map(len, lines)) <= 80
    text = "\n".join(lines)
    said = ("A problem that the vote", "in hand?", "7 ✓ gold", "problems  ", "accuracy, one sample",
            "accuracy, the vote", "journal", "next")  # fmt: skip
    places = [text.index(each) for each in said]
    assert places == sorted(places), "an example first, the accuracies last, then what to do next"
    assert "so it is" not in text, "a whole sample is what `show` shows"


def test_other_answers_in_plain_words(summarise) -> None:  # type: ignore[no-untyped-def]
    once = ["7", "7", *"12345689"]
    few = RunFile()
    records = [sample("p", i, answer) for i, answer in enumerate(once)]
    out = summarise(records, few, samples=10, p="?")
    assert "5 more, each with another answer" in out
    twice = ["7"] * 3 + list("1122334455")
    records = [sample("p", i, answer) for i, answer in enumerate(twice)]
    out = summarise(records, few, samples=13, p="?")
    assert "4 more, with 2 other answers" in out


def test_an_example_gives_way_to_what_went_wrong(summarise) -> None:  # type: ignore[no-untyped-def]
    bad = Record("r", None, None, error="it has a hole " * 60)
    records = [sample("p", index, answer) for index, answer in enumerate(["7", "7", "3", "4", "5"])]
    out = summarise([bad, *records], WHOLE, p=QUESTION, r="?")
    assert "1 bad row" in out and "A problem that the vote rescued" not in out


def test_what_several_engines_computed_each(summarise) -> None:  # type: ignore[no-untyped-def]
    stats = {"prompt_tokens_asked": 9000, "prompt_tokens_computed": 1052, "engines": 2}
    plan = RUN.stats["plan"] | {"computed": 300}
    out = summarise([sample("p", 0, "7")], RunFile(stats=stats | {"plan": plan}), p="?")
    assert "8.6x fewer; 752 of them by several of 2 engines" in " ".join(out.split())
    one = RunFile(stats=stats | {"plan": plan, "engines": 1})
    assert "of 1 engines" not in summarise([sample("p", 0, "7")], one, p="?")


def test_a_smaller_extent_says_what_the_others_are_of(summarise) -> None:  # type: ignore[no-untyped-def]
    records = [sample("p", index, "7") for index in range(5)]
    run = replace(RUN, stats=RUN.stats | {"samples_recorded": 40}, counts={"samples": 40})
    out = " ".join(summarise(records, run, p="?").split())
    assert "of all 40 completions on record, more than are asked now" in out
