"""Models whose layers keep states: exact whatever happens to prompts and rows, and the traps.

The oracle is the model itself, as for the others (test_exact.py, model/test_exact_models.py).
"""

from __future__ import annotations

import json
import random
import sys
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch._dynamo.utils import counters
from transformers import AutoModelForCausalLM
from transformers.integrations import hub_kernels
from transformers.modeling_layers import GradientCheckpointingLayer

from sharegen.engine import prepared
from sharegen.engine.cache.prefix_tree import PrefixTree
from sharegen.engine.config import EngineConfig
from sharegen.engine.core.request import Request, SamplingParams
from sharegen.engine.engine import Engine
from sharegen.engine.execute.graphs import StepGraphs
from sharegen.engine.execute.memory import most_slots
from sharegen.engine.execute.row_states import RowStates
from sharegen.engine.execute.state_kernels import Kernels
from sharegen.engine.execute.states import StatePool
from sharegen.engine.model import probe
from sharegen.engine.model.compile.compiling import _compile, _compile_steps, _norms
from sharegen.engine.model.load import load_model
from sharegen.engine.model.states import mixers
from sharegen.engine.model.states.mixers import TORCH_CODE, choose_by_device, kernels_of
from sharegen.engine.schedule.batch_builder import equals_together, one_by_one
from sharegen.engine.schedule.step import Chunk
from sharegen.errors import CapacityError, ModelError
from sharegen.kernels import reference_states
from sharegen.llm import LLM
from tests.engine.core.test_beam_search import check as check_beams
from tests.engine.core.test_beam_search import searches
from tests.engine.jobs import (
    CheckedEngine,
    Result,
    assert_empty,
    forest,
    judge,
    loaded,
    make_engine,
    requests_of,
    run,
)
from tests.engine.test_exact import SETTINGS, check_against_generate
from tests.engine.test_verifying import verified
from tests.engine.tiny_models import HYBRIDS, TINY, make_tiny, tiny_config

NAMES = sorted(set(HYBRIDS) & set(TINY))
SAMPLED = SamplingParams(temperature=1.1, max_tokens=9, ignore_eos=True)
GREEDY = replace(SAMPLED, temperature=0.0)
PROMPT = forest()[0]

pytestmark = pytest.mark.skipif(not NAMES, reason="this transformers hands no states over")


def together(engine: CheckedEngine) -> CheckedEngine:
    """Chunks of equal length are one batch of mixers, as on a GPU."""
    engine.scheduler._mixed = equals_together
    return engine


def kept_states(engine: CheckedEngine) -> dict[int, list[torch.Tensor]]:
    """The states of every slot that a node holds, by slot."""
    assert engine.runner.states is not None
    tensors = [t for mixer in engine.runner.states.pool.tensors for t in mixer.values()]
    slots = [kv.state for kv in engine.scheduler.cache.stored.values() if kv.state >= 0]
    return {slot: [tensor[slot].clone() for tensor in tensors] for slot in slots}


# -- exact, whatever happens ------------------------------------------------------------------


