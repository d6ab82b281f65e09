"""A module that is somebody else's: what is ours on it, what has become of it, and copies."""
