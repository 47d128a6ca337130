"""Actions of mmrl's VLAs against LeRobot's own classes and OpenVLA's published code: the greatest differences.

    make peers && python benchmarks/vla_parity.py [--only pi0,smolvla]

On tiny random weights in float32, with the same observation and the same noise; LeRobot runs in its own environment. "saved by
LeRobot": mmrl loads a folder that LeRobot saved, weights, statistics and processors; "saved by mmrl" is the other direction.
OpenVLA's published code is on no package index: its results are kept in tests/golden/openvla, and what mmrl saves was read by it
when they were made. A difference is absolute, or a share of the largest number where that is above 1. The comparisons are those
of the tests. Prints one JSON object; the exit code is 1 where a difference is above 1e-5.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from machine import machine

sys.path[:0] = [str(Path(__file__).parents[1] / "tests" / "support")]
BOUND = 1e-5
Found = dict[str, dict[str, float]]
"""By who saved the folder and what is compared."""


def difference(ours, theirs) -> float:
    assert ours.shape == theirs.shape
    if not theirs.numel():  # the numbers of a state that isn't read
        return 0.0
    return float((ours.double() - theirs.double()).abs().max()) / max(1.0, float(theirs.abs().max()))


def greatest(compared: Iterator[dict], found: Found) -> Found:
    for pairs_of in compared:
        for saved, pairs in pairs_of.items():
            table = found.setdefault(saved, {})
            for name, both in pairs.items():
                name = name.rstrip(" 0123456789")  # of one call of several
                table[name] = max(table.get(name, 0.0), difference(*both))
    return found


def pi0(folder: Path, kind: str = "pi0") -> Iterator[dict]:
    from pi_parity import CASES, both_ways

    for case in CASES:
        if case.partition("-")[0] == kind:
            yield both_ways(case, folder / case)


def pi0_fast(folder: Path) -> Iterator[dict]:
    from pi0_fast_parity import CASES, both_ways

    for case in CASES:
        yield both_ways(case, folder / case)


def smolvla(folder: Path) -> Iterator[dict]:
    from smolvla_parity import CASES, both_ways, tiny

    for case in CASES:
        yield both_ways(case, folder / case)
    yield {"saved by mmrl": tiny(folder / "tiny")}


def xvla(folder: Path) -> Iterator[dict]:
    from xvla_parity import CASES, both_ways, published_names, tiny

    for case in CASES:
        yield both_ways(case, folder / case)
    yield {"saved by LeRobot": published_names(folder / "published"), "saved by mmrl": tiny(folder / "tiny")}


def act(folder: Path) -> Iterator[dict]:
    from act_parity import CASES, both_ways

    for case in CASES:
        (folder / case).mkdir()
        yield both_ways(case, folder / case)


def gr00t(folder: Path) -> Iterator[dict]:
    from gr00t_parity import CASES, TUNED, acting, both_ways

    for case in CASES:
        (folder / case).mkdir()
        yield {"saved by mmrl": acting(case, folder / case)}
    for case in TUNED:
        (folder / f"tuned-{case}").mkdir()
        yield both_ways(case, folder / f"tuned-{case}")


def openvla(folder: Path) -> Iterator[dict]:
    from openvla_published import all_pairs

    yield {"saved by the published code": {name: both for pairs in all_pairs(folder).values() for name, both in pairs.items()}}


POLICIES: dict[str, Callable[[Path], Iterator[dict]]] = {
    "pi0": pi0,
    "pi05": lambda folder: pi0(folder, "pi05"),
    "pi0_fast": pi0_fast,
    "smolvla": smolvla,
    "xvla": xvla,
    "act": act,
    "gr00t": gr00t,
    "openvla": openvla,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default=",".join(POLICIES), help="kinds of policies, with commas between them")
    names = parser.parse_args().only.split(",")
    if unknown := sorted(set(names) - POLICIES.keys()):
        parser.error(f"unknown: {', '.join(unknown)}; there are {', '.join(POLICIES)}")
    from peer_pythons import LEROBOT, MISSING

    if not LEROBOT and set(names) != {"openvla"}:
        parser.error(MISSING)
    found: dict[str, Found] = {}
    with tempfile.TemporaryDirectory() as folder:
        for name in names:
            own = Path(folder, name)
            own.mkdir()
            found[name] = greatest(POLICIES[name](own), {})
    worst = {name: max(value for table in tables.values() for value in table.values()) for name, tables in found.items()}
    holds = all(value <= BOUND for value in worst.values())
    figures = {"benchmark": "vla_parity", "bound": BOUND, "holds": holds, "greatest": worst, "differences": found}
    print(json.dumps(figures | {"machine": machine("numpy")}, indent=1))
    sys.exit(not holds)


if __name__ == "__main__":
    main()
