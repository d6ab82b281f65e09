"""Which tokens may come next, where the text has to be of a grammar.

Part of sharegen's engine; see docs/explanation/architecture.md.
"""