@pytest.mark.turn(2)
def test_greedy_tokens_equal_generate(monkeypatch: pytest.MonkeyPatch) -> None:
    """Preempted, and one step behind."""
    prepare, config = SETTINGS["one step behind"]
    engine = make_engine(loaded("lfm2"), **config)
    prepare(engine, monkeypatch)
    check_against_generate("lfm2", engine)
    assert engine.stats.preemptions > 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "setting"),
    [*((name, "one step behind") for name in NAMES),
     *(("qwen3_next", setting) for setting in SETTINGS if NAMES)],
)  # fmt: skip
@pytest.mark.turn(4)
def test_every_model_and_every_setting(
    name: str, setting: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Preemption, few slots, scattered nodes; chunks of equal length together, and apart."""
    prepare, config = SETTINGS[setting]
    engine = make_engine(loaded(name), **config)
    if setting != "few slots":
        together(engine)
    prepare(engine, monkeypatch)
    assert check_against_generate(name, engine) <= 1


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.turn(4)
def test_branches_of_one_token(name: str) -> None:
    """With blocks of one token every branch is a node, and a chunk of one token where it is one."""
    prompts = [[*PROMPT[:length], *tail] for length in (1, 2, 9) for tail in ([5], [6], [5, 7])]
    engine = together(make_engine(loaded(name), block_size=1, blocks=600, state_slots=60))
    ran = run(engine, requests_of(prompts, GREEDY, 2))
    for completion in ran.completions.values():
        judge(completion, name)


LIMITED = {
    "bamba": {"time_step_limit": (0.01, 0.1)},
    "falcon_h1": {"time_step_limit": (0.01, 0.1)},
    "granitemoehybrid": {"time_step_limit": (0.01, 0.1)},
    "mamba2": {"time_step_limit": (0.01, 0.1)},
    "nemotron_h": {"time_step_min": 1.5},
    "zamba2": {"time_step_min": 1.5},
}
"""Limits of time steps, beyond which those of random weights are."""


@pytest.mark.parametrize("name", sorted(set(LIMITED) & set(TINY)))
@pytest.mark.parametrize("is_together", [False, True])
@pytest.mark.turn(3)
def test_time_steps_are_held_in_prompts_of_one_token_too(name: str, is_together: bool) -> None:
    """transformers holds them where several tokens are read, and not in its step of one token."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        config = tiny_config(name)
        for key, value in LIMITED[name].items():
            setattr(config, key, value)
        model = AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
    params = replace(GREEDY, max_tokens=5)
    prompts = [PROMPT[:1], PROMPT[:9], [*PROMPT[:9], 5], [*PROMPT[:9], 6], [*PROMPT[:9], 5, 7]]
    expected = []
    for prompt in prompts:
        made = model.generate(
            torch.tensor([prompt]), max_new_tokens=5, do_sample=False, eos_token_id=None,
            return_dict_in_generate=True, output_logits=True,
        )  # fmt: skip
        tokens = made.sequences[0, len(prompt) :]
        found = torch.cat(made.logits).log_softmax(-1).gather(-1, tokens[:, None]).sum()
        expected.append((tokens.tolist(), found.item()))
    engine = make_engine(load_model(model), block_size=1, blocks=600, state_slots=60)
    ran = run(together(engine) if is_together else engine, requests_of(prompts, params, 2))
    for (key, _), completion in ran.completions.items():
        tokens, found = expected[key]
        assert completion.token_ids == tokens
        assert completion.cumulative_logprob == pytest.approx(found, abs=1e-4)


def test_fewer_slots_than_samples_want() -> None:
    """Rows wait for slots, and prompts that were prefilled ahead are given up for them."""
    for slots in (3, 5):
        engine = make_engine(loaded("lfm2"), state_slots=slots, prefill_tokens=16)
        ran = run(engine, requests_of(forest()[:4], SAMPLED, 2))
        assert engine.stats.peak_states <= slots == engine.stats.states_total
        for completion in ran.completions.values():
            judge(completion, "lfm2")


@pytest.mark.slow
def test_few_rows_have_slots_for_a_deep_tree() -> None:
    """Five nodes above one another, and one sequence at a time; and too little memory for them."""
    prompts = [[*PROMPT[:4], a, *PROMPT[:4], b, *PROMPT[:4], c, *PROMPT[:4]]
               for a in (5, 6) for b in (5, 6) for c in (5, 6)]  # fmt: skip
    requests = requests_of(prompts, GREEDY)
    tokens = PrefixTree.build(prompts, 4).num_tokens
    config = {"block_size": 4, "max_sequences": 1}
    model = loaded("lfm2")
    engine = make_engine(model, **config, state_slots=most_slots(1))
    bits = {key: c.cumulative_logprob for key, c in run(engine, requests).completions.items()}
    assert engine.stats.prompt_tokens_computed == tokens
    tight = make_engine(model, **config, state_slots=3)
    with pytest.warns(UserWarning, match=r"computed whole and share nothing \(8\)"):
        ran = run(tight, requests)
    assert tight.stats.prompt_tokens_computed == sum(map(len, prompts)) > tokens
    for key, completion in ran.completions.items():
        assert completion.cumulative_logprob == pytest.approx(bits[key], abs=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["qwen3_5", "jamba", "bamba"])
@pytest.mark.turn(3)
def test_draws_do_not_depend_on_the_batch(name: str) -> None:
    """To the bit: rows and slots are few or many, chunks are cut alike."""
    requests = requests_of(forest(), SAMPLED, 3)
    expected = run(make_engine(loaded(name)), requests).results
    for config in ({"max_sequences": 5}, {"state_slots": 9}, {"blocks": 45, "max_sequences": 17}):
        assert run(make_engine(loaded(name), **config), requests).results == expected


# -- the traps ------------------------------------------------------------------------------------


def test_nobody_changes_the_state_of_a_node() -> None:
    """Of a single token a mixer changes what it was given: its children must not see that."""
    prompts = [[*PROMPT[:9], token] for token in (5, 6, 7)]
    engine = make_engine(loaded("lfm2"), block_size=1)
    before: dict[int, list[torch.Tensor]] = {}
    seen = 0
    engine.begin()
    engine.add(requests_of(prompts, SAMPLED, 2))
    while engine.has_work:
        engine.step()
        after = kept_states(engine)
        for slot in before.keys() & after.keys():
            seen += 1
            assert all(map(torch.equal, before[slot], after[slot]))
        before = after
    engine.end()
    assert seen > 20


def test_a_step_run_before_its_capture_moves_no_state(monkeypatch: pytest.MonkeyPatch) -> None:
    """A capture runs the step once before: it must not advance the rows twice."""
    ran = 0

    def capture(
        self: StepGraphs,
        step: Callable[[], tuple[torch.Tensor, ...]],
        changing: list[torch.Tensor],
        set_aside: Callable[[], None] | None,
    ) -> tuple[Replayed, tuple[torch.Tensor, ...]]:
        nonlocal ran
        ran += 1
        before = [tensor.clone() for tensor in changing]
        assert set_aside is not None
        set_aside()
        step()
        for tensor, value in zip(changing, before, strict=True):
            tensor.copy_(value)
        return Replayed(step), ()

    class Replayed:
        """Runs the step where a CUDA graph would."""

        def __init__(self, step: Callable[[], tuple[torch.Tensor, ...]]) -> None:
            self.replay = step

    engine = make_engine(loaded("lfm2"))
    graphs = StepGraphs()
    monkeypatch.setattr(StepGraphs, "_capture", capture)

    def captured(rows: int, kind: object, generation: int, step: Callable, changing: list,
                 set_aside: Callable | None = None) -> tuple[torch.Tensor, ...]:  # fmt: skip
        graph, _ = graphs._capture(lambda: step(rows), changing, set_aside)
        return graph.replay()  # type: ignore[no-any-return]

    graphs.run = captured  # type: ignore[assignment, method-assign]
    engine.runner.graphs = graphs
    for completion in run(engine, requests_of(forest()[:5], SAMPLED, 2)).completions.values():
        judge(completion, "lfm2")
    assert ran > 0


@pytest.mark.parametrize("lag", [0, 1])
def test_a_fork_goes_on_from_its_leaf(lag: int) -> None:
    """The sample's own states have gone on beyond what is forked: its outputs are prefilled."""
    engine = make_engine(loaded("lfm2"))
    engine._lag = lag
    requests = [Request(0, PROMPT, SAMPLED, range(2), keep=True),
                Request(1, PROMPT[:20], replace(SAMPLED, max_tokens=4), range(1))]  # fmt: skip
    forks = {}
    for completion in engine.generate(requests):
        judge(completion, "lfm2")
        if completion.request.key == 1:
            for (key, sample), drawn in engine.running().items():
                forks[engine.fork((key, sample), GREEDY, tokens=2)] = drawn[:2]
        elif completion.request.key == 0:
            forks[engine.fork(completion, replace(GREEDY, max_tokens=3))] = completion.token_ids
        else:
            text = list(completion.request.prompt_token_ids)
            assert text == PROMPT + forks[completion.request.key]
    assert len(forks) == 4
    assert_empty(engine)


@pytest.mark.filterwarnings("ignore:out of memory")
@pytest.mark.parametrize("failing", [{0}, {1}, {0, 1}])
def test_a_prefill_without_memory_leaves_states_as_they_were(failing: set[int]) -> None:
    """It had moved all layers' states, or some: the next one begins where this one did."""
    engine = make_engine(loaded("lfm2"), prefill_tokens=280)
    real, calls = engine.runner.prefill, iter(range(1 << 30))

    def prefill(batch: object) -> object:
        drawn = real(batch)  # type: ignore[arg-type]
        if next(calls) in failing:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return drawn

    engine.runner.prefill = prefill  # type: ignore[assignment, method-assign]
    long = [PROMPT[i % len(PROMPT)] for i in range(230)]
    prompts = [long, long[:100], [*long[:40], *forest()[3]], *forest()[:4]]
    ran = run(engine, requests_of(prompts, SAMPLED, 2))
    assert engine.stats.shrinks == len(failing)
    for completion in ran.completions.values():
        judge(completion, "lfm2")


def test_a_batch_taken_back_in_the_middle_of_a_node() -> None:
    """The node keeps the state that it had, in the slot that it had."""
    engine = make_engine(loaded("lfm2"), prefill_tokens=8)
    engine.begin()
    engine.add([Request(0, forest()[-1], SAMPLED, range(1))])
    engine.step()
    [kv] = engine.scheduler.cache.stored.values()
    before, computed = kv.state, kv.computed
    state = kept_states(engine)[before]
    step = engine.scheduler.schedule(is_idle=True)
    assert step is not None and kv.state != before
    engine.runner.run(step.batch)
    engine.scheduler.shrink(step)
    assert (kv.state, kv.computed) == (before, computed) and computed > 0
    assert all(map(torch.equal, kept_states(engine)[before], state))
    engine.scheduler.check_integrity()
    engine.end()


def test_rows_that_ended_leave_states_alone() -> None:
    """On the device a row ends before the host knows: until then it moves scratch alone."""
    engine = make_engine(loaded("lfm2"), max_sequences=4)
    rows = engine.runner.states
    assert rows is not None
    rows.read[:2], rows.write[:2] = torch.tensor([3, 4]), torch.tensor([5, 6])
    places = rows.of_step(torch.tensor([-1, 7]), torch.tensor([0, 1])).slots.places
    assert places.read.tolist() == [rows.pool.zero, 4]
    assert places.write.tolist() == [rows.pool.scratch, 6]


# -- chunks ---------------------------------------------------------------------------------------


def test_chunks_of_equal_length_go_together_unless_one_goes_on_from_another() -> None:
    node = PrefixTree(4).hang(None, [1, 2, 3, 4, 5, 6])
    chunks = [
        Chunk(node, 0, 4, (9, 0)),  # a root
        Chunk(node, 0, 4, (0, 1)),  # two children, and a chunk of one of them
        Chunk(node, 0, 4, (0, 2)),
        Chunk(node, 4, 6, (2, 2)),
        Chunk(node, 0, 4, (9, 3)),  # another root
    ]
    turns = [(m.length, m.starts.tolist(), m.read.tolist(), m.write.tolist())
             for m in equals_together(chunks)]  # fmt: skip
    assert turns == [
        (4, [0, 14], [9, 9], [0, 3]), (4, [4, 8], [0, 0], [1, 2]), (2, [12], [2], [2]),
    ]  # fmt: skip
    alone = one_by_one(chunks)
    assert [m.starts.tolist() for m in alone] == [[0], [4], [8], [12], [14]]
    assert np.concatenate([m.write for m in alone]).tolist() == [0, 1, 2, 2, 3]


# -- bad input ------------------------------------------------------------------------------------


def test_memory_for_not_one_state() -> None:
    tight = 4 * loaded("mamba").state_bytes // 3
    with pytest.raises(
        CapacityError, match=r"one sample needs 3 states of [\d,]+ bytes: give it more"
    ):
        Engine(loaded("mamba"), None, EngineConfig(kv_cache_memory=tight))


def test_prompts_of_one_token_and_prompts_within_prompts() -> None:
    prompts = [PROMPT[:1], PROMPT[:2], PROMPT[:9], PROMPT, [9]]
    engine = make_engine(loaded("lfm2"), block_size=1)
    for completion in run(engine, requests_of(prompts, GREEDY, 2)).completions.values():
        judge(completion, "lfm2")


def test_a_fork_in_the_middle_of_a_prefill() -> None:
    """A sample that runs is forked while half of another prompt's node is computed."""
    engine = make_engine(loaded("lfm2"), prefill_tokens=8)
    engine.begin()
    engine.add([Request(0, PROMPT[:7], replace(SAMPLED, max_tokens=40), range(1))])
    while not engine.running():
        engine.step()
    engine.add([Request(1, forest()[-1], SAMPLED, range(1))])
    done = []
    while not any(0 < kv.computed < node.length
                  for node, kv in engine.scheduler.cache.stored.items()):  # fmt: skip
        done += engine.step()
    fork = engine.fork((0, 0), GREEDY)
    while engine.has_work:
        done += engine.step()
    engine.end()
    assert sorted(completion.request.key for completion in done) == sorted([0, 1, fork])
    for completion in done:
        judge(completion, "lfm2")


@pytest.mark.slow
def test_a_config_without_the_sizes_of_states(tmp_path: Path) -> None:
    make_tiny("qwen3_next").save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    del config["linear_num_value_heads"], config["linear_key_head_dim"]
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ModelError, match="weights are missing or of another shape"):
        load_model(tmp_path, device="cpu")


