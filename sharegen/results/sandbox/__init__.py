"""Running programs that are hostile until proven otherwise.

Outside, in the process that holds the expected values: `host.py`. Everything else runs inside, in a
fresh interpreter that was started for it and that never sees an expected value: `server.py` is the
warmed parent in namespaces of its own, it forks a `supervisor.py` per program (PID 1 of the
program's own PID namespace, with a home and a temporary folder of its own), which forks the
processes that run the program, `candidate.py`, without any privilege left. What comes out is bytes
on a pipe or a literal (`literal.py`) in a frame (`wire.py`): data that the program could have
answered with anyway. A verdict is only ever reached outside.

Inside, this folder is the top-level package `sandbox`: its modules import each other relatively and
the standard library, nothing else; `host.py` is not used there.
"""
