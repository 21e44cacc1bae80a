"""What `steelyard weigh` and `steelyard resume` do with cells, and nothing else: something to kill.

python -m toys.drive STORE JOBS weigh PROFILE   |   python -m toys.drive STORE JOBS resume
"""

import sys

from steelyard.bench import runner
from steelyard.bench.plan import make_plan
from steelyard.bench.store import Store
from steelyard.errors import SteelyardError


def main(path, jobs, verb, profile="many"):
    with Store(path, check=True) as store:
        if verb == "weigh":
            plan = make_plan("toys.coin", store, profile=profile)
            plan.save(store)
            weighings = [plan.id]
        else:
            weighings = store.weighing_ids()
        return runner.run(store, weighings, int(jobs))


if __name__ == "__main__":
    try:
        print(main(*sys.argv[1:]))
    except SteelyardError as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
