"""Experiments of papers as commands: `python -m benchmarks paper NAME`.

`registry` knows the names; each module named there is one experiment. `experiment` is what it is
made of, `chart` draws it, `run` does the rest.
"""
