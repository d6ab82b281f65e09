"""The journal of a job: its lines, its run file, its lock, and those of its shards beside it."""
