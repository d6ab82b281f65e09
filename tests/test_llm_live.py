"""An LLM over a module that is somebody else's: trained meanwhile, wrapped, and given back."""

from __future__ import annotations

import gc
import warnings
import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
import torch
from torch import nn

from sharegen import LLM, SamplingParams
from sharegen.engine.model.states.mixers import HANDS_STATES_OVER
from sharegen.errors import CapacityError, ModelError, UsageError, WeightsMovedError
from tests.engine.tiny_models import make_tiny
from tests.engine.tokenizers_for_tests import byte_level

pytestmark = pytest.mark.usefixtures("brief_collections")  # engines that sleep ask for them
NEEDS_HYBRIDS = pytest.mark.skipif(not HANDS_STATES_OVER, reason="transformers 5.23 or later")
GREEDY = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)
PROMPT = list(range(5, 45))
PROMPTS: list[Any] = [{"prompt_token_ids": [*PROMPT, last]} for last in (50, 51, 52)]
MEMORY = 1 << 20


def tokens(llm: LLM) -> list[list[int]]:
    return [output.outputs[0].token_ids for output in llm.generate(PROMPTS, GREEDY)]


def generated(model: Any) -> list[list[int]]:
    model.eval()
    found = []
    for prompt in PROMPTS:
        ids = torch.tensor([prompt["prompt_token_ids"]])
        with torch.no_grad():
            text = model.generate(
                input_ids=ids, attention_mask=ids * 0 + 1, max_new_tokens=8, do_sample=False,
                eos_token_id=None, pad_token_id=0,
            )  # fmt: skip
        found.append(text[0, ids.shape[1] :].tolist())
    return found


def test_a_module_comes_back_in_the_mode_in_which_it_came() -> None:
    model = make_tiny("llama").train()
    model.model.layers[1].eval()  # as who freezes a part of it leaves it
    modes = [part.training for part in model.modules()]
    with LLM(model, kv_cache_memory=MEMORY) as llm:
        tokens(llm)
        assert [part.training for part in model.modules()] == modes
    assert [part.training for part in model.modules()] == modes
    with LLM(model.eval(), kv_cache_memory=MEMORY):
        pass
    assert not model.training


def test_a_module_is_free_again_after_an_llm_that_failed_or_was_dropped() -> None:
    model = make_tiny("llama")
    with pytest.raises(CapacityError, match="does not even hold two blocks"):
        LLM(model, kv_cache_memory=1)
    with pytest.raises(UsageError, match="any_tree"):
        LLM(model, kv_cache_memory=MEMORY, any_tree=True)
    first = tokens(LLM(model, kv_cache_memory=MEMORY))
    gc.collect()
    with LLM(model, kv_cache_memory=MEMORY) as llm:
        assert tokens(llm) == first == generated(model)


