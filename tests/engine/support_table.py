"""docs/reference/models.md, from the tables that the tests run: what is exact, or why refused.

Written by `python -m tests.engine.support_table`.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from benchmarks.measurement import read_all
from benchmarks.tables.markdown import END, begin
from benchmarks.tables.popular import popular_table
from sharegen.engine.model.attention.layer_spec import LayerSpec
from sharegen.engine.model.load import load_model
from sharegen.engine.model.tensor_parallel.sharding_plan import DIVISIBLE
from sharegen.errors import ModelError
from tests.engine.tiny_models import (
    CUT_IN_FOUR,
    HYBRIDS,
    REFUSED,
    TABLE,
    TINY,
    make_tiny,
    tiny_config,
)

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "models.md"
VERSIONS = ("5.17", "5.23")  # of transformers, that the whole table was run with
NEWER = {"flint", "iquestcoder", "kolibri1"}  # architectures that only the last of them has
NEWER |= {"inkling_text", "inkling2_text", "qwen4_exp_text"}
NEWER |= {model_type for model_type, _ in HYBRIDS.values()}  # or hands the states over of

FORMATS = (
    ("safetensors in float32, bfloat16 or float16", "runs", "runs"),
    ("PyTorch's pickles (`.bin`) that run no code", "run on one GPU", "run"),
    (
        "GGUF file, tokenizer and chat template inside",
        "weights are dequantised while read; one line says so; one GPU",
        "runs quantised, through its GGUF plugin",
    ),
    (
        "FP8 with a scale a row or a tensor (compressed-tensors, `fbgemm_fp8`)",
        "runs as FP8 ([fp8.md](../explanation/fp8.md))",
        "runs as FP8",
    ),
    (
        "the same of a model with experts (compressed-tensors)",
        "dequantised while read; as FP8 by rows with `--quantization fp8`",
        "runs as FP8",
    ),
    (
        "FP8 by blocks of 128 x 128 (`fp8`, compressed-tensors), experts too",
        "runs as FP8 on one GPU of compute capability 9.0 or later, in bfloat16 and without an "
        "adapter; else dequantised while read "
        "([fp8.md](../explanation/fp8.md#fp8-by-blocks-as-it-is-stored))",
        "runs as FP8",
    ),
    (
        "MXFP4 (gpt-oss)",
        "dequantised while read, exactly; experts as they are stored with `--quantization mxfp4` "
        "([fp8.md](../explanation/fp8.md#experts-in-mxfp4---quantization-mxfp4))",
        "runs as MXFP4",
    ),
    ("GPTQ of 2, 4 or 8 bits, also in order of activations", "dequantised while read", "runs"),
    ("AWQ of 4 bits in the layout GEMM", "dequantised while read", "runs"),
    (
        "compressed-tensors' pack-quantized (W4A16, W8A16)",
        "dequantised while read",
        "runs",
    ),
    (
        "other layouts of these methods, W8A8, W4A4, NVFP4, MXFP8, modelopt",
        "refused by name, or run by transformers where it has them",
        "run",
    ),
    (
        "bitsandbytes, torchao and others that transformers loads",
        "run by transformers' own modules, on one GPU",
        "some run",
    ),
)
"""What a checkpoint holds, what sharegen makes of it, and what vLLM does."""

_FORMAT_ROWS = "\n".join(
    f"| {' | '.join(row)} |" for row in (("format", "sharegen", "vLLM"), ("---",) * 3, *FORMATS)
)

HEAD = f"""# Models

Which models run, which are refused and what to take instead, and which checkpoints are read. The
[table](#the-table) at the end lists architectures by name.

sharegen runs Hugging Face's own modelling code and puts its attention in the place of the model's.
A model works if its attention goes through transformers' attention interface, and if what its
layers keep besides keys and values goes through transformers' cache ([hybrid
models](../explanation/hybrids.md)).

Each row of the table is a test with a tiny random model in float32, whose windows and chunks are
smaller than the texts:

- *exact*: logits equal the model's own eager attention to 1e-4, and greedy tokens equal
  `generate()`.
- *refused*: loading ends with one line that names the reason.

Versions of transformers tried: {" and ".join(VERSIONS)}.

`--show-model` (`LLM(show_model=True)`) says of any model, in five lines, what was found in it
(attention, states and experts, weights), what was fused or compiled, and what was not and why.

## An architecture that is not in the table

It is loaded if nothing speaks against it. Before the first token it is compared with its own eager
attention on two prompts: it runs exactly, or it is refused. One line says that it is not among the
tested ones. It runs on one GPU only.

## What is refused, and what to take instead

- falcon, bloom, mpt, gptj, gpt_neo, codegen, xglm and rwkv compute attention in code of their own,
  some with biases by distance (alibi), some with fused projections. They never ask transformers'
  interface, so there is no place for another attention. Take falcon_h1 in place of falcon, and
  gpt_neox, llama or qwen3 in place of the others. For the model itself, use transformers'
  `generate()`.
- diffllama computes two attentions in a layer, and hrm_text goes through its layers several times.
  A layer then has several sets of keys and values, where the KV cache has one. doge builds a mask
  out of its values. Take llama, qwen3 or another exact one; for the model itself, `generate()`.
- minimax, recurrent_gemma and xlstm keep states in a cache of their own, or in the module itself,
  where no prompt's state can be shared. Take minimax_m2, or one with *states* below.
- inkling and inkling2 add to every score a bias by distance that depends on the query, which no
  attention here takes. In qwen4_exp and glm5_next every query chooses which keys it reads, so rows
  do not read a shared prefix alike. (transformers has no causal language model of glm5_next to
  load, only one with images.) Take qwen3_5, qwen3_next or kimi_linear.
- bert and encoder-decoder models do not go on from a prompt. Take any decoder below.

## Models that are cut among GPUs

`--tensor-parallel-size N` cuts a model among N GPUs ([how](../guides/many-gpus.md)). Each GPU has
1/N of the attention heads, of their keys and values, of the columns of every MLP and every expert,
and of the vocabulary's rows. Each has norms, routers and what all heads share (the latent of
deepseek_v3's kind of attention) whole. Where a model has fewer heads of keys and values than GPUs,
neighbours have the same one.

- *cut in 2*: tests hold the parts to these sizes, and greedy tokens of two ranks in float32 are
  those of one process. *cut in 2, 4*: those of four ranks are, too.
- *KV not cut*: refused with N above 1.

Also refused, before weights are read: an N that does not divide the heads, weights that are not in
safetensors, checkpoints that only transformers reads, and adapters (save the merged model, and give
that).

## Latents

*Latents* are of attention whose keys and values are made of one short vector a token (multi-head
latent attention). What one sample alone reads, its own tokens and a prompt of one sample, is kept
as latents: attention over them has the weight that would spread them out in its queries and
results. What several samples read lies spread out over heads, and is read once for all of them. The
two are merged by their log-sum-exps. So a token of a sample takes 54 KB in place of 0.96 MB with
GLM-4.7-Flash, and 31 KB in place of 0.28 MB with DeepSeek-V2-Lite. `sharegen plan` says what a
token takes.

Keys and values are kept as they are

- with `--kv-cache-dtype fp8` (then in FP8),
- where the layer that spreads latents out (`kv_b_proj`) has FP8 weights,
- in the deterministic mode on a GPU,
- on a GPU whose kernels cannot read latents of that size.

## Checkpoint formats

{_FORMAT_ROWS}

*Dequantised while read* means that every weight becomes numbers of the run's dtype, rounded once,
as it is read from safetensors. One line says so. Memory then holds what the model takes in that
dtype, and a piece of one weight. With `--quantization fp8` it holds what FP8 takes, and one weight
(of experts, those of a layer). Such checkpoints are cut among several GPUs as any other. A
checkpoint with parts that are missing, of another shape or no numbers is refused with the name of
the part.