def test_a_config_that_transformers_refuses(tmp_path: Path) -> None:
    """Its reason is on a second line."""
    make_tiny("mamba2").save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"num_heads": 0, "state_size": 0}))
    with pytest.raises(ModelError, match=r"Class validation error .*: [A-Z].*[a-z]") as raised:
        load_model(tmp_path, device="cpu")
    assert "\n" not in str(raised.value)


def test_layers_that_run_over_no_cache_of_transformers() -> None:
    config = tiny_config("lfm2")
    config.layer_types = ["conv", "conv"]
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
    said = "it has conv layers alone, over which its own cache fails: `get_seq_length` can only"
    with pytest.raises(ModelError, match=said):
        load_model(model)


def test_a_transformers_that_hands_no_states_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe, "HANDS_STATES_OVER", False)
    with pytest.raises(ModelError, match=r"has conv layers, whose states transformers [\d.]+ does "
                                         r"not hand over: 5\.23 or later does$"):  # fmt: skip
        load_model(make_tiny("lfm2"))


def test_projections_whose_states_do_not_begin_with_zeros() -> None:
    """A bias stands for what is before the first token."""
    model = make_tiny("zaya")
    delayed = model.model.layers[1].self_attn.qkv_proj.v_proj_delayed
    delayed.bias = torch.nn.Parameter(torch.zeros(8))
    load_model(model).release()
    delayed.bias = torch.nn.Parameter(torch.ones(8))
    with pytest.raises(ModelError, match=r"layers, whose states do not begin with zeros$"):
        load_model(model)


