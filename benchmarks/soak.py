"""`python -m benchmarks soak`: random clients at a server, and what it has lost when they are gone.

Good clients and bad ones at once: whole answers and streams, slow readers, those that leave in the
middle, bodies that are none, heads that do not end. Good answers are looked at, and in the end
nothing may be left of any: no block of the KV cache, no request, no descriptor; memory is told.
"""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from benchmarks.serving import Spawned, spawned

_SHARED = "Question: Tom has 3 apples and buys 4 more. How many apples does he have?\nAnswer: "
_PARTS = 5  # of the time, after each of which the memory is noted
_LARGE = 20 << 20  # bytes, more than a server takes


def soak(
    seconds: float, clients: int, model: str, seed: int, flags: Sequence[str] = ()
) -> dict[str, Any]:
    """Let so many clients come and go for a while; what the server had before and after.

    flags: of `sharegen serve`.
    """
    flags = ["--client-timeout", "2", "--max-requests", str(4 * clients), *flags]
    # A small cache is full soon: what memory grows by after that is no KV.
    with spawned(model, "--kv-cache-memory", "16MiB", *flags) as server:
        rng = random.Random(seed)
        asyncio.run(_crowd(server, clients, min(10.0, seconds / 4), rng))  # what stays for good
        _rest(server)
        before = _held(server)
        done, resident = Counter[str](), []
        for _ in range(_PARTS):
            done += asyncio.run(_crowd(server, clients, seconds / _PARTS, rng))
            resident.append(server.resident)
        _rest(server)
        after = _held(server)
        found: dict[str, Any] = {
            "seconds": seconds,
            "clients": clients,
            "done": dict(done),
            "before": before,
        }
        found |= {"after": after, "resident": resident, "metrics": server.metrics()}
    leaks = [name for name in ("descriptors", "threads") if after[name] > before[name] + 2]
    metrics = found["metrics"]
    leaks += [name for name in ("kv_cache_use", "requests_open", "running", "waiting")
              if metrics[f"sharegen_{name}"]]  # fmt: skip
    if done["wrong"]:
        leaks.append("wrong answers")
    return found | {"leaks": leaks}


def _held(server: Spawned) -> dict[str, Any]:
    return {
        "descriptors": server.descriptors,
        "threads": server.threads,
        "resident": server.resident,
    }


def _rest(server: Spawned) -> None:
    """Until nothing runs, and who was slow has been dropped."""
    until = time.monotonic() + 60
    while time.monotonic() < until:
        metrics = server.metrics()
        if not (metrics["sharegen_requests_open"] or metrics["sharegen_running"]):
            break
        time.sleep(0.2)
    time.sleep(3)


async def _crowd(server: Spawned, clients: int, seconds: float, rng: random.Random) -> Counter[str]:
    done: Counter[str] = Counter()
    until = time.monotonic() + seconds

    async def client() -> None:
        while time.monotonic() < until:
            name = rng.choice(list(_KINDS))
            try:
                async with asyncio.timeout(60):
                    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
                    try:
                        ok = await _KINDS[name](reader, writer, rng)
                    finally:
                        writer.transport.abort() if rng.random() < 0.3 else writer.close()
            except (ConnectionError, asyncio.IncompleteReadError):
                ok = name in _MAY_BREAK
            except TimeoutError:
                ok = False
            done[name] += 1
            done["wrong"] += not ok
            if not ok:
                done[f"wrong {name}"] += 1

    await asyncio.gather(*(client() for _ in range(clients)))
    return done


Kind = Callable[[asyncio.StreamReader, asyncio.StreamWriter, random.Random], Awaitable[bool]]


def _body(rng: random.Random, **more: Any) -> dict[str, Any]:
    shared = _SHARED * rng.randint(0, 6)
    own = f"{rng.choice('ABC')} has {rng.randint(1, 9)} apples"
    body = {"prompt": shared + own, "max_tokens": rng.randint(1, 24), "n": rng.choice((1, 1, 1, 4))}
    if rng.random() < 0.3:
        body |= {"seed": rng.randint(0, 9), "logprobs": 1}
    if rng.random() < 0.3:
        body |= {"stop": ["\n"], "temperature": 0}
    return body | more


