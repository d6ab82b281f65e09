"""What a server counts, as Prometheus reads it (text format 0.0.4)."""

from __future__ import annotations

from typing import Any, Literal

from sharegen.engine.config import EngineStats

_NAMES = ("open", "held", "connections", "left")
_FIRST_STATUS = 100
_SIZE = len(_NAMES) + 500
_BYTES = 8  # of a number

Counted = Literal["open", "held", "connections", "left"]


class ServerCounts:
    """What clients were told, by HTTP status, and what of theirs is under way.

    open: requests that wait or run; held: bytes of bodies that are received, or wait to be read;
    connections: that are open; left: clients that went before their answer was there.

    Several processes may count, each in a part of one memory of its own, so that bounds are those
    of all together. memory: `size_of` so many processes; place: this one's.
    """

    def __init__(self, memory: Any = None, place: int = 0) -> None:
        whole = memoryview(bytearray(self.size_of(1)) if memory is None else memory)
        self._all = whole.cast("q")
        self._place = place * _SIZE

    @staticmethod
    def size_of(processes: int) -> int:
        """Bytes of memory in which so many processes count."""
        return processes * _SIZE * _BYTES

    def change(self, name: Counted, by: int) -> None:
        """So many more, or less, in this process."""
        self._all[self._place + _NAMES.index(name)] += by

    def total(self, name: Counted) -> int:
        """That of all processes."""
        return sum(self._all[_NAMES.index(name) :: _SIZE])

    def answer(self, status: int) -> None:
        """A client was told so."""
        self._all[self._place + len(_NAMES) + status - _FIRST_STATUS] += 1

    @property
    def answered(self) -> dict[int, int]:
        """How many clients were told what, in all processes."""
        first = len(_NAMES)
        counts = {
            _FIRST_STATUS + place: sum(self._all[first + place :: _SIZE])
            for place in range(_SIZE - first)
        }
        return {status: count for status, count in counts.items() if count}

    def let_go(self, place: int) -> None:
        """A process is gone, and with it all that was under way there."""
        for name in ("open", "held", "connections"):
            self._all[place * _SIZE + _NAMES.index(name)] = 0


def as_text(stats: EngineStats, engines: int, counts: ServerCounts) -> str:
    """The metrics of so many engines, whose counts are added up, and of their clients."""
    saved = stats.prompt_tokens_asked - stats.prompt_tokens_computed
    used = stats.blocks_used / stats.blocks_total if stats.blocks_total else 0.0
    rows = [
        ("engines", "gauge", "Engines that take requests.", engines),
        ("running", "gauge", "Samples that decode now.", stats.running),
        ("waiting", "gauge", "Samples that wait for their prompt or a row.", stats.waiting),
        ("requests_open", "gauge", "HTTP requests that wait or run.", counts.total("open")),
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
        ("clients_left_total", "counter", "Clients that left before their answer.",
         counts.total("left")),
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
