class Store:
    """A source whose weighings a test can change."""

    def __init__(self, *all_results):
        self.all = {results.id: results for results in all_results}
        self.reads = 0

    def weighings(self):
        return [self.entry(results) for results in self.all.values()]

    @staticmethod
    def entry(results):
        counts = {state: sum(row.state == state for row in results.rows) for state in ("done", "failed", "running")}
        named = {name: getattr(results, name) for name in ("id", "method", "profile", "created", "finished")}
        return {**named, "total": len(results.rows), **counts}

    def results(self, name):
        self.reads += 1
        return self.all[name]
