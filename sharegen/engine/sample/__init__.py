"""From logits to a token: filters, penalties, edits and counter-based random numbers.

Knows rows and parameters, never who a row belongs to.
"""
