"""The parts of one step of the engine: starting, masking, collecting, ending, forking."""
