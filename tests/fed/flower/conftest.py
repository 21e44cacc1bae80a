"""These tests run in an environment of their own (``make test-fed``), since Flower pins older packages than we need.

Elsewhere, where flwr is missing, nothing is collected here; a run of this folder alone then fails for want of tests.
"""

import importlib.util

collect_ignore_glob = [] if importlib.util.find_spec("flwr") else ["test_*.py"]
