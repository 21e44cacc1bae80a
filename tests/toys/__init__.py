"""Methods small enough to kill two hundred times: they need no extra and take milliseconds."""
