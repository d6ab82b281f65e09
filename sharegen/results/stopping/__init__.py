"""When the samples of a problem are enough, and what counts of a job that stopped early."""
