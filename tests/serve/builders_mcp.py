"""Stand-ins for what the MCP server serves."""

from types import SimpleNamespace

from steelyard.serve.mcp_server import SkillContract


class Skills:
    def __init__(self):
        self.asked = []
        self.error = None

    def retrieve(self, task, budget, format):
        if self.error:
            raise self.error
        self.asked.append((task, budget, format))
        return SkillContract(start="plot", skills=["plot", "table"], debt=[], text="START: plot")


class Memory:
    def __init__(self):
        self.rows = []
        self.asked = []

    def add(self, rows):
        self.rows += rows
        return [row["id"] or "made" for row in rows]

    def search(self, query, asker, k):
        self.asked.append((query, asker, k))
        kept = ("id", "author", "content")
        return [{"channel": None, "timestamp": None, "score": 1.0} | {n: row[n] for n in kept} for row in self.rows[:k]]


class Weigh:
    def __init__(self):
        self.calls = []
        self.wait = None

    def __call__(self, method, on_progress, **keywords):
        self.calls.append((method, keywords))
        for done in (0, 1, 1, 2):
            on_progress(SimpleNamespace(done=done, failed=0, total=2))
        if self.wait is not None:
            self.wait.wait(20)
        claim = SimpleNamespace(text="better")
        verdict = SimpleNamespace(claim=claim, task="t", outcome="borne out", sentence="it is better")
        results = SimpleNamespace(id="w", rows=[SimpleNamespace(state="done")], verdicts=[verdict])
        return SimpleNamespace(results=results, table=lambda: "table")
