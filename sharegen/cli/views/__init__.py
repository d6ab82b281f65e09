"""What a person reads: imported when a command runs, so that `--help` is instant."""