def test_of_threads_that_ask_at_once_one_is_served() -> None:
    """Also while the module's weights are looked at, which takes time."""
    found: Counter[str] = Counter()

    def ask() -> None:
        for _ in range(10):
            try:
                found["right" if tokens(llm) == expected else "wrong"] += 1
            except UsageError as error:
                assert "one job at a time" in str(error)
                found["refused"] += 1

    with LLM(make_tiny("llama"), kv_cache_memory=MEMORY) as llm:
        expected = tokens(llm)
        threads = [Thread(target=ask) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert found["right"] and found["right"] + found["refused"] == 40


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_torchs_default_dtype_has_no_part_in_it(
    dtype: torch.dtype, default_dtype: Callable[[torch.dtype], None]
) -> None:
    model = make_tiny("llama")
    expected = generated(model)
    default_dtype(dtype)
    with LLM(model, kv_cache_memory=MEMORY) as llm:
        assert tokens(llm) == expected
        params = SamplingParams(
            max_tokens=4, top_p=0.9, min_p=0.01, repetition_penalty=1.1, logprobs=2,
            prompt_logprobs=2, logit_bias={7: 1.0}, bad_words=None, seed=1,
        )  # fmt: skip
        drawn = llm.generate(PROMPTS, params)
        default_dtype(torch.float32)
        again = llm.generate(PROMPTS, params)
    assert [one.outputs for one in drawn] == [one.outputs for one in again]


@pytest.fixture
def default_dtype() -> Iterator[Callable[[torch.dtype], None]]:
    before = torch.get_default_dtype()
    yield torch.set_default_dtype
    torch.set_default_dtype(before)


def test_a_module_that_cannot_be_run_keeps_its_mode(monkeypatch: pytest.MonkeyPatch) -> None:
    model = make_tiny("llama").train()
    monkeypatch.setattr("sharegen.engine.model.load.probe", _refuse)
    with pytest.raises(ModelError, match="no"):
        LLM(model, kv_cache_memory=MEMORY)
    assert model.training


def _refuse(*_: Any) -> None:
    raise ModelError("no")


@pytest.mark.parametrize("write", ["through data", "in place", "as a parameter", "as data"])
@pytest.mark.turn(2)
def test_weights_that_were_changed_are_those_of_the_next_call(write: str) -> None:
    model = make_tiny("llama")
    with LLM(model, kv_cache_memory=MEMORY) as llm:
        first = tokens(llm)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert tokens(llm) == first  # nothing has changed
        torch.manual_seed(3)
        for layer in model.model.layers:
            weight = layer.self_attn.k_proj.weight
            with torch.no_grad():
                other = weight + torch.randn_like(weight)
                if write == "in place":
                    weight.copy_(other)
                elif write == "through data":
                    weight.data.copy_(other)
                elif write == "as data":
                    weight.data = other
                else:
                    layer.self_attn.k_proj.weight = nn.Parameter(other)
        with pytest.warns(UserWarning, match="weights have changed since the last call"):
            second = tokens(llm)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert tokens(llm) == second
    assert second == generated(model) != first


def test_a_module_that_trains_between_calls_draws_without_dropout() -> None:
    model = make_tiny("gpt2")
    with LLM(model, kv_cache_memory=MEMORY) as llm:
        first = tokens(llm)
        model.train()
        assert tokens(llm) == first


def loss(model: Any) -> torch.Tensor:
    """The loss of a training step, with the same dropout every time."""
    torch.manual_seed(5)
    ids = torch.tensor([PROMPT, PROMPT[::-1]])
    return model(input_ids=ids, labels=ids).loss


def gradients(model: Any) -> list[torch.Tensor]:
    model.zero_grad()
    loss(model).backward()
    return [weight.grad.clone() for weight in model.parameters()]


# Dropout (gpt2), RoPE whose frequencies change (phi3-longrope), experts, latents, states.
NAMES = ["llama", "qwen3", "qwen3_moe", "gpt2", "phi3-longrope", "deepseek_v3",
         pytest.param("qwen3_next", marks=NEEDS_HYBRIDS)]  # fmt: skip


@pytest.mark.turn(3)
@pytest.mark.parametrize("name", NAMES)
def test_a_forward_from_outside_is_the_modules_own(name: str) -> None:
    model = make_tiny(name).train()
    before = gradients(model)
    with LLM(model, kv_cache_memory=MEMORY) as llm:
        assert all(map(torch.equal, gradients(model), before))
        alive = loss(model)
        first = tokens(llm)
        model.zero_grad()
        alive.backward()  # over what the call has left of the graph
        assert all(torch.equal(weight.grad, was) for weight, was in
                   zip(model.parameters(), before, strict=True))  # fmt: skip
        own = generated(model)
        assert first == own
        model.train()
        assert all(map(torch.equal, gradients(model), before))
        assert tokens(llm) == first
    assert all(map(torch.equal, gradients(model), before))


def test_a_forward_between_two_samples_of_a_stream() -> None:
    model = make_tiny("llama").train()
    before = gradients(model)
    with LLM(model, kv_cache_memory=MEMORY, max_sequences=1) as llm:
        expected = tokens(llm)
        found = {}
        for index, output in llm.stream(PROMPTS, GREEDY):
            found[index] = output.token_ids
            assert all(map(torch.equal, gradients(model), before))
    assert [found[index] for index in range(len(PROMPTS))] == expected


def test_a_module_that_an_llm_loaded_says_who_has_it(tmp_path: Path) -> None:
    make_tiny("llama").save_pretrained(tmp_path)
    says = "the model is in use by an LLM: close that before you call the model"
    with LLM(tmp_path, kv_cache_memory=MEMORY) as llm, pytest.raises(UsageError, match=says):
        llm.engine.model.model(input_ids=torch.tensor([PROMPT]))  # type: ignore[union-attr]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_weights_that_an_llm_loaded_sleep_on_the_host(tmp_path: Path) -> None:
    make_tiny("llama").save_pretrained(tmp_path)
    with LLM(tmp_path, kv_cache_memory=MEMORY) as llm:
        first = tokens(llm)
        module = llm.engine.model.model  # type: ignore[union-attr]
        llm.sleep()
        assert {weight.device.type for weight in module.parameters()} == {"cpu"}
        llm.wake_up(["weights"])
        llm.wake_up(["kv_cache"])
        assert {weight.device.type for weight in module.parameters()} == {"cuda"}
        assert tokens(llm) == first


def test_an_llm_that_loaded_its_weights_sleeps(tmp_path: Path) -> None:
    make_tiny("llama").save_pretrained(tmp_path)
    with LLM(tmp_path, kv_cache_memory=MEMORY) as llm:
        first = tokens(llm)
        for _ in range(2):
            llm.sleep()
            llm.sleep()
            llm.weights_changed()
            with pytest.raises(UsageError, match="the weights sleep: they wake up before the KV"):
                llm.wake_up(["kv_cache"])
            llm.wake_up(["weights"])
            with pytest.raises(UsageError, match="the engine sleeps"):
                tokens(llm)
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                llm.wake_up()
                assert tokens(llm) == first
        with pytest.raises(UsageError, match="this LLM has no others: use level 1"):
            llm.sleep(2)
        llm.sleep()


def test_a_module_that_trains_draws_from_what_it_has_become() -> None:
    model = make_tiny("llama").train()
    optimiser = torch.optim.SGD(model.parameters(), lr=1.0)
    with LLM(model, kv_cache_memory=MEMORY) as llm:
        first = tokens(llm)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            loss(model).backward()
            optimiser.step()
            llm.weights_changed()
            between = tokens(llm)
            assert between == generated(model)
            with llm.changing_weights():
                optimiser.step()
            second = tokens(llm)
        assert len({str(each) for each in (first, between, second)}) == 3
        stream = llm.stream(PROMPTS, GREEDY)
        next(stream)
        with pytest.raises(UsageError, match="a job runs"):
            llm.weights_changed()
        with pytest.raises(UsageError, match="a job runs"), llm.changing_weights():
            raise AssertionError("the block must not begin")
    assert second == generated(model) != first


def test_a_module_that_accelerate_prepared_trains_under_autocast_and_draws_without(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    accelerate = pytest.importorskip("accelerate")
    state: Any = accelerate.state.AcceleratorState  # one for a process, of an earlier trainer's
    monkeypatch.setattr(state, "_shared_state", {})
    plain = make_tiny("llama").train()
    with LLM(plain, kv_cache_memory=MEMORY) as llm:
        expected = tokens(llm)
    accelerator = accelerate.Accelerator(mixed_precision="bf16", cpu=True)
    model = make_tiny("llama").train()
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-2)
    model, optimiser = accelerator.prepare(model, optimiser)
    before = gradients(model)
    with LLM(accelerator.unwrap_model(model), kv_cache_memory=MEMORY) as llm:
        assert tokens(llm) == expected
        with accelerator.autocast():
            assert tokens(llm) == expected
        assert all(map(torch.equal, gradients(model), before))
        accelerator.backward(loss(model))
        with llm.changing_weights():
            optimiser.step()
        second = tokens(llm)
        assert second != expected
    narrow: Any = "bfloat16"
    with LLM(accelerator.unwrap_model(model), kv_cache_memory=MEMORY, dtype=narrow) as llm:
        assert llm.dtype == "bfloat16" and tokens(llm)
    assert second == generated(accelerator.unwrap_model(model, keep_fp32_wrapper=False))


@pytest.mark.turn(3)
@pytest.mark.parametrize("around", ["autocast", "inference_mode", "no_grad"])
def test_what_the_caller_is_in_has_no_part_in_it(around: str) -> None:
    peft = pytest.importorskip("peft")
    config = peft.LoraConfig(target_modules="all-linear", init_lora_weights=False)
    model = peft.get_peft_model(make_tiny("llama"), config).train()
    inside: Any = {
        "autocast": lambda: torch.autocast("cpu", dtype=torch.float16),
        "inference_mode": torch.inference_mode,
        "no_grad": torch.no_grad,
    }[around]
    torch.manual_seed(1)
    expected = generated(model)
    model.train()
    with inside():
        llm = LLM(model, kv_cache_memory=MEMORY)
        assert tokens(llm) == expected
    loss(model).backward()
    with inside():
        llm.weights_changed()
        assert tokens(llm) == expected
        llm.sleep()
        llm.wake_up()
    loss(model).backward()
    assert tokens(llm) == expected
    llm.close()
    assert not any(weight.is_inference() for weight in model.parameters())


def test_a_module_whose_activations_are_checkpointed() -> None:
    model = make_tiny("llama").train()
    with LLM(model, kv_cache_memory=MEMORY) as llm:
        expected = tokens(llm)
        model.gradient_checkpointing_enable()
        model.enable_input_require_grads()
        before = gradients(model)
        assert tokens(llm) == expected
        assert all(map(torch.equal, gradients(model), before))


@pytest.mark.slow
def test_a_module_that_has_become_another_is_refused_by_name() -> None:
    peft = pytest.importorskip("peft")

    def smaller(model: Any) -> None:
        model.model.layers[1].mlp.up_proj.weight = nn.Parameter(torch.ones(8, 32))

    def halved(model: Any) -> None:
        model.to(torch.bfloat16)

    def gone(model: Any) -> None:
        model.model.layers[0].mlp.up_proj.weight = None

    def adapted(model: Any) -> None:
        peft.get_peft_model(model, peft.LoraConfig(target_modules=["q_proj"]))

    up = r"\.mlp\.up_proj\.weight was float32 \[48, 32\] on cpu when the LLM was made, and is "

    def elsewhere(model: Any) -> None:
        model.model.layers[1].to("meta")  # as who keeps it on another device

    for change, says in (
        (elsewhere, r"1\.self_attn\.q_proj\.weight was .* on cpu when .* \[32, 32\] on meta now"),
        (smaller, rf"1{up}float32 \[8, 32\] on cpu now: close this LLM and make a new one"),
        (halved, r"model\.embed_tokens\.weight was .* and is bfloat16 \[128, 32\] on cpu now"),
        (gone, rf"0{up}gone now"),
        (adapted, r"other modules than .* \(model\.layers\.0\.self_attn\.q_proj is a Linear now\)"),
    ):  # fmt: skip
        model = make_tiny("llama")
        with LLM(model, kv_cache_memory=MEMORY) as llm:
            tokens(llm)
            change(model)
            for call in (lambda: tokens(llm), llm.weights_changed):
                with pytest.raises(UsageError, match=says):
                    call()


def test_a_weight_that_was_moved_on_a_gpu_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Graphs read it where it was, and go on doing so: every later call is refused, too."""
    model = make_tiny("llama")
    with LLM(model, kv_cache_memory=MEMORY) as llm:
        tokens(llm)
        weight = model.model.layers[1].mlp.up_proj.weight
        weight.data = weight.data.clone()
        own: Any = llm.engine.model  # type: ignore[union-attr]
        with monkeypatch.context() as as_on_a_gpu:
            as_on_a_gpu.setattr(own, "device", torch.device("cuda"))
            says = (
                r"^the model's model\.layers\.1\.mlp\.up_proj\.weight was moved in memory, .*copy_"
            )
            for call in (lambda: tokens(llm), llm.weights_changed, lambda: tokens(llm)):
                with pytest.raises(WeightsMovedError, match=says):
                    call()


def test_an_optimiser_whose_weights_are_elsewhere_writes_them_back() -> None:
    """It steps on copies, in another dtype or on another device, as those do that offload."""
    model = make_tiny("llama").train()
    masters = [weight.detach().double() for weight in model.parameters()]
    optimiser = torch.optim.SGD(masters, lr=1.0)
    with LLM(model, kv_cache_memory=MEMORY) as llm:
        first = tokens(llm)
        loss(model).backward()
        for master, weight in zip(masters, model.parameters(), strict=True):
            master.grad = weight.grad.double()
        optimiser.step()
        for master, weight in zip(masters, model.parameters(), strict=True):
            weight.data.copy_(master)
        with pytest.warns(UserWarning, match="weights have changed since the last call"):
            second = tokens(llm)
    assert second == generated(model) != first


def test_a_change_that_is_said_while_a_stream_runs_is_not_forgotten() -> None:
    model = make_tiny("llama")
    with LLM(model, kv_cache_memory=MEMORY) as llm:
        first = tokens(llm)
        stream = llm.stream(PROMPTS, GREEDY)
        next(stream)
        with torch.no_grad():
            for weight in model.parameters():
                weight += torch.randn_like(weight)
        with pytest.raises(UsageError, match="a job runs"):
            llm.weights_changed()
        stream.close()
        with pytest.warns(UserWarning, match="weights have changed since the last call"):
            second = tokens(llm)
    assert second == generated(model) != first


def test_a_head_that_a_trainer_cast_to_float32() -> None:
    """The layers compute in bfloat16, the head in float32, and the embedding that is tied to it."""
    model: Any = make_tiny("llama").to(torch.bfloat16)
    head, embedding = model.lm_head, model.model.embed_tokens
    head.weight = embedding.weight
    head.float()
    head.forward = lambda hidden: nn.functional.linear(hidden.float(), head.weight)
    embedding.register_forward_hook(lambda _, __, output: output.bfloat16())
    params = SamplingParams(temperature=1, max_tokens=8, logprobs=0, seed=1)
    with LLM(model, kv_cache_memory=MEMORY) as llm:
        assert llm.dtype == "bfloat16"
        outputs = llm.generate(PROMPTS, params)
    for prompt, output in zip(PROMPTS, outputs, strict=True):
        sample = output.outputs[0]
        ids = torch.tensor([[*prompt["prompt_token_ids"], *sample.token_ids]])
        with torch.no_grad():
            logits = model(input_ids=ids).logits[0, len(prompt["prompt_token_ids"]) - 1 : -1]
        assert logits.dtype == torch.float32
        own = logits.log_softmax(-1)[range(len(sample.token_ids)), sample.token_ids]
        said = torch.tensor([each.logprob for each in sample.completion.logprobs or ()])
        assert (said - own).abs().mean() < 0.05  # what bfloat16 layers round


def test_frozen_and_tied_weights() -> None:
    model = make_tiny("gemma2").train()
    model.lm_head.weight = model.model.embed_tokens.weight
    model.model.layers[0].requires_grad_(False)
    expected = loss(model)
    expected.backward()
    before = [weight.grad for weight in model.parameters()]
    with LLM(model, kv_cache_memory=MEMORY) as llm:
        model.zero_grad()
        first = tokens(llm)
        loss(model).backward()
        for weight, was in zip(model.parameters(), before, strict=True):
            assert weight.grad is was is None or torch.equal(weight.grad, was)
        with torch.no_grad():
            for weight in model.parameters():
                weight += torch.randn_like(weight)
        llm.weights_changed()
        second = tokens(llm)
    assert second == generated(model) != first
    assert not model.model.layers[0].mlp.up_proj.weight.requires_grad


def test_the_deterministic_mode_repeats_a_rollout_to_the_bit() -> None:
    """Its tokens and log-probabilities are 0.0 from those of other batches of the same weights."""
    model = make_tiny("llama").train()
    params = SamplingParams(n=4, temperature=0.7, max_tokens=8, logprobs=0, seed=5, ignore_eos=True)
    options: dict[str, Any] = {
        "kv_cache_memory": MEMORY, "deterministic": True, "logprobs_mode": "processed_logprobs",
    }  # fmt: skip

    def drawn(llm: LLM, prompts: list[Any]) -> list[list[tuple[int, float]]]:
        outputs = llm.generate(prompts, params)
        samples = [sample for output in outputs for sample in output.outputs]
        return [[(each.token_id, each.logprob) for each in sample.completion.logprobs or ()]
                for sample in samples]  # fmt: skip

    with LLM(model, **options) as llm:
        first = drawn(llm, PROMPTS)
        llm.sleep()
        loss(model).backward()
        llm.wake_up()
        llm.weights_changed()
        assert drawn(llm, PROMPTS) == first
    with LLM(model, max_sequences=3, **options) as llm:
        backwards = drawn(llm, PROMPTS[::-1])
    assert [each for i in (2, 1, 0) for each in backwards[4 * i : 4 * i + 4]] == first


def test_layers_that_share_weights() -> None:
    """Their gradients add up, and a step moves both: one weight has two owners."""
    model: Any = make_tiny("llama").train()
    first, second = model.model.layers
    second.mlp = first.mlp
    second.self_attn.k_proj.weight = first.self_attn.k_proj.weight
    before = gradients(model)
    optimiser = torch.optim.SGD(model.parameters(), lr=1.0)
    with LLM(model, kv_cache_memory=MEMORY) as llm:
        drawn = tokens(llm)
        assert all(map(torch.equal, gradients(model), before))
        with llm.changing_weights():
            optimiser.step()
        after = tokens(llm)
    assert second.mlp is first.mlp
    assert second.self_attn.k_proj.weight is first.self_attn.k_proj.weight
    assert after == generated(model) != drawn


@pytest.mark.slow
def test_a_module_that_is_sharded_is_refused_by_name(tmp_path: Path) -> None:
    import torch.distributed as dist
    from torch.distributed.fsdp import fully_shard

    zero = make_tiny("llama")
    next(zero.parameters()).ds_id = 0  # type: ignore[attr-defined]  # as DeepSpeed marks them
    with pytest.raises(ModelError, match="is sharded by DeepSpeed's ZeRO-3, and no process has"):
        LLM(zero)
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/met", rank=0, world_size=1)
    try:
        model = make_tiny("llama")
        for layer in model.model.layers:
            fully_shard(layer)
        with pytest.raises(ModelError, match=r"is sharded by FSDP, and .* \(DDP, or ZeRO-2\)"):
            LLM(model)
        later = make_tiny("llama")
        with LLM(later, kv_cache_memory=MEMORY) as llm:
            tokens(llm)
            fully_shard(later)
            with pytest.raises(UsageError, match="the model is sharded by FSDP now"):
                tokens(llm)
    finally:
        dist.destroy_process_group()


def test_an_engine_that_sleeps_has_no_cache_and_draws_the_same_afterwards() -> None:
    model = make_tiny("llama").train()
    before = gradients(model)
    with LLM(model, kv_cache_memory=MEMORY) as llm:
        first = tokens(llm)
        keys = weakref.ref(llm.engine.runner.cache.keys[0])  # type: ignore[union-attr]
        for level in (1, 2):
            llm.sleep(level)  # type: ignore[arg-type]
            llm.sleep()
            gc.collect()
            assert keys() is None
            assert all(map(torch.equal, gradients(model), before))
            for call in (lambda: tokens(llm), lambda: list(llm.stream(PROMPTS, GREEDY))):
                with pytest.raises(UsageError, match=r"the engine sleeps: wake_up\(\) first"):
                    call()
            llm.wake_up(["weights"])
            with pytest.raises(UsageError, match="sleeps"):
                tokens(llm)
            llm.wake_up(["kv_cache"])
            llm.wake_up()
            assert tokens(llm) == first
        stream = llm.stream(PROMPTS, GREEDY)
        next(stream)
        with pytest.raises(UsageError, match="a job runs"):
            llm.sleep()
        stream.close()
        with pytest.raises(UsageError, match="level is 0: it must be 1 or 2"):
            llm.sleep(0)  # type: ignore[arg-type]
        with pytest.raises(UsageError, match="tags hold 'kv': they may be 'weights' and"):
            llm.wake_up(["kv"])  # type: ignore[list-item]
        llm.sleep()
    assert all(map(torch.equal, gradients(model), before))


def test_a_cache_that_no_longer_fits_is_smaller_and_that_is_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    left = iter([MEMORY // 2, MEMORY // 2, 100])
    monkeypatch.setattr("sharegen.engine.prepared.memory_again", lambda *_: next(left))
    with LLM(make_tiny("llama"), kv_cache_memory=MEMORY) as llm:
        first, blocks = tokens(llm), llm.engine.stats.blocks_total
        llm.sleep()
        says = "^the KV cache takes 0.00 GiB, where it had 0.00: others have taken more of the GPU"
        with pytest.warns(UserWarning, match=says):
            llm.wake_up()
        assert llm.engine.stats.blocks_total == blocks // 2
        assert tokens(llm) == first
        llm.sleep()
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            llm.wake_up()  # what was told once
        llm.sleep()
        says = "a KV cache of 100 bytes does not even hold two blocks"
        with pytest.warns(UserWarning), pytest.raises(CapacityError, match=says):
            llm.wake_up()
        with pytest.raises(UsageError, match="sleeps"):
            tokens(llm)


def test_a_peft_model_is_run_with_its_adapter() -> None:
    peft = pytest.importorskip("peft")
    config = peft.LoraConfig(r=4, target_modules="all-linear", init_lora_weights=False,
                             lora_dropout=0.5)  # fmt: skip
    model = peft.get_peft_model(make_tiny("llama"), config)
    before = generated(model)
    with LLM(model, kv_cache_memory=MEMORY) as llm:
        first = tokens(llm)
        assert first == before
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.requires_grad:
                    parameter.add_(torch.randn_like(parameter))
        with pytest.warns(UserWarning, match="weights have changed"):
            second = tokens(llm)
    assert second == generated(model) != first


@pytest.mark.parametrize("more", [{"trainable_token_indices": [5, 50]}, {"lora_bias": True}])
def test_adapters_that_peft_does_not_merge(more: dict[str, Any]) -> None:
    """The module computes both."""
    peft = pytest.importorskip("peft")
    config = peft.LoraConfig(target_modules=["q_proj"], init_lora_weights=False, **more)
    model = peft.get_peft_model(make_tiny("llama"), config)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.add_(torch.randn_like(parameter))
    with LLM(model, kv_cache_memory=MEMORY) as llm:
        assert tokens(llm) == generated(model)


@pytest.mark.slow
def test_what_is_no_model_is_named() -> None:
    peft = pytest.importorskip("peft")
    config = peft.PromptTuningConfig(num_virtual_tokens=3, task_type="CAUSAL_LM")
    wrong: list[tuple[Any, str]] = [
        (peft.get_peft_model(make_tiny("llama"), config), "the PeftModel is of the kind PROMPT_TU"),
        (nn.Linear(2, 2), "the model is a Linear: give a folder, a hub id or a transformers"),
        (nn.DataParallel(make_tiny("llama")), "which this one has as .module"),
        (5, "the model is a int: give a folder"),
    ]
    for model, says in wrong:
        with pytest.raises(ModelError, match=says):
            LLM(model)
    lora = peft.get_peft_model(make_tiny("llama"), peft.LoraConfig(target_modules=["q_proj"]))
    with pytest.raises(UsageError, match="workers load the model themselves"):
        LLM(lora, workers=2)


def test_what_a_module_that_is_loaded_cannot_be_given_is_refused() -> None:
    model = make_tiny("llama")
    with pytest.raises(UsageError, match=r"adapter 'lora' goes .*: give a PeftModel"):
        LLM(model, adapter="lora")
    model.to("meta")
    with pytest.raises(UsageError, match="device is 'cpu', and model LlamaForCausalLM lies on me"):
        LLM(model, device="cpu")
    with LLM(make_tiny("llama"), device="cpu", kv_cache_memory=MEMORY) as llm:
        assert tokens(llm)


def test_an_end_that_the_configs_do_not_name_is_told() -> None:
    """generate() goes on beyond it, and so do we; vLLM stops there."""
    tokenizer = byte_level()  # ends with 1; the model with 2
    says = (
        r"^the tokenizer's eos_token '</s>' \(1\) is none of the model's ends \(2\): samples go on "
        r"beyond it, as in generate\(\); stop_token_ids \[1\] ends them there$"
    )
    with pytest.warns(UserWarning, match=says):
        LLM(make_tiny("llama"), tokenizer, kv_cache_memory=MEMORY).close()
    model = make_tiny("llama")
    model.generation_config.eos_token_id = [2, 1]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        LLM(model, tokenizer, kv_cache_memory=MEMORY).close()
