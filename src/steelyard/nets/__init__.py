"""Networks: parts that plug into ``nn.Module``."""
