"""The commands of `python -m benchmarks`. Each prints JSON lines, and tables to stderr."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any

import typer

from benchmarks.options import Commit
from benchmarks.papers.command import HELP, paper
from benchmarks.training.command import training
from sharegen.cli.bench_options import CompileModel, Device, Dtype, Quantization, Rows, Shape
from sharegen.cli.command import Command
from sharegen.cli.parameters import parse_path
from sharegen.errors import UsageError

app = typer.Typer(
    name="benchmarks",
    help="Measurements that a clone of sharegen can make, beside `sharegen bench`.",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

Seed = Annotated[int, typer.Option(min=0, help="Random seed.")]
Vocabulary = Annotated[int, typer.Option(min=1, help="Tokens of the vocabulary.")]


@app.command("mixed", cls=Command)
def mixed(
    shape: Shape = "llama3-8b",
    rows: Rows = 1024,
    output: Annotated[int, typer.Option(min=4, help="Tokens of every sample.")] = 64,
    repeats: Annotated[int, typer.Option(min=1, help="Runs of each kind; the median counts.")] = 3,
    dtype: Dtype = "bfloat16",
    device: Device = "cuda",
    compile_model: CompileModel = True,
) -> None:
    """Time decoding steps whose rows have filters, penalties and biases, and plain ones.

    Example: python -m benchmarks mixed --shape llama3-8b
    """
    from benchmarks.mixed import bench_mixed

    result = bench_mixed(
        shape,
        rows=rows,
        output=output,
        repeats=repeats,
        dtype=dtype,
        device=device,
        compile_model=compile_model,
    )
    typer.echo(json.dumps(result))


@app.command("preempt", cls=Command)
def preempt(
    shape: Shape = "llama3-8b",
    block_size: Annotated[
        list[int] | None,
        typer.Option(
            min=1, help="Tokens of a KV block (repeatable). 1, 4, 16, 64 and 256; --groups: 16."
        ),
    ] = None,
    length: Annotated[
        list[int] | None,
        typer.Option(
            min=1,
            help="Tokens of a sample (repeatable). 64, 256 and 1,024; --groups: 256 on average.",
        ),
    ] = None,
    groups: Annotated[
        bool,
        typer.Option(
            "--groups",
            help="Run a job whose blocks run out; single samples make room, or whole requests.",
        ),
    ] = False,
    rows: Rows = 64,
    repeats: Annotated[
        int, typer.Option(min=1, help="Runs of each kind: the median counts; --groups: the mean.")
    ] = 5,
    dtype: Dtype = "bfloat16",
    device: Device = "cuda",
    compile_model: CompileModel = True,
) -> None:
    """Compare preemption by swapping to host memory with computing again.

    Example: python -m benchmarks preempt --block-size 16 --length 256

    Example: python -m benchmarks preempt --groups
    """
    from benchmarks import preempt, preempt_groups

    measured = preempt_groups if groups else preempt
    run = preempt_groups.bench_groups if groups else preempt.bench_preempt
    result = run(
        shape,
        block_sizes=block_size or measured.BLOCK_SIZES,
        lengths=length or measured.LENGTHS,
        rows=rows,
        repeats=repeats,
        dtype=dtype,
        device=device,
        compile_model=compile_model,
    )
    typer.echo(json.dumps(result))


@app.command("deal", cls=Command)
def deal(
    problems: Annotated[int, typer.Option(min=1, help="Problems of the job.")] = 10_000,
    samples: Annotated[int, typer.Option("--samples", "-n", min=1, help="Samples of each.")] = 16,
    tokens: Annotated[int, typer.Option(min=4, help="Tokens of every prompt.")] = 1_000,
    max_tokens: Annotated[
        int, typer.Option(min=1, help="The most tokens of a sample; they have half on average.")
    ] = 512,
    workers: Annotated[
        list[int] | None,
        typer.Option(min=1, help="Workers (repeatable): a line for each. 1, 16 and 256."),
    ] = None,
    slots: Annotated[int, typer.Option(min=1, help="Samples that a worker decodes together.")] = 32,
    deaths: Annotated[
        float, typer.Option(min=0.0, max=1.0, help="Share of the workers that die at some time.")
    ] = 0.01,
    steps: Annotated[
        float, typer.Option(min=0.001, max=1e9, help="Steps of a worker in a second.")
    ] = 33.0,
    spread: Annotated[
        float, typer.Option(min=0.0, max=0.99, help="Speeds differ by up to this share.")
    ] = 0.1,
    seed: Annotated[int, typer.Option(min=0, help="Random seed of the simulated job.")] = 0,
) -> None:
    """Deal a job to many workers, where clocks stand for engines and all else is real.

    Nothing is decoded and nothing waits: what is measured is how even the workers' ends are, what
    they prefill twice, and what the driver and its journal cost. The journal goes to a temporary
    folder (TMPDIR), 230 bytes a sample.

    Example: python -m benchmarks deal --problems 2000 --workers 8
    """
    from benchmarks.deal import Crew, Shape, bench_deal

    shape = Shape(problems, samples, tokens, max_tokens, seed)
    crews = [Crew(count, slots, steps, spread, deaths, seed) for count in workers or (1, 16, 256)]
    for result in bench_deal(shape, crews):
        typer.echo(json.dumps(result))


@app.command("fp8-needles", cls=Command)
def fp8_needles(
    lengths: Annotated[
        list[int] | None,
        typer.Option(min=1, help="Tokens of the context (repeatable). 16,384 to 131,072."),
    ] = None,
    dtype: Dtype = "bfloat16",
    device: Device = "auto",
    seed: Seed = 0,
) -> None:
    """Measure how much of a needle in a long context attention finds in an FP8 KV cache.

    Example: python -m benchmarks fp8-needles --lengths 16384
    """
    from benchmarks.fp8 import bench_needles
    from benchmarks.fp8_needles import LENGTHS

    for found in bench_needles(lengths or LENGTHS, dtype=dtype, device=device, seed=seed):
        typer.echo(json.dumps(found))


@app.command("fp8-layers", cls=Command)
def fp8_layers(
    shape: Shape = "llama3-8b",
    layers: Annotated[
        int | None, typer.Option(min=1, help="Layers.  [default: those of the shape]")
    ] = None,
    tokens: Annotated[int, typer.Option(min=1, help="Tokens of the sequence.")] = 128,
    device: Device = "auto",
    seed: Seed = 0,
) -> None:
    """Compare FP8 weights and KV with full precision, layer by layer.

    Example: python -m benchmarks fp8-layers --tokens 256
    """
    from benchmarks.fp8 import bench_layers

    for found in bench_layers(shape, layers=layers, tokens=tokens, device=device, seed=seed):
        typer.echo(json.dumps(found))


@app.command("bits", cls=Command)
def bits(
    shape: Shape = "llama3-8b",
    rows: Annotated[
        list[int] | None, typer.Option(min=1, help="Rows of a forward (twice). 32 and 1,024.")
    ] = None,
    deterministic: Annotated[
        bool, typer.Option("--deterministic/--plain", help="In the deterministic mode, or not.")
    ] = True,
    compile_model: CompileModel = False,
    dtype: Dtype = "bfloat16",
    quantization: Quantization = None,
    device: Device = "cuda",
) -> None:
    """Find the operations that give a row other bits where a forward has more rows.

    Example: python -m benchmarks bits --shape llama3-8b --rows 32 --rows 1024

    Example: python -m benchmarks bits --plain --compile
    """
    from benchmarks.bits import bench_bits

    result = bench_bits(
        shape,
        rows=rows or (32, 1024),
        deterministic=deterministic,
        compile_model=compile_model,
        dtype=dtype,
        quantization=quantization,
        device=device,
    )
    typer.echo(json.dumps(result))


@app.command("tile-order", cls=Command)
def tile_order(
    dtype: Dtype = "bfloat16",
    device: Device = "cuda",
    heads: Annotated[int, typer.Option(min=1, help="Heads, each with rows of its own.")] = 64,
    tiles: Annotated[int, typer.Option(min=1, help="Tiles of 64 keys.")] = 16,
) -> None:
    """Compare how kinds of products add up inside a tile of keys, bit by bit.

    Example: python -m benchmarks tile-order
    """
    from benchmarks.tile_order import bench_tile_order

    for found in bench_tile_order(device, dtype, heads, tiles):
        typer.echo(json.dumps(found))


@app.command("same-bits", cls=Command)
def same_bits(
    rows: Annotated[list[int], typer.Option(help="Rows of an engine (repeatable).", min=1)],
    shape: Annotated[
        str, typer.Option(help="Known shape, or a folder with a config.")
    ] = "llama3-8b",
    loads: Annotated[
        list[str] | None, typer.Option("--load", help="Workload that all draw (repeatable). gsm8k.")
    ] = None,
    priced: Annotated[
        list[str] | None,
        typer.Option("--price", help="Workload that no further deterministic engine draws."),
    ] = None,
    cache: Annotated[int, typer.Option(help="Bytes of the KV cache.", min=1)] = 16 << 30,
    small_cache: Annotated[
        int, typer.Option(help="Bytes of another engine's, which preempts.", min=0)
    ] = 0,
    device: Device = "cuda",
    quantization: Annotated[str | None, typer.Option(help="fp8 for FP8 weights.")] = None,
    kv_cache_dtype: Annotated[str, typer.Option(help="auto or fp8.")] = "auto",
    repeats: Annotated[int, typer.Option(help="How often jobs are drawn once more.", min=0)] = 1,
    any_tree: Annotated[
        bool, typer.Option(help="Whether one more engine has bits that no tree changes.")
    ] = False,
    plain: Annotated[bool, typer.Option(help="Whether the plain mode comes last.")] = True,
    results: Annotated[
        Path | None,
        typer.Option(help="Folder, or file of lines, for the row of prices.", parser=parse_path),
    ] = None,
    commit: Commit = None,
) -> None:
    """Compare the samples of deterministic engines of several sizes as bits, and their price.

    Example: python -m benchmarks same-bits --rows 1024 --rows 256 --rows 32 --price longdoc
    """
    from benchmarks.card.machine import find_machine
    from benchmarks.result_lines import add_result
    from benchmarks.same_bits import SameBitsSettings, bench_same_bits, price_row

    asked = SameBitsSettings(
        shape=shape,
        loads=loads or ["gsm8k"],
        rows=rows,
        priced=priced or [],
        cache=cache,
        small_cache=small_cache,
        device=device,
        quantization=quantization,
        kv_cache_dtype=kv_cache_dtype,
        repeats=repeats,
        any_tree=any_tree,
        plain=plain,
    )
    machine, drawn = find_machine(commit) if results is not None else None, []
    for each in bench_same_bits(asked):
        typer.echo(json.dumps(each))
        drawn.append(each)
    typed = shlex.join(["python", "-m", "benchmarks", *sys.argv[1:]])
    row = None if machine is None else price_row(asked, drawn, machine, typed)
    if results is not None and row is not None:
        typer.echo(f"written: {add_result(row, results)}", err=True)


@app.command("harness", cls=Command)
def harness(
    rows: Annotated[int, typer.Option(min=6, max=200, help="Rows of each task.")] = 50,
    batch: Annotated[int, typer.Option(min=1, help="Sequences that hf decodes together.")] = 16,
) -> None:
    """Run lm-evaluation-harness with this engine and with its own `hf` model.

    Example: python -m benchmarks harness --rows 50
    """
    from benchmarks.harness import bench_harness

    bench_harness(rows, batch)


@app.command("host", cls=Command)
def host(
    rows: Rows = 1024,
    samples: Annotated[int, typer.Option(min=1, help="Samples of each prompt.")] = 1,
    ends: Annotated[int, typer.Option(min=1, max=64, help="Rows that end in every step.")] = 1,
    stop: Annotated[
        list[str] | None, typer.Option(metavar="TEXT", help="A stop string (repeatable).")
    ] = None,
) -> None:
    """Time what the host does in a decoding step, without a model and without a GPU.

    Example: python -m benchmarks host --rows 4096 --samples 1024 --ends 32 --stop Question:
    """
    from benchmarks.host import bench_host

    typer.echo(json.dumps(bench_host(rows, samples, ends, stop or ())))


@app.command("host-work", cls=Command)
def host_work(
    problems: Annotated[int, typer.Option(min=1, help="Problems of the job.")] = 16,
    samples: Annotated[int, typer.Option("--samples", "-n", min=1, help="Samples of each.")] = 1024,
    rows: Rows = 4096,
    tokens: Annotated[float, typer.Option(min=1, help="Tokens of a sample on average.")] = 131,
    stop: Annotated[str, typer.Option(metavar="TEXT", help="A stop string.")] = "Question:",
    answers: Annotated[
        Path | None,
        typer.Option(
            help="JSONL file whose answers make the text that is drawn.  [default: tinymath's]",
            parser=parse_path,
        ),
    ] = None,
    model: Annotated[
        str | None, typer.Option(help="Folder or hub id, for its tokenizer.  [default: tinymath]")
    ] = None,
    profile: Annotated[
        Path | None, typer.Option(help="Write cProfile's numbers here.", parser=parse_path)
    ] = None,
) -> None:
    """What the host does for a whole job, by part, with a stand-in for the device.

    Milliseconds a step and microseconds a sample, of this process's processor.

    Example: python -m benchmarks host-work --problems 8 --rows 2048
    """
    from benchmarks.host_work import SimulatedJob, bench_host_work

    job = SimulatedJob(
        problems, samples, rows, tokens, stop, model, *([answers] if answers else [])
    )
    typer.echo(json.dumps(bench_host_work(job, profile)))


@app.command("journal", cls=Command)
def journal(
    problems: Annotated[int, typer.Option(min=1, max=200, help="Problems of the job.")] = 128,
    samples: Annotated[int, typer.Option("--samples", "-n", min=1, help="Samples of each.")] = 1024,
    words: Annotated[int, typer.Option(min=1, help="Words of a sample, at most.")] = 200,
) -> None:
    """What the host does for each sample that has ended, and at the end of a job.

    Example: python -m benchmarks journal -n 256
    """
    from benchmarks.journal_costs import bench_journal

    typer.echo(json.dumps(bench_journal(problems, samples, words)))


@app.command("sampling", cls=Command)
def sampling(rows: Rows = 1024, vocab: Vocabulary = 128_256, dtype: Dtype = "bfloat16") -> None:
    """Time sampling alone, by what the rows ask for, on a GPU.

    Example: python -m benchmarks sampling --rows 256
    """
    from benchmarks.sampling import bench_sampling

    typer.echo(json.dumps(bench_sampling(rows, vocab, dtype)))


@app.command("sums", cls=Command)
def sums(
    ranks: Annotated[int, typer.Option(min=2, help="GPUs that add up.")] = 2,
) -> None:
    """Time sums over the GPUs of one machine, as ranks make twice a layer, by size and way.

    Example: python -m benchmarks sums --ranks 4
    """
    from benchmarks.sums import bench_sums

    typer.echo(json.dumps(bench_sums(ranks)))


@app.command("structured", cls=Command)
def structured(
    rows: Rows = 256,
    vocab: Vocabulary = 128_256,
    steps: Annotated[int, typer.Option(min=1, help="Steps that are timed.")] = 200,
) -> None:
    """Time what structured outputs cost a step, with none, one and all of its rows bound.

    Example: python -m benchmarks structured --rows 64
    """
    from benchmarks.structured import bench_structured

    typer.echo(json.dumps(bench_structured(rows, vocab, steps)))


@app.command("stopping", cls=Command)
def stopping(
    folder: Annotated[Path, typer.Option(help="Folder of the journals.", parser=parse_path)],
    recipe: Annotated[str, typer.Option(help="Recipe of the job.")] = "self-consistency",
    dataset: Annotated[str | None, typer.Option(help="Its preset, file or hub id.")] = None,
    model: Annotated[str | None, typer.Option(help="Model folder or hub id.")] = None,
    limit: Annotated[
        int | None, typer.Option(min=1, help="The most problems that are asked.")
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, help="Jobs of each kind, by seed.")] = 5,
    samples: Annotated[
        int, typer.Option("--samples", "-n", min=1, help="Samples of each problem.")
    ] = 40,
    rules: Annotated[
        list[str] | None,
        typer.Option(help="Stopping rule (repeatable). decided, confident, window and right=4."),
    ] = None,
    device: Device = "auto",
    max_sequences: Annotated[
        int | None, typer.Option(min=1, help="Sequences decoded together.")
    ] = None,
    replay: Annotated[
        bool, typer.Option("--replay", help="Run the full jobs alone, and calculate the rest.")
    ] = False,
    clock: Annotated[str, typer.Option(help="Which seconds count: wall or cpu.")] = "wall",
) -> None:
    """Measure what stopping early saves: a job in full and by rules, for several seeds.

    Example: python -m benchmarks stopping --folder runs/stopping --seeds 5 -n 40
    """
    from benchmarks.stopping import RULES, StoppingSettings, bench_stopping

    bench_stopping(
        StoppingSettings(
            folder=folder,
            recipe=recipe,
            dataset=dataset,
            model=model,
            limit=limit,
            seeds=seeds,
            samples=samples,
            rules=rules or RULES,
            device=device,
            max_sequences=max_sequences,
            replay=replay,
            clock=clock,
        )
    )


@app.command("random-model", cls=Command)
def random_model(
    shape: Annotated[str, typer.Argument(help="A known shape, or a folder with a config.")],
    folder: Annotated[
        Path, typer.Argument(help="Where to write; it must not exist.", parser=parse_path)
    ],
    eos: Annotated[int, typer.Option(metavar="N", help="Token ids that end a sample.")] = 1,
    stored: Annotated[
        str | None,
        typer.Option(
            metavar="KIND",
            help="mxfp4: experts, as gpt-oss is published; fp8-blocks: layers, as Qwen3-FP8 is.",
        ),
    ] = None,
    device: Device = "auto",
) -> None:
    """Write a model of random weights, with a tokenizer, into a new folder.

    Example: python -m benchmarks random-model llama3-8b random-llama3-8b --eos 1001
    """
    from benchmarks.random_model import save_random_model
    from sharegen.engine.model.checkpoint.source import resolve_device

    if stored not in (None, "mxfp4", "fp8-blocks"):
        raise UsageError(f"--stored {stored}: it must be mxfp4 or fp8-blocks")
    save_random_model(shape, folder, eos, resolve_device(device), stored)
    typer.echo(f"written: {folder}", err=True)


@app.command("card", cls=Command)
def card(
    rows: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Measure this row (repeatable).  [default: all]"),
    ] = None,
    popular: Annotated[
        bool,
        typer.Option(
            "--popular", help="Measure ten popular shapes against their ceilings instead."
        ),
    ] = False,
    device: Annotated[
        str, typer.Option(help="Which rows: cuda, cpu, or auto, for what there is.")
    ] = "auto",
    budget: Annotated[
        float | None,
        typer.Option(min=1, metavar="SECONDS", help="Begin no row that would end later."),
    ] = None,
    results: Annotated[
        Path,
        typer.Option(
            help="Folder of the files, or a file of lines (.jsonl) for `import`.",
            parser=parse_path,
        ),
    ] = Path("benchmarks/results"),
    gsm8k: Annotated[
        Path | None,
        typer.Option(
            help="Folder with gsm8k_test.jsonl and gsm8k_train.jsonl.  [default: from the hub]",
            parser=parse_path,
        ),
    ] = None,
    commit: Commit = None,
    busy: Annotated[
        bool, typer.Option("--busy", help="Say in the files that others use the machine.")
    ] = False,
    rehearse: Annotated[
        bool,
        typer.Option(
            "--rehearse", help="Try all rows with a tiny model on the CPU; needs --results."
        ),
    ] = False,
    show: Annotated[
        bool, typer.Option("--list", help="Show the rows and their estimated seconds.")
    ] = False,
) -> None:
    """Measure the rows of docs/benchmarks.md on this machine, the most important first.

    Rows of one engine share its start. Each row is written to a file as soon as it is measured,
    and the same call goes on where it was cut off: a row is done where the folder has it from this
    commit and card. What needs more cards or memory than there are is left out, with the reason. A
    row that fails, or takes much longer than estimated, costs no other. `tables` then makes the
    page.

    Example: python -m benchmarks card --budget 1500

    Example: python -m benchmarks card --rows llama3-8b-gsm8k-bf16 --rows tokasaurus

    Example: python -m benchmarks card --popular --budget 1500
    """
    from benchmarks.card.machine import find_machine
    from benchmarks.card.session import CardSettings, listed, measure_rows
    from benchmarks.measurement import RESULTS

    if device not in ("auto", "cuda", "cpu"):
        raise UsageError(f"--device {device}: it must be auto, cuda or cpu")
    if rehearse and results.resolve() == RESULTS.resolve():
        raise UsageError("--rehearse measures nothing that counts: give --results another folder")
    if popular and rows:
        raise UsageError("--popular names its own rows: leave out --rows")
    asked = CardSettings(results, rows or (), device, budget, gsm8k, rehearse, busy, popular)
    machine = find_machine(commit)
    if show:
        for line in listed(asked, machine):
            typer.echo(line)
    elif not measure_rows(asked, machine):
        raise typer.Exit(1)


@app.command("import", cls=Command)
def import_(
    file: Annotated[
        Path, typer.Argument(help="What `card --results FILE.jsonl` wrote.", parser=parse_path)
    ],
) -> None:
    """Make a file in benchmarks/results/ of each line, and remove those that it replaces.

    Other programs' numbers beside a row that is replaced stay, as of another sitting.

    Example: python -m benchmarks import rows.jsonl
    """
    from benchmarks.result_lines import import_results

    for said in import_results(file):
        typer.echo(said, err=True)


@app.command("start", cls=Command)
def start(
    models: Annotated[
        list[Path],
        typer.Argument(metavar="MODEL", help="Folders of models.", parser=parse_path),
    ],
    starts: Annotated[
        int, typer.Option(min=1, help="Later starts of each; the median counts.")
    ] = 3,
    flag: Annotated[
        list[str] | None,
        typer.Option(help="A flag of `sharegen run`, as --flag=--compile (repeatable)."),
    ] = None,
    results: Annotated[
        Path, typer.Option(help="Folder of the file, or a file of lines.", parser=parse_path)
    ] = Path("benchmarks/results"),
    commit: Commit = None,
    busy: Annotated[
        bool, typer.Option("--busy", help="Say in the file that others use the machine.")
    ] = False,
) -> None:
    """Measure the seconds from a command to its first sample, by part.

    Each model is started with an empty cache, then with what that start kept.

    Example: python -m benchmarks random-model llama3-8b /dev/shm/llama3-8b &&
    python -m benchmarks start /dev/shm/llama3-8b
    """
    from benchmarks.result_lines import add_result
    from benchmarks.starts import measure, measurement

    found = []
    for each in measure(models, starts, flag or []):
        typer.echo(each.model_dump_json())
        found.append(each)
    path = add_result(measurement(found, flag or [], commit, busy), results)
    typer.echo(f"written: {path}", err=True)


@app.command("latents", cls=Command)
def latents(
    shape: Annotated[
        str, typer.Argument(help="A shape's folder, such as benchmarks/shapes/glm-4.7-flash.")
    ],
    workload: Annotated[
        str, typer.Option(help="The workload, as for `sharegen bench decode`.")
    ] = "gsm8k",
    check: Annotated[
        bool, typer.Option("--check", help="Compare greedy tokens instead, compiled and eager.")
    ] = False,
    max_sequences: Rows = 1024,
    dtype: Dtype = "bfloat16",
    device: Device = "cuda",
    compile_model: CompileModel = True,
) -> None:
    """Time latent attention beside the same model with keys and values spread out.

    Example: python -m benchmarks latents benchmarks/shapes/glm-4.7-flash

    Example: python -m benchmarks latents benchmarks/shapes/rehearsal/glm-4.7-flash --check
    --dtype float32
    """
    from benchmarks.latents import bench_latents, same_tokens

    if check:
        found = same_tokens(shape, dtype, device, (True, False) if compile_model else (False,))
        typer.echo(json.dumps(found))
        if any(found["differing"].values()):
            raise typer.Exit(1)
        return
    for each in bench_latents(shape, workload, max_sequences, dtype, device, compile_model):
        typer.echo(json.dumps(each))


@app.command("tables", cls=Command)
def tables() -> None:
    """Write the tables and the chart of speed, from the files in benchmarks/results/.

    docs/benchmarks.md, README's table between its markers, docs/assets/speed.svg and its dark
    twin.

    Example: python -m benchmarks tables
    """
    from benchmarks.tables.writing import write_tables

    for path in write_tables():
        typer.echo(f"written: {path}", err=True)


app.command("paper", cls=Command, help=HELP)(paper)
app.command("training", cls=Command)(training)


ServeFlag = Annotated[
    list[str] | None,
    typer.Option(help="A flag of `sharegen serve`, as --flag=--device=cpu (repeatable)."),
]


@app.command("soak", cls=Command)
def soak(
    seconds: Annotated[float, typer.Option(min=1, help="How long clients come and go.")] = 600,
    clients: Annotated[int, typer.Option(min=1, help="Clients at a time.")] = 24,
    model: Annotated[str, typer.Option(help="A folder or hub id.")] = "tinymath",
    seed: Seed = 0,
    flag: ServeFlag = None,
) -> None:
    """Random clients at `sharegen serve`: good, bad, slow and gone; what the server has lost then.

    Fails where blocks, requests, descriptors or threads are left, or a good client was answered
    wrongly.

    Example: python -m benchmarks soak --seconds 120 --flag=--http-processes=2
    """
    from benchmarks.soak import soak as run

    result = run(seconds, clients, model, seed, flag or ())
    typer.echo(json.dumps(result))
    if result["leaks"]:
        raise typer.Exit(1)


ServeClients = Annotated[
    list[int] | None,
    typer.Option(min=1, help="Clients of the table of latencies (repeatable). 1, 8 and 64."),
]
ServeModel = Annotated[str, typer.Option(help="A folder or hub id.")]
ServeResults = Annotated[
    Path | None,
    typer.Option(help="Folder, or file of lines, that the row is added to.", parser=parse_path),
]


@app.command("serve-load", cls=Command)
def serve_load(
    model: ServeModel = "tinymath",
    requests: Annotated[int, typer.Option(min=2, help="Requests in all.")] = 1000,
    at_once: Annotated[int, typer.Option(min=1, help="Requests under way at once.")] = 1000,
    samples: Annotated[int, typer.Option(min=1, help="Requests of each prompt.")] = 8,
    max_tokens: Annotated[int, typer.Option(min=2, help="Tokens of each answer.")] = 128,
    processes: Annotated[
        list[int] | None,
        typer.Option(
            min=1,
            help="Processes that ask together (repeatable). One for 64 at once, or a core.",
        ),
    ] = None,
    client: Annotated[
        str, typer.Option(help="What asks: the package openai, or raw, which costs little.")
    ] = "openai",
    until_eos: Annotated[
        bool,
        typer.Option(help="Whether end tokens end answers; else each has --max-tokens."),
    ] = False,
    clients: ServeClients = None,
    rate: Annotated[
        list[float] | None,
        typer.Option(
            min=0.001, help="Requests that arrive in a second, at random times (repeatable). None."
        ),
    ] = None,
    flag: ServeFlag = None,
    results: ServeResults = None,
    commit: Commit = None,
) -> None:
    """`sharegen serve` under a harness's load, beside one call of LLM, and its latencies.

    The first load of the server and later ones, with the processor time of each of its processes
    for a request and for a token.

    Example: python -m benchmarks serve-load --requests 256 --max-tokens 64 --client raw
    """
    from benchmarks.serve_load import Load
    from benchmarks.serve_load import serve_load as run

    if client not in ("openai", "raw"):
        raise UsageError(f"--client {client}: it must be openai or raw")
    kind: Any = client
    load = Load(model, requests, at_once, samples, max_tokens, kind, until_eos)
    told = run(load, processes or (), clients or (), rate or (), flag or (), commit)
    _tell(told, results)


@app.command("serve-latency", cls=Command)
def serve_latency(
    model: ServeModel = "tinymath",
    clients: ServeClients = None,
    max_tokens: Annotated[int, typer.Option(min=2, help="Tokens of each answer.")] = 128,
    flag: ServeFlag = None,
    results: ServeResults = None,
    commit: Commit = None,
) -> None:
    """The table of latencies alone: first and further tokens at 1, 8 and 64 clients.

    Example: python -m benchmarks serve-latency --clients 1 --clients 8 --max-tokens 32
    """
    from benchmarks.serve_load import serve_latency as run

    _tell(run(model, max_tokens, clients or (), flag or (), commit), results)


@app.command("serve-arrivals", cls=Command)
def serve_arrivals(
    model: ServeModel = "tinymath",
    rate: Annotated[
        list[float] | None,
        typer.Option(min=0.001, help="Requests a second (repeatable). 1, 2, 3, 4 and 6."),
    ] = None,
    prompt: Annotated[int, typer.Option(min=17, help="Tokens of each prompt.")] = 1024,
    completion: Annotated[int, typer.Option(min=1, help="Tokens of each answer.")] = 512,
    requests: Annotated[int, typer.Option(min=2, help="Requests of each rate.")] = 40,
    sequences: Annotated[
        int, typer.Option(min=1, help="Sequences that the server decodes together.")
    ] = 32,
    flag: ServeFlag = None,
    results: ServeResults = None,
    commit: Commit = None,
) -> None:
    """ChunkAttention's arrivals through the endpoint: latency by rate, prompts shared and not.

    The paper's own load, which `paper chunk-arrivals` gives to an engine without a server.

    Example: python -m benchmarks serve-arrivals --prompt 256 --completion 16 --rate 4 --rate 8
    """
    from benchmarks.papers.chunk_arrivals import Load
    from benchmarks.serve_arrivals import serve_arrivals as run

    load = Load(prompt, completion, tuple(rate or (1.0, 2.0, 3.0, 4.0, 6.0)))
    flags = [*(flag or ()), f"--max-sequences={sequences}"]
    _tell(run(model, load, requests, flags, commit), results)


def _tell(found: Iterable[Any], results: Path | None) -> None:
    """Print what was measured as lines of JSON, and add the row among it to the results."""
    from benchmarks.measurement import Measurement
    from benchmarks.result_lines import add_result

    for each in found:
        if isinstance(each, Measurement) and results is not None:
            typer.echo(f"written: {add_result(each, results)}", err=True)
        values = each if isinstance(each, dict) else each.model_dump(
            mode="json", exclude_defaults=True
        )  # fmt: skip
        typer.echo(json.dumps(values))
