"""What a server counts, as Prometheus reads it (text format 0.0.4)."""

from __future__ import annotations

from collections import Counter

from sharegen.engine.config import EngineStats


class ServerCounts:
    """What clients were told, by HTTP status, and how many wait."""

    def __init__(self) -> None:
        self.answered: Counter[int] = Counter()
        self.left = 0  # clients that went before their answer was there
        self.open = 0


def as_text(stats: EngineStats, engines: int, counts: ServerCounts) -> str:
    """The metrics of so many engines, whose counts are added up, and of their clients."""
    saved = stats.prompt_tokens_asked - stats.prompt_tokens_computed
    used = stats.blocks_used / stats.blocks_total if stats.blocks_total else 0.0
    rows = [
        ("engines", "gauge", "Engines that take requests.", engines),
        ("running", "gauge", "Samples that decode now.", stats.running),
        ("waiting", "gauge", "Samples that wait for their prompt or a row.", stats.waiting),
        ("requests_open", "gauge", "HTTP requests that wait or run.", counts.open),
        ("kv_cache_use", "gauge", "Part of the KV blocks that is in use, from 0 to 1.", used),
        ("kv_blocks", "gauge", "Blocks of the KV cache.", stats.blocks_total),
        ("prompt_tokens_total", "counter", "Prompt tokens asked, for each sample.",
         stats.prompt_tokens_asked),
        ("prompt_tokens_computed_total", "counter", "Prompt tokens computed.",
         stats.prompt_tokens_computed),
        ("prefix_tokens_saved_total", "counter", "Prompt tokens that were shared, not computed.",
         max(0, saved)),
        ("generated_tokens_total", "counter", "Tokens drawn.", stats.generated_tokens),
        ("prefill_steps_total", "counter", "Steps that computed prompts.", stats.prefill_steps),
        ("decode_steps_total", "counter", "Steps that drew a token for each sample.",
         stats.decode_steps),
        ("prefill_seconds_total", "counter", "Seconds of the steps that computed prompts.",
         round(stats.prefill_seconds, 3)),
        ("decode_seconds_total", "counter", "Seconds of the steps that drew tokens.",
         round(stats.decode_seconds, 3)),
        ("completions_total", "counter", "Samples finished.", stats.completions),
        ("cancelled_total", "counter", "Samples ended because their client left.",
         stats.cancelled),
        ("preemptions_total", "counter", "Samples that made room for others for a while.",
         stats.preemptions),
        ("clients_left_total", "counter", "Clients that left before their answer.", counts.left),
    ]  # fmt: skip
    lines = []
    for name, kind, help, value in rows:
        lines += _about(name, kind, help)
        lines.append(f"sharegen_{name} {value}")
    lines += _about("http_requests_total", "counter", "HTTP requests answered, by status.")
    for status, count in sorted(counts.answered.items()):
        lines.append(f'sharegen_http_requests_total{{status="{status}"}} {count}')
    return "\n".join(lines) + "\n"


def _about(name: str, kind: str, help: str) -> list[str]:
    return [f"# HELP sharegen_{name} {help}", f"# TYPE sharegen_{name} {kind}"]
