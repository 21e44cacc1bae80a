"""ARC: an agent states its progress and predicts what comes next, and is held to both."""
