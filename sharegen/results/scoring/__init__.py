"""Samples judged: programs found and run, answers put to the vote; pass@k."""
