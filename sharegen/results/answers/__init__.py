"""Answers: what a completion says (reader.py), and which ones are equal (equality.py)."""
