"""Mutation score of the cores: how many small wrong changes the unit tests notice. Run with ``make mutation``.

Each mutant changes one operator, comparison, constant or sign of one core, in a copy of the package; it is killed when
the method's own tests fail. A fixed sample is drawn, because each mutant costs a run of the tests.
"""

from __future__ import annotations

import argparse
import ast
import copy
import os
import random
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from receipt import write

ROOT = Path(__file__).parents[1]
CORES = {
    "optim/greedy_momentum": ("core.py",),
    "optim/nfi": ("core.py", "binary.py", "theory.py"),
    "optim/gdro_fsq": ("core.py", "player.py", "theory.py"),
    "quant/po2": ("core.py", "lloyd.py", "theory.py"),
    "nets/lattice": ("core.py",),
    "guard/discrepancy": ("core.py", "length.py", "theory.py", "thresholds.py"),
    "guard/dr_smoothing": ("core.py", "kernels.py", "arguments.py", "theory.py", "counting.py", "certificates.py"),
    "agents/groupmembench": ("core.py",),
    "agents/goskills": ("core.py",),
    "agents/dear": ("core.py",),
    "graphs/graphuat": ("core.py",),
    "fed/gadaphead": ("core.py", "grouping.py", "mixing.py"),
    "policy/g2po": ("core.py", "theory.py"),
    "policy/arc": ("core.py",),
    "vision/gridprobe": ("core.py", "cost.py"),
}
SWAPS: dict[type[ast.AST], type[ast.AST]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.And: ast.Or,
    ast.Or: ast.And,
}


def mutants(source: str) -> list[tuple[str, str]]:
    """Return (what was changed, mutated source) for every place of ``source`` that can be mutated."""
    tree = ast.parse(source)
    docstrings = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    found = []
    for index, node in enumerate(ast.walk(tree)):
        if id(node) in docstrings:
            continue
        changed = copy.deepcopy(tree)
        target = list(ast.walk(changed))[index]
        label = _mutate(target)
        if label is not None:
            found.append((f"line {getattr(node, 'lineno', '?')}: {label}", ast.unparse(changed)))
    return found


def _mutate(node: ast.AST) -> str | None:
    if isinstance(node, ast.BinOp) and type(node.op) in SWAPS:
        old, node.op = node.op, SWAPS[type(node.op)]()  # type: ignore[assignment]
        return f"{type(old).__name__} -> {type(node.op).__name__}"
    if isinstance(node, ast.Compare) and len(node.ops) == 1 and type(node.ops[0]) in SWAPS:
        old_op, node.ops[0] = node.ops[0], SWAPS[type(node.ops[0])]()  # type: ignore[assignment]
        return f"{type(old_op).__name__} -> {type(node.ops[0]).__name__}"
    if isinstance(node, ast.BoolOp):
        old_bool, node.op = node.op, SWAPS[type(node.op)]()  # type: ignore[assignment]
        return f"{type(old_bool).__name__} -> {type(node.op).__name__}"
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        node.op = ast.UAdd()
        return "-x -> +x"
    if isinstance(node, ast.Constant) and type(node.value) in (int, float):
        old_value, node.value = node.value, node.value + 1
        return f"{old_value} -> {node.value}"
    return None


def survives(method: str, name: str, mutated: str) -> bool:
    """Return whether the method's tests pass with the mutated file in place."""
    with tempfile.TemporaryDirectory() as folder:
        copy_of = Path(folder) / "steelyard"
        shutil.copytree(ROOT / "src" / "steelyard", copy_of, ignore=shutil.ignore_patterns("__pycache__"))
        (copy_of / method / name).write_text(mutated)
        environment = {**os.environ, "PYTHONPATH": folder, "PYTHONDONTWRITEBYTECODE": "1", "OMP_NUM_THREADS": "1"}
        command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "-m", "not acceptance"]
        try:
            done = subprocess.run(
                [*command, str(ROOT / "tests" / method)],
                cwd=ROOT,
                env=environment,
                capture_output=True,
                timeout=300,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return False  # an endless loop is noticed
        return done.returncode == 0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--sample", type=int, default=40, help="mutants per method")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("methods", nargs="*", default=list(CORES))
    arguments = parser.parse_args()
    figures: dict[str, object] = {}
    for method in arguments.methods:
        folder = ROOT / "src" / "steelyard" / method
        every = [(name, *mutant) for name in CORES[method] for mutant in mutants((folder / name).read_text())]
        drawn = random.Random(0).sample(every, min(arguments.sample, len(every)))
        assert survives(method, CORES[method][0], (folder / CORES[method][0]).read_text()), "the tests fail unmutated"
        with ThreadPoolExecutor(arguments.jobs) as pool:
            names, _, sources = zip(*drawn, strict=True)
            alive = list(pool.map(survives, [method] * len(drawn), names, sources))
        survivors = [f"{name} {label}" for (name, label, _), lives in zip(drawn, alive, strict=True) if lives]
        score = 1 - len(survivors) / len(drawn)
        figures[method] = {"mutants": len(every), "drawn": len(drawn), "score": round(score, 3), "alive": survivors}
        print(method, figures[method], flush=True)
    print(write("mutation", figures))


if __name__ == "__main__":
    main()
