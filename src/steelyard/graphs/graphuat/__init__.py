"""GraphUAT: uncertainty attribution for graph neural networks (NeurIPS 2026)."""
