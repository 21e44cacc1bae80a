"""What must not be in the source: unsafe loaders, shells, and the global random state."""

import ast
import io
import re
import tokenize
from pathlib import Path

import pytest

import steelyard

SOURCE = sorted(Path(steelyard.__file__).parent.rglob("*.py"))

MODULES = {"pickle", "cPickle", "joblib", "dill", "cloudpickle", "shelve", "marshal", "yaml"}
CALLS = {"eval", "exec", "compile", "__import__"}
GLOBAL_RANDOM = re.compile(
    r"\b(np|numpy)\.random\.(?!default_rng|Generator|SeedSequence|PCG64|BitGenerator|get_state\(legacy=False\))\w+"
    r"|\btorch\.(random\.|cuda\.)?(manual_seed|seed|set_rng_state)"
    r"|(?<![\w.])random\.(seed|random|randint|choice|choices|shuffle|sample|uniform|gauss)\("
)
FLAGS = re.compile(r"shell\s*=\s*True|trust_remote_code\s*=\s*True|allow_pickle\s*=\s*True|weights_only\s*=\s*False")
REMARKS = re.compile(r"\b(TODO|FIXME|XXX|stub|placeholder)\b|raise NotImplementedError", re.IGNORECASE)
MACHINE = re.compile(r"(?<![\w.])/(work|tmp|root|home)/")


def without_strings(text):
    """Return the source with its strings and comments blanked: words in a docstring are no calls."""
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    return "".join(token.string for token in tokens if token.type not in (tokenize.STRING, tokenize.COMMENT))


@pytest.mark.parametrize("path", SOURCE, ids=lambda path: str(path.relative_to(SOURCE[0].parent)))
def test_source(path):
    text = path.read_text()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            assert not MODULES & {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert (node.module or "").partition(".")[0] not in MODULES
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            assert node.func.id not in CALLS, f"line {node.lineno}: {node.func.id}()"
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            named = f"{getattr(node.func.value, 'id', '')}.{node.func.attr}"
            assert named not in ("os.system", "os.popen", "torch.load"), f"line {node.lineno}: {named}()"
    code = without_strings(text)
    if "torch.random.fork_rng" in code:  # for a user's own code, which draws from torch's state: put back afterwards
        code = code.replace("torch.random.set_rng_state", "")
    for pattern in (GLOBAL_RANDOM, FLAGS):
        assert pattern.search(code) is None, pattern.search(code)
    for pattern in (REMARKS, MACHINE):
        assert pattern.search(text) is None, pattern.search(text)


@pytest.mark.parametrize("path", SOURCE, ids=lambda path: str(path.relative_to(SOURCE[0].parent)))
def test_files_are_short_and_functions_fit_a_screen(path):
    text = path.read_text()
    assert len(text.splitlines()) <= 500
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            told = node.body[0].end_lineno - node.body[0].lineno + 1 if ast.get_docstring(node) else 0
            assert node.end_lineno - node.lineno + 1 - told <= 50, f"{node.name} has more than 50 lines"


@pytest.mark.parametrize(
    "bad",
    [
        "np.random.seed(0)", "x = np.random.rand(3)", "numpy.random.shuffle(x)", "torch.manual_seed(1)",
        "random.shuffle(x)", "subprocess.run(x, shell=True)", "load(x, allow_pickle = True)", "torch.seed()",
    ],
)  # fmt: skip
def test_the_patterns_find_what_they_are_for(bad):
    code = without_strings(bad + "\n")
    assert GLOBAL_RANDOM.search(code) or FLAGS.search(code)


@pytest.mark.parametrize(
    "good", ["np.random.default_rng(1)", "generator.random.choice(x)", "rng.shuffle(x)", "'torch.manual_seed('"]
)
def test_the_patterns_leave_the_rest_alone(good):
    code = without_strings(good + "\n")
    assert GLOBAL_RANDOM.search(code) is None
    assert FLAGS.search(code) is None
