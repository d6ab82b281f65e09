"""The process that runs a dataset's assertions on functions that live in another sandbox.

HumanEval's and MBPP's tests are code. It runs here, with the expected values in it, and the
program runs elsewhere: what the assertions call is a proxy, through which arguments leave and
values of builtin types come back. An object that equals everything never gets here.
"""

from __future__ import annotations

import builtins
import json
import types
from typing import Any, NoReturn

from . import literal, wire
from .candidate import REPLY, REQUEST, new_module, run_and_exit, silence


def serve_check() -> NoReturn:
    """Run one check, which the first request brings: {"check", "setup", "names"}, code and names.

    Each request is answered by one reply. A call leaves as {"call": {"name", "args", "kwargs"}},
    and the next request is {"value": ...} or {"raised": name}. The last reply is {"verdict": ...}:
    "passed"; "failed", an assertion does not hold; "raised", nor does one after a call raised an
    exception; "broken", the assertions are no Python or ask for what is not a literal.
    """
    silence()

    def serve() -> None:
        job = json.loads(wire.read_message(REQUEST))
        verdict = _check(job["check"], job["setup"], job["names"])
        wire.write_message(REPLY, json.dumps({"verdict": verdict}).encode())

    run_and_exit(serve)


class _Raised(Exception):
    """A call that raised an exception which has no name among the builtins."""


class _Proxy:
    def __init__(self, name: str):
        self.name = name
        self.has_raised = False

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        try:
            call = {"name": self.name, "args": literal.encode(args)}
            call["kwargs"] = literal.encode(kwargs)
        except literal.NotLiteral as error:
            raise _Unsupported() from error
        wire.write_message(REPLY, json.dumps({"call": call}).encode())
        reply = json.loads(wire.read_message(REQUEST))
        if "value" in reply:
            return literal.decode(reply["value"])
        self.has_raised = True
        raise _exception(reply["raised"])


class _Unsupported(BaseException):
    """The assertions pass what cannot leave the process; no assertion may catch that."""


def _exception(name: str) -> Exception:
    kind = getattr(builtins, name, None)
    silent = (StopIteration, StopAsyncIteration)  # these would end a loop as if all were well
    if isinstance(kind, type) and issubclass(kind, Exception) and not issubclass(kind, silent):
        try:
            return kind()
        except TypeError:
            pass
    return _Raised(name)


def _check(source: str, setup: str, names: list[str]) -> str:
    module: types.ModuleType = new_module("check")
    proxies = {name: _Proxy(name) for name in names}
    try:
        exec(compile(setup, "<setup>", "exec"), module.__dict__)
        code = compile(source, "<check>", "exec")
    except Exception:
        return "broken"
    module.__dict__.update(proxies)
    try:
        exec(code, module.__dict__)
    except _Unsupported:
        return "broken"
    except Exception:
        return "raised" if any(proxy.has_raised for proxy in proxies.values()) else "failed"
    return "passed"
