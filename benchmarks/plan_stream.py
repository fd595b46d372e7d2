"""How near the fastest is the plan for a stream, and in what time: four instances on the four devices of
plan_critical.py.

Times and errors are those of plan_critical.py, measured on this machine once; with --made-up they are those of
plan_networks.py from one seed, more work for each network, so that runs on several machines can be compared. `slow` is
the cluster `field` of plan_critical.py: links of 20 to 200 Mbit/s; `rack` has 1 Gbit/s. The period is the simulated
busy time of the busiest device or link, component overheads included; the bound is proven for every plan.

    python benchmarks/plan_stream.py [--json] [--made-up] [--seed 0] [--time-limit-s 20]
"""

import argparse
import json
import sys
import time

from cases import markdown, write
from plan_critical import cluster, measured_workload
from plan_networks import workload
from taglio.cluster.planning.place import place
from taglio.cluster.planning.workload import parse_objective

INSTANCES = (("yunet-n-640", "slow"), ("yunet-n-640", "rack"), ("yolo11n-seg", "rack"), ("yolo11n-seg", "slow"))
CLUSTERS = {"slow": "field", "rack": "rack"}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--made-up", action="store_true", help="costs from --seed instead of measured ones")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--time-limit-s", type=float, default=20.0)
    parser.add_argument("--cases", help="such as yunet-n-640:slow,yolo11n-seg:rack; all where it is left out")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    wanted = [tuple(each.split(":")) for each in options.cases.split(",")] if options.cases else INSTANCES
    found = []
    for name, links in wanted:
        where = cluster(CLUSTERS[links])
        work = workload(name, where, options.seed) if options.made_up else measured_workload(name, where)
        begun = time.perf_counter()
        answer = place([work], where, parse_objective("throughput"), time_limit_s=options.time_limit_s)
        solve_s = time.perf_counter() - begun
        found.append(
            {
                "case": name,
                "cluster": links,
                "period_s": answer.value,
                "bound_s": answer.bound,
                "solve_s": solve_s,
                "gap": answer.gap,
                "latency_s": answer.plans[0].predicted_latency_s.value,
            }
        )
    if options.json:
        print(json.dumps(found, indent=1))
        return int(any(each["gap"] > 0.01 for each in found))
    rows = [
        [
            each["case"],
            each["cluster"],
            f"{each['period_s'] * 1e3:.2f}",
            f"{each['bound_s'] * 1e3:.2f}",
            f"{each['gap']:.2%}",
            f"{each['solve_s']:.1f}",
        ]
        for each in found
    ]
    text = markdown(["network", "links", "period ms", "bound ms", "gap", "s"], rows)
    seed = options.seed if options.made_up else None
    print(f"{text}\nwrote {write('plan_stream', {'rows': found, 'seed': seed}, text)}")
    return int(any(each["gap"] > 0.01 for each in found))


if __name__ == "__main__":
    sys.exit(main())