`sharegen plan --gpu-memory 140GiB` says by the config alone whether a checkpoint fits a GPU:
gpt-oss-120b, which is stored in MXFP4, takes 62 GiB with `--quantization mxfp4`, and 110 GiB with
`--quantization fp8`, which leaves an H200 room for 1,024 sequences of 256 tokens.

A GGUF file is given as `--model FILE.gguf` or `LLM("FILE.gguf")`. It needs the extra `gguf`
([install](../install.md#extras)) and transformers 5.23. Its weights are in host memory as a whole
before they go to a GPU, and transformers reads its header several times, which takes some seconds.
Refused in one line are

- an architecture that transformers does not read from GGUF files,
- a file that is cut short, and a tensor of a kind that is not known,
- a tokenizer that transformers cannot make of it,
- positions that the file scales in another way than Llama 3 does (YaRN, long RoPE), which
  transformers would leave out.

## Ten popular shapes

What ten of these draw on one GPU, from their public configs with random weights, on the workload
gsm8k with up to 1,024 sequences. The ceiling is the same job with attention replaced by a copy, and
what changes the states of a hybrid's mixers as well.
[Benchmarks](../benchmarks.md#ten-popular-shapes) have the parts of a step, the commands and
versions, and `python -m benchmarks card --popular` measures them on your card.

{begin("popular")}

{popular_table(read_all())}

{END}

## The table

This page is written by `python -m tests.engine.support_table`; a test compares it.
"""


def features(layers: list[LayerSpec], states: bool) -> str:
    """What is out of the ordinary in a model's attention, and whether it keeps states."""
    notes = {
        "windows": any(layer.window for layer in layers),
        "chunks": any(layer.attention_chunk for layer in layers),
        "softcap": any(layer.softcap for layer in layers),
        "sinks": any(layer.has_sinks for layer in layers),
        "keys and values of two sizes": any(x.key_size != x.value_size for x in layers),
        "latents": any(layer.latent is not None for layer in layers),
        "layers of different sizes": len({(x.num_kv_heads, x.key_size) for x in layers}) > 1,
    }
    notes |= {"states": states and bool(layers), "states alone": states and not layers}
    return ", ".join(note for note, present in notes.items() if present)


def exact_row(name: str) -> str:
    loaded = load_model(make_tiny(name))
    model_type = TINY[name][0]
    versions = VERSIONS[-1] if model_type in NEWER else ", ".join(VERSIONS)
    cut = "KV not cut"
    if loaded.config.get_text_config().model_type in DIVISIBLE:
        cut = "cut in 2, 4" if name in CUT_IN_FOUR else "cut in 2"
    found = features(loaded.layers, bool(loaded.mixers))
    return f"| {name} | `{model_type}` | exact | {found} | {cut} | {versions} |"


def refused_row(name: str) -> str:
    with tempfile.TemporaryDirectory() as folder:
        tiny_config(name).save_pretrained(folder)
        try:
            load_model(folder, weights=False)
        except ModelError as error:
            reason = str(error).partition("is not supported: ")[2]
    model_type = REFUSED[name][0]
    is_new = "states" in reason or model_type in NEWER
    versions = VERSIONS[-1] if is_new else ", ".join(VERSIONS)
    return f"| {name} | `{model_type}` | refused | {reason} | | {versions} |"


def page() -> str:
    """The whole page, as docs/reference/models.md should be."""
    lines = [
        HEAD,
        f"Exact: {len({model_type for model_type, _ in TABLE.values()})} architectures.",
        "",
        "| model | model type | result | attention | several GPUs | transformers |",
        "|---|---|---|---|---|---|",
        *map(exact_row, TINY),
        *map(refused_row, REFUSED),
        "",
        "## Where to go next",
        "",
        "- [Hybrid models](../explanation/hybrids.md): how states are shared.",
        "- [Many GPUs](../guides/many-gpus.md): models that are cut among GPUs.",
        "- [Compared with others](../explanation/compared.md): what to use for a refused model.",
    ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    PAGE.parent.mkdir(exist_ok=True)
    PAGE.write_text(page())
