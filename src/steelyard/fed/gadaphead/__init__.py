"""GAdapHeadFRL: geometry-aware grouping and adaptive head mixing for multi-task federated learning (NeurIPS 2026)."""
