"""What an import costs, and what works where the extras are not installed."""

import json
import subprocess
import sys

import pytest

HEAVY = ("numpy", "torch", "scipy", "typer", "rich", "pydantic", "sklearn", "matplotlib", "jinja2")
BLOCKED = ("torch", "scipy", "sklearn", "matplotlib", "jinja2", "pyarrow", "transformers", "pandas", "polars")

BLOCKER = f"""\
import sys
class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {BLOCKED!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name.partition(".")[0])
sys.meta_path.insert(0, Missing())
"""


def python(code, *words):
    done = subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True, check=False)
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize(
    ("statement", "allowed"),
    [
        ("import steelyard; dir(steelyard)", ()),
        ("import steelyard.errors, steelyard.rng, steelyard.extras, steelyard.catalog", ()),
        ("import steelyard.optim; dir(steelyard.optim)", ()),
        ("import steelyard.bench; dir(steelyard.bench)", ()),
        ("from steelyard import catalog; [catalog.load_card(row.id) for row in catalog.METHODS]", ("pydantic",)),
        ("import steelyard.bench.worker", ("pydantic", "numpy")),
    ],
)
def test_light_imports(statement, allowed):
    code = f"{statement}\nimport sys, json; print(json.dumps([name for name in {HEAVY!r} if name in sys.modules]))"
    done, out, err = python(code)
    assert done == 0, err
    assert set(json.loads(out)) <= set(allowed)


def test_commands_that_only_look_need_no_torch():
    code = (
        "import sys\nfrom steelyard.cli import main\n"
        "sys.argv = ['steelyard', 'list', '--json']\n"
        "try:\n    main.run()\nexcept SystemExit:\n    pass\n"
        "assert not {'torch', 'scipy', 'sklearn'} & set(sys.modules), sys.modules.keys()"
    )
    done, _, err = python(code)
    assert done == 0, err


def line(*words):
    return python(BLOCKER + "from steelyard.cli.main import run; run()", *words)


@pytest.mark.parametrize("words", [("list",), ("list", "--json"), ("card", "nfi"), ("doctor",), ("doctor", "--json")])
def test_these_work_without_any_extra(words):
    code, out, err = line(*words)
    assert (code, err) == (0, "")
    assert "nfi" in out or "steelyard" in out


SENTENCE = r"{} is not installed; install it with: pip install 'steelyard[optim]'"


@pytest.mark.parametrize("words", [("weigh", "nfi"), ("plan", "gdro_fsq"), ("tune", "greedy_momentum")])
def test_commands_say_what_to_install(words, tmp_path):
    code, out, err = line(*words, "--store", str(tmp_path / "s.db"))
    assert (code, out) == (3, "")
    assert err.startswith("steelyard: ")
    assert err.endswith(" is not installed; install it with: pip install 'steelyard[optim]'\n")
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    "statement",
    [
        "from steelyard.optim import GreedySGD",
        "import steelyard; steelyard.optim.exact_cross_entropy",
        "import steelyard; steelyard.weigh('nfi', store=sys.argv[1])",
        "import steelyard.bench; steelyard.bench.paired_interval([1.0, 2.0])",
    ],
)
def test_the_library_says_what_to_install(statement, tmp_path):
    code = f"{BLOCKER}\ntry:\n    {statement}\nexcept ImportError as error:\n    print(type(error).__name__, error)"
    done, out, err = python(code, str(tmp_path / "s.db"))
    assert done == 0, err
    assert out.startswith("MissingExtraError ")
    assert out.endswith(" is not installed; install it with: pip install 'steelyard[optim]'\n")


def test_doctor_names_what_is_missing_and_the_command(monkeypatch, capsys):
    import importlib.metadata

    from steelyard.cli import look

    real = importlib.metadata.version

    def version(name):
        if name in ("torch", "pyarrow"):
            raise importlib.metadata.PackageNotFoundError(name)
        return real(name)

    requires = [
        "numpy>=1.26",
        "torch>=2.6; extra == 'optim'",
        "scipy>=1.13; extra == 'optim'",
        'pyarrow>=16; extra == "tables"',
        "steelyard[optim]; extra == 'hf'",
        "pytest>=8; extra == 'dev'",
        "steelyard[hf]; extra == 'all'",
    ]
    monkeypatch.setattr(importlib.metadata, "version", version)
    monkeypatch.setattr(importlib.metadata, "requires", lambda _: requires)
    assert look._extras() == {"optim": ["torch"], "tables": ["pyarrow"], "hf": ["torch"]}
    look.doctor()
    out = capsys.readouterr().out
    assert "optim    missing torch: pip install 'steelyard[optim]'" in out
    assert "hf       missing torch: pip install 'steelyard[hf]'" in out  # through the extra that it builds on
    look.doctor(json=True)
    assert json.loads(capsys.readouterr().out)["extras"]["tables"] == ["pyarrow"]
