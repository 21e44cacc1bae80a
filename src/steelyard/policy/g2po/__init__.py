"""G2PO: credit for each step from the graph of states that a group of rollouts visited."""
