"""The journals of one job: that of a run of all of it, and those of its shards beside it.

`NAME.jsonl` and `NAME.shard-2-of-8.jsonl`: by these names they find each other, and what they
have in common is whose samples they hold, whoever drew them.
"""

from __future__ import annotations

import glob
import re
from pathlib import Path

from sharegen.common.shard import Shard
from sharegen.errors import UsageError

_NAME = re.compile(r"(.+)\.shard-([0-9]{1,6})-of-([0-9]{1,6})(\.jsonl|)", re.DOTALL)


def shard_named(path: Path) -> Shard | None:
    """Which shard's journal a file is, by its name."""
    match = _NAME.fullmatch(path.name)
    if match is None or not 1 <= int(match[2]) <= int(match[3]):
        return None
    return Shard(int(match[2]), int(match[3]))


def whole_path(path: Path) -> Path:
    """Turn `a.shard-2-of-8.jsonl` into `a.jsonl`; other names are a whole job's already."""
    match = _NAME.fullmatch(path.name)
    return path if match is None else path.with_name(match[1] + match[4])


def family(path: Path) -> list[Path]:
    """The journals that a name stands for, in one order everywhere.

    That of a whole job stands for its shards' too, which may be all there is; a shard's for itself.
    """
    if shard_named(path) is not None:
        return [path]
    pattern = f"{glob.escape(path.name.removesuffix('.jsonl'))}.shard-*-of-*"
    beside = ((shard_named(other), other) for other in path.parent.glob(pattern))
    shards = [(s.count, s.index, p) for s, p in beside if s is not None and whole_path(p) == path]
    own = [path] if path.exists() or not shards else []
    return [*own, *(other for _, _, other in sorted(shards))]


def journal_path(output: Path, shard: Shard | None) -> Path:
    """Where a run or a shard of it writes, for an `--output`.

    Raises UsageError for the name of a shard's journal where another shard, or all, is to go on.
    """
    named = shard_named(output)
    if named is not None and named != shard:
        raise UsageError(
            f"--output {output}: is the journal of shard {named}: give --shard {named}, or "
            f"--output {whole_path(output)}, which takes what all shards have"
        )
    if shard is None or named is not None:
        return output
    suffix = ".jsonl" if output.name.endswith(".jsonl") else ""
    stem = output.name.removesuffix(".jsonl")
    return output.with_name(f"{stem}.shard-{shard.index}-of-{shard.count}{suffix}")
