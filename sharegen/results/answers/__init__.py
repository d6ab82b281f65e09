"""Answers: what a completion says (reader.py), counted (vote.py) and compared (equality.py)."""