def test_mixers_whose_result_is_neither_a_tensor_nor_a_tuple() -> None:
    model = make_tiny("zaya")
    projections: Any = type(model.model.layers[0].self_attn.qkv_proj)

    class Listing(projections):
        def forward(self, *arguments: Any) -> list[torch.Tensor]:
            return list(super().forward(*arguments))

    for layer in model.model.layers:
        layer.self_attn.qkv_proj.__class__ = Listing
    with pytest.raises(ModelError, match=r"kept by modules that return no plain tensors$"):
        load_model(model)


# -- with all else --------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("name", ["lfm2", "qwen3_next", "bamba"])
@pytest.mark.parametrize("setting", ["plain", "few slots", "preemption"])
@pytest.mark.turn(3)
def test_beams_take_their_states_along(
    name: str, setting: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepare, config = SETTINGS[setting]
    engine = make_engine(loaded(name), **config)
    prepare(engine, monkeypatch)
    few = setting == "few slots"
    check_beams(name, engine, searches(forest()[:8:4], *(["never"] if few else ["plain", "wide"])))


@pytest.mark.slow
def test_with_fp8_kv() -> None:
    """The states are the same; the KV of samples alone is in 8 bits."""
    plain = run(make_engine(loaded("qwen3_5")), requests_of(forest(), GREEDY, 2))
    engine = make_engine(loaded("qwen3_5"), kv_cache_dtype="fp8")
    ran = run(engine, requests_of(forest(), GREEDY, 2))
    first = [ran.tokens[key][0] == plain.tokens[key][0] for key in plain.tokens]
    assert all(first) and ran.stats.states_total == 40


IN_PLACE = {"conv", "recurrent"}
GATED = ("torch_recurrent_gated_delta_rule", "fused_recurrent_gated_delta_rule")
STEPS = {
    "qwen3_5": GATED,
    "kimi_linear": ("recurrent_kimi_delta_attention", "fused_recurrent_kda"),
}


KERNELS = Kernels(
    reference_states.delta_rule_step, reference_states.settle, reference_states.room_for_tokens,
    reference_states.convolve, reference_states.convolve,
)  # fmt: skip


def with_kernels(
    name: str,
    kernels: Kernels,
    monkeypatch: pytest.MonkeyPatch,
    steps: tuple[str, str] | None = None,
) -> None:
    """As on a GPU where a package has kernels for the model, and ours step on the states."""
    code = sys.modules[type(loaded(name).mixers[0].module).__module__]
    function, kernel = steps or STEPS[name]
    own = vars(code)[function]
    monkeypatch.setattr(code, function, mixers._Choice("a package", kernel, own, own))
    monkeypatch.setattr(prepared, "step_kernels", lambda device: kernels)


@pytest.mark.slow
@pytest.mark.parametrize("name", STEPS)
@pytest.mark.parametrize("lag", [0, 1])
@pytest.mark.turn(2)
def test_states_that_go_on_where_they_lie(
    name: str, lag: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tokens that are kept until there is room for no more, and beside beams, which copy states."""
    beams = [replace(search, key=1000 + search.key) for search in searches(forest()[:3], "plain")]
    requests = [*requests_of(forest(), SAMPLED, 3), *beams]
    sizes = {"blocks": 70, "max_sequences": 9, "state_slots": 30}
    expected = run(make_engine(loaded(name), **sizes), requests)
    settled: list[int] = []

    def settle(*arguments: Any) -> None:
        settled.extend(arguments[3][arguments[3] > 0].tolist())
        reference_states.settle(*arguments)

    with_kernels(name, replace(KERNELS, settle=settle), monkeypatch)
    engine = make_engine(loaded(name), **sizes)
    engine._lag = lag
    ran = run(engine, requests)
    assert ran.tokens == expected.tokens
    assert engine.runner.states is not None
    pool = engine.runner.states.pool
    assert [{key for key, _ in taken} for taken in pool._in_place.values()] == [IN_PLACE]
    if name == "qwen3_5":
        assert pool.room > 1 and {*settled} > {pool.room}  # and fewer, before states are copied
    else:
        assert pool.room == 0 and not settled


@pytest.mark.slow
@pytest.mark.parametrize("setting", [name for name in SETTINGS if name != "plain"])
@pytest.mark.turn(3)
def test_kept_tokens_in_every_setting(setting: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Samples that are preempted, or wait for slots, keep their tokens anew."""
    prepare, config = SETTINGS[setting]
    requests = requests_of(forest(), SAMPLED, 3)
    expected = run(make_engine(loaded("qwen3_5"), **config), requests)
    with_kernels("qwen3_5", KERNELS, monkeypatch)
    engine = make_engine(loaded("qwen3_5"), **config)
    prepare(engine, monkeypatch)
    assert run(engine, requests).tokens == expected.tokens


@pytest.mark.slow
@pytest.mark.usefixtures("dynamo_alone")
@pytest.mark.parametrize("name", ["qwen3_5", "qwen3_next", "olmo_hybrid", "kimi_linear", "lfm2"])
def test_mixers_compiled_around_what_changes_their_states(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One graph for all mixers of a kind, of any number of rows."""
    requests = requests_of(forest()[:5], SAMPLED, 3)
    if name != "lfm2":
        with_kernels(name, KERNELS, monkeypatch, STEPS.get(name, GATED))
    monkeypatch.setattr(prepared, "step_kernels", lambda device: KERNELS)
    plain = run(make_engine(loaded(name)), requests)
    torch.compiler.reset()
    compiled = load_model(make_tiny(name))
    assert _compile_steps(compiled) is None
    before = counters["stats"]["unique_graphs"]
    engine = make_engine(compiled)
    assert run(engine, requests).tokens == plain.tokens
    assert engine.runner.states is not None
    kinds = {type(mixer.module) for mixer in compiled.mixers}
    assert engine.runner.states.pool._compiled == kinds
    assert counters["stats"]["unique_graphs"] - before <= 1  # of a single row
    mixers_of_it = compiled.mixers
    compiled.release()
    assert all(mixer.compiled is None for mixer in mixers_of_it)


@pytest.mark.slow
@pytest.mark.parametrize("way", ["compiles", "differs"])
def test_mixers_that_run_uncompiled(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def compile(forward: Callable[..., Any], **how: Any) -> Callable[..., Any]:
        def compiled(*arguments: Any, **others: Any) -> Any:
            if way == "compiles":
                raise RuntimeError("no compiler here\nand a page about it")
            return torch.zeros_like(forward(*arguments, **others))

        return compiled

    requests = requests_of(forest()[:4], SAMPLED, 3)
    with_kernels("qwen3_5", KERNELS, monkeypatch)
    expected = run(make_engine(loaded("qwen3_5")), requests)
    monkeypatch.setattr(torch, "compile", compile)
    model = load_model(make_tiny("qwen3_5"))
    reason = _compile_steps(model)
    assert reason == ("no compiler here" if way == "compiles" else None)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        assert run(make_engine(model), requests).tokens == expected.tokens
    told = [str(warning.message) for warning in said if "uncompiled" in str(warning.message)]
    assert told == ["mixers run uncompiled: it differs from the model's own code"] * bool(
        not reason
    )


@pytest.mark.slow
def test_a_kernel_that_differs_or_fails_is_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    def zeros(*arguments: torch.Tensor) -> torch.Tensor:
        return torch.zeros_like(arguments[2])

    def no_sum(*arguments: Any) -> torch.Tensor:
        return torch.zeros_like(arguments[0])

    def does_nothing(*arguments: Any) -> None:
        pass

    def fails(*arguments: torch.Tensor) -> torch.Tensor:
        raise RuntimeError("no kernel image is available\nfor execution")

    requests = requests_of(forest()[:4], SAMPLED, 3)
    expected = run(make_engine(loaded("qwen3_5")), requests)
    differs = "it differs from the model's own"
    for kernels, reason in (
        (replace(KERNELS, delta_rule=zeros), differs),
        (replace(KERNELS, delta_rule=fails), "no kernel image"),
        (replace(KERNELS, settle=does_nothing), differs),
        (replace(KERNELS, convolve=no_sum), differs),
        (replace(KERNELS, convolve=fails), "no kernel image"),
        (replace(KERNELS, delta_rule=fails, convolve=no_sum, convolve_chunk=fails), differs),
    ):
        with_kernels("qwen3_5", kernels, monkeypatch)
        engine = make_engine(loaded("qwen3_5"))
        with pytest.warns(UserWarning, match=f"states are copied in every step: {reason}"):
            ran = run(engine, requests)
        assert ran.tokens == expected.tokens
    assert ran.results == expected.results  # where none is taken


def test_a_kernel_is_tried_on_states_that_are_not_zero(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first step of all has none: a kernel without decay would pass; nor may one break it."""
    errors = pytest.importorskip("triton.runtime.errors")
    step = reference_states.delta_rule_step

    def lasting(*tensors: torch.Tensor) -> torch.Tensor:
        q, k, v, decay, *others = tensors
        return step(q, k, v, torch.zeros_like(decay), *others)

    def large(*tensors: torch.Tensor) -> torch.Tensor:
        raise errors.OutOfResources(300_000, 232_448, "shared memory")

    def other(*tensors: torch.Tensor) -> torch.Tensor:
        raise AssertionError

    model = loaded("qwen3_5")
    hidden = torch.randn(3, 1, model.config.get_text_config().hidden_size)
    ways = {lasting: "it differs", large: "out of resource", other: "AssertionError", step: None}
    for way, reason in ways.items():
        kernels = replace(KERNELS, delta_rule=way)
        with_kernels("qwen3_5", kernels, monkeypatch)
        pool = StatePool(model.mixers, 4, torch.device("cpu"), kernels)
        rows = RowStates(pool, 3)
        position, output = torch.arange(3), torch.zeros(3, dtype=torch.int64)
        with torch.inference_mode(), warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            rows.of_step(position, output, in_place=True).mix(0, hidden[:, 0])
        assert [reason in str(warning.message) for warning in said] == [True] * bool(reason)
        [taken] = pool._in_place.values()
        assert {key for key, _ in taken} == (IN_PLACE if reason is None else {"conv"})
        assert all(not tensor[pool.zero].any() for tensor in pool.tensors[0].values())


@pytest.mark.slow
@pytest.mark.parametrize("name", ["lfm2", "zamba2", "mamba"])
def test_verified_against_the_models_own_forward(name: str) -> None:
    model = load_model(make_tiny(name))
    found = verified(model, 40)
    assert (found.steps, found.skipped) == (40, 0) and found.largest <= 1e-4


def test_packages_that_compute_mixers(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are named by what transformers has chosen; off a GPU torch's code computes."""

    came = []

    def root(x: torch.Tensor) -> torch.Tensor:
        came.append(x.device.type)
        return x.sqrt()

    model = load_model(make_tiny("lfm2"))
    gpu = torch.device("cuda")
    assert kernels_of(model.mixers, gpu) == TORCH_CODE and kernels_of([], gpu) is None
    module = sys.modules[type(model.mixers[0].module).__module__]
    choose = hub_kernels.use_kernel_func_from_hub_with_fallback
    for name in ("neg", "no_such_function"):
        monkeypatch.setattr(module, name, choose(name, "operator")(root), raising=False)
    assert kernels_of(model.mixers, gpu) == "kernels of operator"
    choose_by_device(model.model)
    assert kernels_of(model.mixers, gpu) == "kernels of operator"
    assert kernels_of(model.mixers, model.device) == TORCH_CODE
    for name in ("neg", "no_such_function"):
        assert vars(module)[name](torch.tensor([4.0])).equal(torch.tensor([2.0]))
        vars(module)[name](torch.empty(1, device="meta"))
    assert came == ["cpu", "meta"] * 2


@pytest.mark.slow
@pytest.mark.usefixtures("dynamo_alone")
@pytest.mark.parametrize("name", ["lfm2", "falcon_h1", "zamba2", "mamba2", "zaya", "qwen3_5"])
@pytest.mark.turn(3)
def test_compiled_layers_leave_mixers_to_the_one_who_runs_them(name: str) -> None:
    """As dynamo sees them, whatever compiles them then: one graph a layer, and one a norm."""
    model = load_model(make_tiny(name))
    layers = [m for m in model.model.modules() if isinstance(m, GradientCheckpointingLayer)]
    norms = [norm for mixer in model.mixers for norm in _norms(mixer.module)]
    assert _compile(model, [*layers, *norms]) is None
    ran = run(make_engine(model), requests_of(forest()[:4], GREEDY))
    for completion in ran.completions.values():
        judge(completion, name)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["lfm2", "qwen3_5"])
def test_cancelled_samples_leave_the_states_of_others_alone(name: str) -> None:
    """In few slots and blocks: what stays draws what it draws alone, and all slots come back."""
    rng = random.Random(name)
    prompts = forest()
    expected = run(make_engine(loaded(name)), requests_of(prompts, SAMPLED, 4)).results
    engine = make_engine(loaded(name), blocks=70, max_sequences=7, state_slots=16)
    ended: set[tuple[int, int]] = set()
    done: dict[tuple[int, int], Result] = {}
    engine.begin()
    engine.add(requests_of(prompts, SAMPLED, 4))
    while engine.has_work:
        for c in engine.step():
            done[c.request.key, c.sample] = (c.token_ids, c.cumulative_logprob, c.finish_reason)
        if rng.random() < 0.2:
            key = rng.randrange(len(prompts))
            some = rng.choice([None, rng.sample(range(4), 2)])
            ended |= {(key, sample) for sample in engine.cancel(key, some)}
            engine.scheduler.check_integrity()
    engine.end()
    assert_empty(engine)
    assert set(done) == set(expected) - ended and ended
    assert all(expected[key] == result for key, result in done.items())


@pytest.mark.slow
@pytest.mark.turn(10)
def test_two_workers_draw_the_same_to_the_bit(tmp_path: Path) -> None:
    make_tiny("falcon_h1").save_pretrained(tmp_path)
    params = SamplingParams(temperature=1.0, n=2, max_tokens=8, ignore_eos=True)
    prompts = [{"prompt_token_ids": prompt} for prompt in forest()[:8]]

    def drawn(**options: int) -> list[list[tuple[list[int], float]]]:
        with LLM(str(tmp_path), device="cpu", kv_cache_memory=1 << 21, **options) as llm:
            found = llm.generate(prompts, params)
        return [[(list(o.token_ids), o.cumulative_logprob) for o in one.outputs] for one in found]

    assert drawn(workers=2) == drawn()
