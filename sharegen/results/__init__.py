"""What came out: journal, answers, votes, scores, reports. Nothing here imports torch."""
