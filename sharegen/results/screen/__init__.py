"""What a person reads while a job runs and when it ends."""
