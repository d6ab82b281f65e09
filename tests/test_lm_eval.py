"""sharegen as lm-eval's model: its scores are those of the harness's own `hf` model."""

from __future__ import annotations

import importlib.util
import json
import math
import random
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import sharegen
from sharegen.as_vllm import stand_in
from sharegen.cli import main
from tests.tiny import save_tiny_model

BUNDLED = Path(__file__).parents[1] / "recipes" / "tinymath"
needs_lm_eval = pytest.mark.skipif(
    importlib.util.find_spec("lm_eval") is None, reason="needs lm-eval"
)


def test_without_lm_eval(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in [name for name in sys.modules if name.startswith(("sharegen.lm_eval", "lm_eval."))]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.delattr(sharegen, "lm_eval", raising=False)  # as an import sets it
    monkeypatch.setitem(sys.modules, "lm_eval", None)
    with pytest.raises(SystemExit) as ended:
        main(["lm-eval", "--tasks", "gsm8k"])
    assert ended.value.code == 2
    assert "pip install 'lm-eval>=" in capsys.readouterr().err


@pytest.fixture(scope="module")
def tasks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """lm-eval's own gsm8k over local files, questions with choices, and texts to score whole."""
    import lm_eval

    folder = tmp_path_factory.mktemp("tasks")
    gsm8k = Path(lm_eval.__file__).parent / "tasks" / "gsm8k" / "gsm8k.yaml"
    files = f"{{train: {BUNDLED}/train.jsonl, test: {BUNDLED}/test.jsonl}}"
    (folder / "gsm8k_local.yaml").write_text(
        f"include: {gsm8k}\ntask: gsm8k_local\ndataset_path: json\ndataset_name: null\n"
        f"dataset_kwargs: {{data_files: {files}}}\n"
    )
    rows = [json.loads(line) for line in (BUNDLED / "test.jsonl").read_text().splitlines()[:8]]
    with open(folder / "choice.jsonl", "w") as file:
        for i, row in enumerate(rows):
            work, _, gold = row["answer"].partition("#### ")
            choices = [str(int(gold) + j) for j in range(4)]
            values = {"choices": choices[-i:] + choices[:-i], "label": i % 4}
            file.write(json.dumps({"question": row["question"], "work": work} | values) + "\n")
    (folder / "choice.yaml").write_text(
        "task: choice_local\ndataset_path: json\n"
        f"dataset_kwargs: {{data_files: {{test: {folder}/choice.jsonl}}}}\n"
        "output_type: multiple_choice\ntest_split: test\n"
        'doc_to_text: "Question: {{question}}\\nAnswer: {{work}}####"\n'
        'doc_to_choice: "{{choices}}"\ndoc_to_target: label\n'
        "metric_list: [{metric: acc}, {metric: acc_norm}]\n"
    )
    (folder / "rolling.yaml").write_text(
        "task: rolling_local\ndataset_path: json\n"
        f"dataset_kwargs: {{data_files: {{test: {folder}/choice.jsonl}}}}\n"
        "output_type: loglikelihood_rolling\ntest_split: test\n"
        'doc_to_text: ""\ndoc_to_target: "{{question}}"\n'
        "metric_list: [{metric: word_perplexity}]\n"
    )
    return folder


@pytest.fixture
def in_tmp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_DATASETS_OFFLINE", "1")
    yield tmp_path


def evaluate(model: str, tasks: Path, **options: Any) -> dict[str, Any]:
    import lm_eval
    from lm_eval.tasks import TaskManager

    import sharegen.lm_eval  # noqa: F401

    found = lm_eval.simple_evaluate(
        model=model,
        model_args=f"pretrained={BUNDLED / 'model'},dtype=float32",
        device="cpu",
        tasks=["gsm8k_local", "choice_local", "rolling_local"],
        # Reading the thousands of its own tasks takes it twenty seconds.
        task_manager=TaskManager(include_path=str(tasks), include_defaults=False),
        limit=5,
        bootstrap_iters=0,
        **options,
    )
    assert found is not None
    return found


@pytest.mark.slow
@needs_lm_eval
def test_the_scores_of_the_hf_model(tasks: Path, in_tmp: Path) -> None:
    own, theirs = evaluate("sharegen", tasks), evaluate("hf", tasks, batch_size=5)
    for task, samples in theirs["samples"].items():
        pairs = list(zip(own["samples"][task], samples, strict=True))
        assert len(pairs) >= 5
        for mine, other in pairs:
            assert mine["doc_id"] == other["doc_id"]
            if task == "gsm8k_local":
                assert mine["resps"] == other["resps"]
            elif task == "choice_local":
                for [(score, greedy)], [(expected, is_greedy)] in zip(
                    mine["resps"], other["resps"], strict=True
                ):
                    assert float(score) == pytest.approx(float(expected), abs=1e-3)
                    assert greedy == is_greedy
            else:
                [[score]], [[expected]] = mine["resps"], other["resps"]
                assert float(score) == pytest.approx(float(expected), abs=1e-3)
    for task, numbers in theirs["results"].items():
        for name, value in numbers.items():
            if isinstance(value, float):
                assert own["results"][task][name] == pytest.approx(value, rel=1e-4), (task, name)

    [journal] = in_tmp.glob("runs/lm-eval-*.jsonl")
    lines = journal.read_text()
    again = evaluate("sharegen", tasks)  # all is on record
    assert journal.read_text() == lines
    assert again["results"] == own["results"]


@pytest.mark.slow
@needs_lm_eval
def test_the_harness_s_vllm_model_with_sharegen_in_its_place(
    tasks: Path, in_tmp: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    stand_in()
    own, theirs = evaluate("vllm", tasks, batch_size="auto"), evaluate("hf", tasks, batch_size=5)
    for task, numbers in theirs["results"].items():
        for name, value in numbers.items():
            if isinstance(value, float):
                assert own["results"][task][name] == pytest.approx(value, rel=1e-4), (task, name)
    for mine, other in zip(
        own["samples"]["gsm8k_local"], theirs["samples"]["gsm8k_local"], strict=True
    ):
        assert mine["resps"] == other["resps"]


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Any:
    from sharegen.lm_eval import SharegenLM

    folder = save_tiny_model(tmp_path_factory.mktemp("model"))
    return SharegenLM(str(folder), journal=str(folder / "journal.jsonl"), max_gen_toks=6)


def asked(*arguments: tuple[str, dict[str, Any]]) -> list[Any]:
    from lm_eval.api.instance import Instance

    return [Instance("generate_until", {}, pair, i) for i, pair in enumerate(arguments)]


@pytest.mark.slow
@needs_lm_eval
def test_the_same_request_again_is_another_sample(client: Any) -> None:
    drawn = {"do_sample": True, "temperature": 1.0, "until": ["", "\n\n"]}
    before = client._llm.engine.stats.generated_tokens
    texts = client.generate_until(asked(*[("Tom has 3", drawn)] * 4, ("Tom has 3", {})))
    assert len(set(texts[:4])) > 1
    computed = client._llm.engine.stats.prompt_tokens_computed
    greedy = client.generate_until(asked(*[("A box holds", {"until": ""})] * 3))
    assert len(set(greedy)) == 1
    assert client.generate_until(asked(*[("Tom has 3", drawn)] * 4)) == texts[:4]
    assert client._llm.engine.stats.prompt_tokens_computed > computed
    assert client._llm.engine.stats.generated_tokens > before


@pytest.mark.slow
@needs_lm_eval
def test_what_cannot_be_asked(client: Any, tmp_path: Path) -> None:
    from sharegen.errors import RequestError, UsageError
    from sharegen.lm_eval import SharegenLM

    with pytest.raises(UsageError, match="num_beams: not known here"):
        client.generate_until(asked(("Tom", {"num_beams": 3})))
    with pytest.raises(UsageError, match="max_gen_toks is 4000, and the context holds 2048"):
        client.generate_until(asked(("Tom", {"max_gen_toks": 4000})))
    for odd in ([5] * 3000, []):
        with pytest.raises(RequestError, match="cannot be scored"):
            client._loglikelihood_tokens([(("", ""), [1], odd)])
    with pytest.raises(UsageError, match="max_length is 9999: it must be from 2 to 2048"):
        SharegenLM(str(save_tiny_model(tmp_path)), max_length=9999)
    with pytest.raises(
        UsageError, match=r"^model_args: nope: not known here: there are pretrained"
    ):
        SharegenLM("model", nope=1)


@needs_lm_eval
def test_arguments_of_llm_are_taken_and_those_that_change_samples_are_recorded(
    tmp_path: Path,
) -> None:
    from lm_eval.api.instance import Instance

    from sharegen.errors import UsageError
    from sharegen.lm_eval import SharegenLM
    from sharegen.results.journal.found_journal import FoundJournal

    folder, path = save_tiny_model(tmp_path / "model"), tmp_path / "a.jsonl"
    own = SharegenLM(str(folder), journal=str(path), kv_cache_dtype="fp8", swap_space=0.5)
    asked = Instance("loglikelihood", {}, ("Tom", " has 3"), 0)
    own.loglikelihood([asked], disable_tqdm=True)
    run = FoundJournal(path).run
    assert run is not None
    assert run.configuration["kv_cache_dtype"] == "fp8" and "swap_space" not in run.configuration
    with pytest.raises(UsageError, match="swap_space is -1"):
        SharegenLM(str(folder), swap_space=-1)


TEXT = "Question: Tom has 3 apples and buys 4 more. How many apples does he have? 日本 é ü"


def models(folder: Path, **options: Any) -> tuple[Any, Any]:
    """sharegen and the harness's own model over one folder."""
    from lm_eval.models.huggingface import HFLM

    from sharegen.lm_eval import SharegenLM

    own = SharegenLM(str(folder), journal=str(folder / "journal.jsonl"), **options)
    return own, HFLM(str(folder), dtype="float32", device="cpu", batch_size=8, **options)


def save(folder: Path, context: int, **generation: Any) -> Path:
    save_tiny_model(folder, context=context)
    file = folder / "generation_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | generation))
    return folder


@pytest.mark.slow
@needs_lm_eval
def test_scores_at_the_end_of_the_context(tmp_path: Path) -> None:
    """`hf` feeds as many tokens as the context holds, and scores the one behind them."""
    from lm_eval.api.instance import Instance

    own, theirs = models(save(tmp_path, 32))
    assert own.max_length == theirs.max_length == 32
    rng = random.Random(0)
    pairs = []
    for context in (1, 2, 28, 30, 31, 32, 33, 40):
        for length in (1, 2, 30, 31, 32):
            tokens = [rng.randrange(10, 340) for _ in range(context + length)]
            pairs.append((("a", "b"), tokens[:context], tokens[context:]))
    found, expected = own._loglikelihood_tokens(pairs), theirs._loglikelihood_tokens(pairs)
    for mine, other in zip(found, expected, strict=True):
        assert mine[0] == pytest.approx(other[0], abs=1e-3)
        assert mine[1] == other[1]
    texts = [Instance("loglikelihood_rolling", {}, (TEXT[:end] * 2,), end) for end in (0, 9, 77)]
    mine, other = own.loglikelihood_rolling(texts), theirs.loglikelihood_rolling(texts)
    assert mine == pytest.approx(other, abs=1e-3)


@pytest.mark.slow
@needs_lm_eval
@pytest.mark.parametrize(
    "generation",
    [
        {"repetition_penalty": 1.3, "temperature": 0.7, "top_p": 0.8, "do_sample": True},
        {"suppress_tokens": list(range(20, 200)), "bad_words_ids": [[300], [301]]},
        {"min_new_tokens": 8, "begin_suppress_tokens": [2]},
        {"no_repeat_ngram_size": 2},
        {"num_beams": 3},
        {"begin_suppress_tokens": [7]},
        {"bad_words_ids": [[7, 8]]},
    ],
)
def test_texts_by_the_model_s_generation_config(generation: Any, tmp_path: Path) -> None:
    """As `hf` draws them, or refused by the name of what is not known here."""
    from sharegen.errors import UsageError

    own, theirs = models(save(tmp_path, 256, **generation))
    asks = asked(*[(TEXT[:end], {"until": ["\n"], "max_gen_toks": 12}) for end in (9, 30, 77)])
    name = next(iter(generation))
    if len(generation) > 1:
        assert own.generate_until(asks) == theirs.generate_until(asks)
        return
    with pytest.raises(UsageError, match=rf"^generation_config.json: {name} is .*, with which"):
        own.generate_until(asks)
    freed = type(own)(str(tmp_path), journal=str(tmp_path / "b"), ignore_generation_config=True)
    assert len(freed.generate_until(asks)) == 3


@pytest.mark.slow
@needs_lm_eval
def test_a_run_that_goes_on_has_the_same_bits(tmp_path: Path) -> None:
    """Splits are those of all requests, whatever is on record: they decide the last bits."""
    from sharegen.lm_eval import SharegenLM

    save_tiny_model(tmp_path / "model")
    rng = random.Random(1)
    shared = [rng.randrange(10, 340) for _ in range(150)]
    pairs = []
    for i in range(48):
        context = shared[: 40 + 25 * (i % 5)] + [rng.randrange(10, 340) for _ in range(i)]
        pairs.append((("a", str(i)), context, [rng.randrange(10, 340) for _ in range(1 + i % 3)]))

    def scores(name: str, keep: int | None = None) -> Any:
        journal = tmp_path / f"{name}.jsonl"
        client = SharegenLM(str(tmp_path / "model"), journal=str(journal))
        if keep is not None:
            client._loglikelihood_tokens(pairs)
            client._llm.close()
            lines = journal.read_text().splitlines(keepends=True)
            rng.shuffle(lines)
            journal.write_text("".join(lines[:keep]))
            client = SharegenLM(str(tmp_path / "model"), journal=str(journal))
        return client._loglikelihood_tokens(pairs)

    whole = scores("whole")
    for keep in (1, 20, 47):
        assert scores(f"cut-{keep}", keep) == whole


@pytest.mark.slow
@needs_lm_eval
def test_what_a_task_leaves_open_is_filled_in_as_transformers_does() -> None:
    from sharegen.errors import UsageError
    from sharegen.lm_eval.generation import sampling_values

    def values(task: dict[str, Any], **model: Any) -> dict[str, Any]:
        return sampling_values(task, model, 10, 20, [2], 100)

    draws = {"do_sample": True, "temperature": 0.7}
    assert values({"do_sample": False, "temperature": 0.0}) == {"temperature": 0.0}
    assert values(draws) == {"temperature": 0.7, "top_k": 50}
    assert values(draws, top_k=20, top_p=0.8, min_p=0.1, temperature=0.3) == {
        "temperature": 0.7, "top_k": 20, "top_p": 0.8, "min_p": 0.1,
    }  # fmt: skip
    assert values({**draws, "top_k": 3, "top_p": None}, top_k=20, top_p=0.8) == {
        "temperature": 0.7, "top_k": 3,
    }  # fmt: skip
    greedy = {"do_sample": False, "num_beams": 1, "use_cache": True, "typical_p": 0.5}
    assert values(greedy, top_k=20, top_p=0.8, typical_p=0.3) == {"temperature": 0.0}
    assert values({}, min_length=15) == {"temperature": 0.0, "min_tokens": 5}
    assert values({"min_tokens": 3}, min_new_tokens=30) == {"temperature": 0.0, "min_tokens": 3}
    assert values({}, suppress_tokens=[7, 500], bad_words_ids=[[8], [2]]) == {
        "temperature": 0.0, "logit_bias": {7: -math.inf, 8: -math.inf},
    }  # fmt: skip
    assert values({"repetition_penalty": 1.1}, repetition_penalty=1.3)["repetition_penalty"] == 1.1
    with pytest.raises(UsageError, match=r"^generation_config.json: typical_p is 0.3"):
        values(draws, typical_p=0.3)
    with pytest.raises(UsageError, match=r"^generation_kwargs: typical_p: not known here"):
        values({**draws, "typical_p": 0.3})
    with pytest.raises(UsageError, match=r"^generation_kwargs: bad_words_ids is \[\[1, 2\]\]"):
        values({"bad_words_ids": [[1, 2]]})
    assert values({"min_length": None, "suppress_tokens": None}) == {"temperature": 0.0}
    with pytest.raises(UsageError, match=r"^generation_kwargs: foo, num_beams: not known here"):
        values({"num_beams": 2, "foo": 1})