def _request(body: dict[str, Any] | bytes, length: int | None = None) -> bytes:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    return (
        b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        b"Connection: close\r\nContent-Length: %d\r\n\r\n" % (length or len(data))
    ) + data


async def _answer(reader: asyncio.StreamReader) -> tuple[int, bytes]:
    head = await reader.readuntil(b"\r\n\r\n")
    return int(head.split()[1]), await reader.read()


async def _good(r: asyncio.StreamReader, w: asyncio.StreamWriter, rng: random.Random) -> bool:
    body = _body(rng)
    w.write(_request(body))
    status, said = await _answer(r)
    return status == 429 or (status == 200 and len(json.loads(said)["choices"]) == body["n"])


async def _stream(r: asyncio.StreamReader, w: asyncio.StreamWriter, rng: random.Random) -> bool:
    w.write(_request(_body(rng, stream=True)))
    status, said = await _answer(r)
    return status == 429 or (status == 200 and b"data: [DONE]" in said)


async def _slow(r: asyncio.StreamReader, w: asyncio.StreamWriter, rng: random.Random) -> bool:
    w.write(_request(_body(rng, stream=True)))
    for _ in range(20):
        if not await r.read(20):
            break
        await asyncio.sleep(0.05)
    return True


async def _leaves(r: asyncio.StreamReader, w: asyncio.StreamWriter, rng: random.Random) -> bool:
    stream = rng.random() < 0.5
    w.write(_request(_body(rng, max_tokens=1500, ignore_eos=True, stream=stream)))
    await w.drain()
    await asyncio.sleep(rng.random())
    return True


async def _bad(r: asyncio.StreamReader, w: asyncio.StreamWriter, rng: random.Random) -> bool:
    bodies: list[dict[str, Any] | bytes] = [
        b"{", b"", b'"\xff"', b"[" * 10_000, {"prompt": ""}, {"prompt": "a", "n": 0},
        {"prompt": "a", "max_tokens": 10**9}, {"prompt": "a", "stop": ["x"] * 1000},
        {"prompt": [10**9]}, {"prompt": "a", "model": "other"}, {"prompt": "a", "unknown": 1},
        {"prompt": "a", "structured_outputs": {"regex": "("}}, {"messages": "no"},
    ]  # fmt: skip
    w.write(_request(rng.choice(bodies)))
    status, said = await _answer(r)
    return 400 <= status < 500 and "error" in json.loads(said)


async def _half(r: asyncio.StreamReader, w: asyncio.StreamWriter, rng: random.Random) -> bool:
    whole = _request(_body(rng))
    w.write(whole[: rng.randrange(len(whole))])
    await w.drain()
    await asyncio.sleep(rng.random() * 3)  # sometimes beyond the server's patience
    return True


async def _nonsense(r: asyncio.StreamReader, w: asyncio.StreamWriter, rng: random.Random) -> bool:
    w.write(rng.randbytes(rng.randint(1, 5000)) + b"\r\n\r\n")
    await asyncio.wait_for(r.read(), 30)
    return True


async def _large(r: asyncio.StreamReader, w: asyncio.StreamWriter, rng: random.Random) -> bool:
    w.write(_request(b"", length=_LARGE))
    for _ in range(_LARGE >> 20):
        w.write(b"x" * (1 << 20))
        await w.drain()
    status, _ = await _answer(r)
    return status in (413, 429)


_KINDS: dict[str, Kind] = {
    "good": _good, "stream": _stream, "slow": _slow, "leaves": _leaves, "bad": _bad, "half": _half,
    "nonsense": _nonsense, "large": _large,
}  # fmt: skip
_MAY_BREAK = ("slow", "leaves", "half", "nonsense", "large")
