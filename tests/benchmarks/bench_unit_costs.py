"""Measure the unit costs of docs/scale.md: processor seconds, requests, memory and disk of one of each.

Processor seconds (user and system) of firnline's own processes, not wall time: the machine may be shared. Other load
still makes them larger, because caches are shared too. The figures are kept in tests/benchmarks/scale/unit_costs.json,
with the machine and the day; `make scale-model` uses them.

Cases:
  events    decoding, whose table it is, the inbox
  looks     unchanged, with a new snapshot, first counts; a real REST catalog, local files
  memory    1,000 and 10,000 tables on the driver, and the ledger's state on disk
  rewrites  micro-batches and runs on Spark, splices inside an S3 server

    python -m tests.benchmarks.bench_unit_costs [CASE…] [--folder DIR] [--keep]
"""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

from tests.benchmarks.harness import bench_folder, options_of
from tests.benchmarks.machine import description
from tests.benchmarks.scale import measured_events, measured_looks, measured_memory, measured_rewrites
from tests.benchmarks.scale.files import write_measured

CASES = {
    "events": measured_events.measure,
    "looks": measured_looks.measure,
    "memory": measured_memory.measure,
    "rewrites": measured_rewrites.measure,
}


def main() -> None:
    parser = options_of(__doc__, *CASES)
    parser.add_argument("--keep", action="store_true", help="Write the figures to unit_costs.json.")
    options = parser.parse_args()
    with bench_folder(options.folder, stderr=True) as (scratch, console):
        found: dict[str, Any] = {}
        for case in options.cases or CASES:
            console.print(f"{case} …")
            found |= CASES[case](scratch / case)
            if options.keep:
                write_measured(found, description(scratch).splitlines()[0], datetime.now(UTC).date().isoformat())
        print(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
