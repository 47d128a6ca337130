"""Several learners do what one does: whole runs, with all that a stage may ask, and what may befall them.

Most of it happens in one pair of processes (`tests/support/learners.py`), as each start takes longer than a run.
"""

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from types import MappingProxyType

import pytest
import torch

import learners
import runs
from mmrl.api.errors import UserError
from mmrl.compute import ranks
from mmrl.compute.processes import launch
from mmrl.config.parts import part_of
from mmrl.run_folder.reader import read_jsonl

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]

ROUGH = {"muon": 3e-3, "muon, sharded": 3e-3, "bfloat16": 2e-2, "float16": 2e-2}
"""Cases whose numbers are rounded to 8 bits on the way, by muon's orthogonalisation or everywhere, and ranks add up in another
order."""
SOME = (
    *("plain", "replicated", "kl", "lora", "ppo apart", "stages", "texts alone", "clips", "one", "broken", "stale", "slow"),
    *("resumed", "acts", "acts, vla", "float16", "smoke", "frozen tower"),
)
"""The cases that CI plays; of others each is near to one of them."""
SPREAD = {"plain", "kl", "lora", "ppo apart", "ema", "bfloat16", "sgd", "muon, sharded", "acts, vla"}
"""Cases in which it is looked at that weights and optimiser are spread over the ranks."""
CHAINS = {"shards": True, "whole": False}
"""How the checkpoints of resumed runs are written -> `checkpoint.shards`."""
UNWHOLE = {"checkpoint": {"every": 2, "keep": 9, "shards": False}}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("learners")


def compared(folder, cases, disturbed=MappingProxyType({})):
    """What one process makes of each case, by name; and what two make of the cases, and of runs that are disturbed, by name and
    rank."""
    plays = {name: {"name": name, "folder": str(folder / "two" / name)} for name in cases} | disturbed
    processes = learners.start(2, folder / "first", list(plays.values()))
    alone = {}
    try:
        with learners.prepared():
            for name in cases:
                (folder / "one" / name).mkdir(parents=True)
                alone[name] = learners.play(name, folder / "one" / name)
    finally:
        together = learners.ended(processes, folder / "first", 900)
    return alone, dict(zip(plays, together, strict=True))


@pytest.fixture(scope="module")
def both(folder):
    """`compared` for the cases that CI knows."""
    stopped = {"name": "resumed", "stop": learners.STOP}
    again = {"name": "resumed", "resume": True}
    disturbed = {
        "shards, stopped": {**stopped, "folder": str(folder / "two" / "shards")},
        "whole, stopped": {**stopped, "folder": str(folder / "two" / "whole"), "sections": UNWHOLE},
        "full, stopped": {**stopped, "folder": str(folder / "two" / "full")},
        "full": {**again, "folder": str(folder / "two" / "full"), "fault": "full"},
        "full, again": {**again, "folder": str(folder / "two" / "full")},
        "other, stopped": {**stopped, "stop": 4, "folder": str(folder / "two" / "other")},
        "crowded": {**again, "folder": str(folder / "two" / "other"), "fault": "crowded"},
        "other model": {**again, "folder": str(folder / "two" / "other"), "fault": "other model"},
    }
    disturbed["planted"] = {"name": "masked", "folder": str(folder / "two" / "planted"), "fault": "planted"}
    disturbed["acts, stopped"] = {"name": "acts, vla", "stop": 4, "folder": str(folder / "two" / "acts, stopped")}
    return compared(folder, SOME, disturbed)


@pytest.fixture(scope="module")
def alone(both):
    return both[0]


@pytest.fixture(scope="module")
def played(both):
    return both[1]


@pytest.fixture(scope="module")
def resumed(folder, played):
    """Runs that two began and one went on with until a third step: what two make of the rest, with either kind of checkpoint."""
    with learners.prepared():
        for chain, shards in CHAINS.items():
            sections = {} if shards else UNWHOLE
            found = learners.play("resumed", folder / "two" / chain, sections=sections, stop=learners.STOP_AGAIN, resume=True)
            assert found["error"] == "stopped"
    plays = [
        {"name": "resumed", "folder": str(folder / "two" / chain), "resume": True, "sections": {} if shards else UNWHOLE}
        for chain, shards in CHAINS.items()
    ]
    processes = learners.start(2, folder / "second", plays)
    return dict(zip(CHAINS, learners.ended(processes, folder / "second", 300), strict=True))


# one test for all cases: each process of a parallel test run would play them again
@pytest.mark.always
def test_two_learners_do_what_one_does(alone, played):
    do_the_same(alone, played, SOME)


@pytest.mark.exhaustive
def test_two_learners_do_what_one_does_in_the_other_cases(tmp_path):
    rest = [name for name in learners.CASES if name not in SOME]
    do_the_same(*compared(tmp_path, rest), rest)


def do_the_same(alone, played, cases):
    """Ids, losses, rewards, gradient norms, all other metrics, recorded rollouts, evaluations, weights and optimisers; and both
    ranks have the same weights."""
    found = {name: learners.differences(alone[name], *played[name], bound=ROUGH.get(name, 1e-5)) for name in cases}
    assert not {name: apart[:5] for name, apart in found.items() if apart}
    for name in cases:
        steps = metrics(alone[name])
        assert len(steps) == (2 if name in ("slow", "asked otherwise", "smoke") else learners.STEPS), name
        assert any(s["grad_norm"] > 0 for s in steps), f"{name}: nothing was learned"
        assert all("ranks/wait_s" in s for s in metrics(played[name][0])) and "ranks/wait_s" not in steps[0]
        first, second = (share["weights"] for share in played[name])
        assert all(torch.equal(first[k], second[k]) for k in first), name
        assert name not in ABOUT or ABOUT[name](alone[name]), f"{name}: it lacks what it is about"
    for name in SPREAD & {*cases}:
        for share in played[name]:
            for held, whole in zip(share["held"], share["all"], strict=True):
                assert 0.45 * whole < held < 0.55 * whole, f"{name}: each rank holds half of weights and optimiser"


def metrics(played):
    return [row for _, row in played["trajectory"][0] if "loss" in row]


def column(played, key):
    return [step[key] for step in metrics(played) if key in step]


ABOUT = {
    "picked": lambda found: max(column(found, "sampling/filtered_share")) > 0,
    "ghpo": lambda found: sum(column(found, "sampling/hinted")) and sum(column(found, "sampling/ground_truth")),
    "guide": lambda found: sum(column(found, "sampling/hinted")) and {*column(found, "sampling/ground_truth")} == {3.0},
    "replay": lambda found: sum(column(found, "sampling/replayed")),
    "imitation": lambda found: len({*column(found, "imitation/weight")}) > 3,
    "kl": lambda found: max(column(found, "kl")) > 1e-4,
    "consistency": lambda found: sum(column(found, "consistency/paid_share")) > 0,
    "lora": lambda found: max(column(found, "kl")) > 0,
    "stale": lambda found: 0 < max(column(found, "importance/apart_share")) < 1,
    "stale, to the sampler": lambda found: 0 < max(column(found, "importance/drifted_share")) < 1,
    "float16": lambda found: min(column(found, "loss_scale")) > 1 and max(column(found, "grad_norm")) > 0,
    "clips": lambda found: (
        {"clip", "picture", "two", "large"} == {row["prompt_id"].split("-")[1] for row in found["trajectory"][1]}
    ),
    "asked otherwise": lambda found: (
        {"blank", "shuffled", "sparse_to_dense", "pass@2"} <= found["trajectory"][0][0][1]["extra"].keys()
    ),
}
"""Case -> whether what it is about happened in it."""


def test_of_one_prompt_the_second_rank_samples_nothing(played):
    own = [sum(map(sum, share["own"])) for share in played["one"]]
    assert own[0] and not own[1]
    assert any(sum(a) != sum(b) for a, b in zip(*(share["own"] for share in played["plain"]), strict=True))


def test_prompts_with_broken_pictures_are_left_out_and_told_once(played):
    assert sum("left out" in note for note in played["broken"][0]["notes"]) == 1
    assert "not a picture" in played["broken"][0]["errors"] or ".png" in played["broken"][0]["errors"]


def test_weight_decay_pulls_at_nothing_that_was_not_looked_with(alone, played):
    before = learners.first_weights()
    for share in [alone["texts alone"], *played["texts alone"]]:
        moved = {part_of(k) for k, v in share["weights"].items() if not torch.equal(v, before[k])}
        assert moved == {"language"} or moved == {"language", "head"}


def test_frozen_towers_of_sharded_weights_look_at_each_picture_once(alone, played):
    """Each is shown to the sampler, the policy and the reference. A rank has all of a tower's weights in a pass, whether it looks
    or not. Passes without pictures show a blank one, which the sampler doesn't see."""
    assert alone["frozen tower"]["shown"] == 3 * alone["frozen tower"]["looked"] > 0
    for share in played["frozen tower"]:
        assert 2 * share["looked"] <= share["shown"] and share["sight"] > 0


def test_replicated_weights_are_held_whole_by_each_rank(played):
    for share in played["replicated"]:
        assert share["held"] == share["all"]


def test_a_slow_verifier_is_waited_for(played):
    """Two completions of 0.4 s each in the second rank, which the first waits for."""
    waiting = [s["ranks/wait_s"] for s in metrics(played["slow"][0])]
    assert min(waiting) > 0.7


def test_runs_go_on_with_other_numbers_of_learners(alone, played, resumed):
    for chain in CHAINS:
        assert [share["error"] for share in played[f"{chain}, stopped"]] == ["stopped"] * 2
        assert learners.differences(alone["resumed"], *resumed[chain], sampled=False) == []


def test_a_run_that_acts_goes_on_in_one_process(folder, alone, played):
    assert [share["error"] for share in played["acts, stopped"]] == ["stopped"] * 2
    with learners.prepared():
        again = learners.play("acts, vla", folder / "two" / "acts, stopped", resume=True)
    assert learners.differences(alone["acts, vla"], again, sampled=False) == []


@pytest.mark.always
def test_shards_are_written_by_all(folder, resumed):
    """Each a file, of half of what is there."""
    checkpoints = folder / "two" / "shards" / "run" / "checkpoints"
    files = sorted((checkpoints / "step-000002" / "learner").glob("*.safetensors"))
    sizes = [p.stat().st_size for p in files]
    assert json.loads((checkpoints / "step-000002" / "learner" / "shards.json").read_text()) == [p.name for p in files]
    assert len(sizes) == 2 and 0.8 < sizes[0] / sizes[1] < 1.25
    assert not (checkpoints / "step-000002" / "learner.safetensors").exists()
    assert (checkpoints / "step-000003" / "learner.safetensors").is_file(), "one process has no shards"
    assert (folder / "two" / "whole" / "run" / "checkpoints" / "step-000002" / "learner.safetensors").is_file()


def test_a_full_disk_of_one_rank(alone, played):
    """The other doesn't wait for ever, the last checkpoint is whole, and the run goes on from it."""
    first, second = (share["error"] for share in played["full"])
    assert re.search(r"step-000004 could not be written: File too large: free some space", first)
    assert second == "exit 2", "it is said once"
    assert learners.differences(alone["resumed"], *played["full, again"], sampled=False) == []


def test_an_error_of_one_rank_ends_all_with_a_checkpoint(folder, played):
    """It is met between two steps of what ranks do together; what the first rank writes of it is whole."""
    first, second = (share["error"] for share in played["planted"])
    assert first == "an image can't be masked: mend it" and second == "exit 2"
    made = folder / "two" / "planted" / "run"
    assert [row["what"] for row in read_jsonl(made / "errors.jsonl")][-1] == first
    assert (made / "checkpoints" / "step-000002").is_dir()


def test_what_is_wrong_with_the_folder_is_told_by_all(played):
    first, second = (share["error"] for share in played["crowded"])
    assert "is in use by another mmrl" in first and second == "exit 2"
    first, second = (share["error"] for share in played["other model"])
    assert re.search(r"^checkpoint .*step-000004 can't be read: .*remove that folder.*$", first) and second == "exit 2"


# -- commands -------------------------------------------------------------------------------------------------------------


class Command:
    """`mmrl train` with two learners, in a process group that is looked after."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.path = folder / "runs" / "toy"
        (folder / "run.toml").write_text(
            'name = "toy"\npolicy = {model = "tiny:qwen2_5_vl:hidden=32,layers=1"}\n'
            'tasks = [{id = "toy/colour"}]\ncompute = {learners = 2}\ngenerate = {max_tokens = 6}\n'
            "evaluate = {num_prompts = 4}\ncheckpoint = {every = 1, keep = 99}\ntrain = {threads = 1}\nrecord = {trackers = []}\n"
            '[[stages]]\nkind = "rl"\nsteps = 12\nprompts_per_step = 3\ngroup_size = 4\nlearning_rate = 1e-3\n'
        )
        self.env = {**os.environ, "MMRL_PLUGIN_FILES": runs.TOY, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}

    def start(self, *options: str, program: tuple[str, ...] = (sys.executable, "-m", "mmrl"), **env: str):
        return subprocess.Popen(
            [*program, "train", "run.toml", *options],
            cwd=self.folder,
            env={**self.env, "MARK": str(self.folder), **env},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    @property
    def step(self) -> int:
        return max((row["step"] for row in read_jsonl(self.path / "metrics.jsonl")), default=0)

    def until(self, step: int, process: subprocess.Popen, limit: float = 200) -> None:
        began = time.monotonic()
        while self.step < step:
            assert process.poll() is None, process.communicate()[1]
            assert time.monotonic() - began < limit
            time.sleep(0.02)

    def alive(self) -> dict[int, bytes]:
        """All processes that came of it: pid -> command line."""
        found = {}
        for path in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if f"MARK={self.folder}\0".encode() in (path / "environ").read_bytes():
                    found[int(path.name)] = (path / "cmdline").read_bytes()
        return found

    def rank(self, number: int) -> int:
        for pid in self.alive():
            with contextlib.suppress(OSError):
                variables = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
                line = Path(f"/proc/{pid}/cmdline").read_bytes()
                if f"RANK={number}".encode() in variables and b"train" in line.split(b"\0"):
                    return pid
        raise AssertionError(f"no rank {number}")

    def gone(self, within: float = 60) -> bool:
        began = time.monotonic()
        while self.alive():
            if time.monotonic() - began > within:
                return False
            time.sleep(0.1)
        return True

    @property
    def saved(self) -> int:
        return max(int(p.name[5:]) for p in (self.path / "checkpoints").glob("step-*"))


@pytest.fixture
def command(tmp_path):
    made = Command(tmp_path)
    yield made
    for pid in made.alive():
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def test_ranks_and_their_parent_are_ended_and_the_run_goes_on(command, tmp_path):
    """A rank is killed, then all are asked to stop, then their parent is killed: each time nothing is left behind, and in the end
    the run is the one that nothing befell."""
    process = command.start()
    command.until(2, process)
    os.kill(command.rank(1), signal.SIGKILL)
    said = process.communicate(timeout=100)[1]
    assert process.returncode == 2 and command.gone()
    assert lines(said) == ["mmrl: rank 1 was ended by SIGKILL: the others end too; continue with --resume"]

    process = command.start("--resume")
    command.until(command.step + 2, process)
    process.send_signal(signal.SIGINT)
    said = process.communicate(timeout=100)[1]
    assert process.returncode == 130 and command.gone()
    assert "Traceback" not in said and said.count("stopping after this step") == 1
    assert command.saved == command.step

    process = command.start("--resume")
    command.until(command.step + 2, process)
    process.kill()
    process.communicate()
    assert command.gone(), "ranks hear of it by themselves"
    assert command.saved == command.step < 12

    process = command.start("--resume")
    said = process.communicate(timeout=200)[1]
    assert process.returncode == 0 and command.gone(), said
    whole = runs.run(runs.parse_config(runs_file(command), ("compute.learners=1", f"runs_dir={tmp_path / 'alone'}")))
    found: list[str] = []
    learners.compare(runs.trajectory(whole), runs.trajectory(command.path), "", 1e-5, found)
    assert found == []


def runs_file(command):
    import tomllib

    return tomllib.loads((command.folder / "run.toml").read_text())


def lines(said):
    """What is told to people, without progress bars of transformers."""
    return [line for line in said.splitlines() if line.strip() and "Writing model shards" not in line]


def test_torchrun_starts_it_too(command):
    program = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "mmrl")
    process = command.start("--set", "stages.0.steps=2", program=program)
    said = process.communicate(timeout=200)[1]
    assert process.returncode == 0, said
    assert command.step == 2 and command.gone()
    assert {"ranks/wait_s"} <= read_jsonl(command.path / "metrics.jsonl")[1]["metrics"].keys()


def test_a_port_in_use(command):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        where = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(taken.getsockname()[1]), "RANK": "0", "WORLD_SIZE": "2"}
        process = command.start(**where)
        said = process.communicate(timeout=100)[1]
    assert process.returncode == 2 and not command.path.exists()
    (line,) = [line for line in lines(said) if line.startswith("mmrl:")]
    assert "Traceback" not in said
    assert re.search(r"the ranks can't connect at 127\.0\.0\.1:\d+: .*choose another port \(torchrun --master-port\)", line)


def test_one_process_is_not_several(tmp_path):
    with pytest.raises(UserError, match=r"compute\.learners = 2, but this is one process: start the run with `mmrl train`"):
        runs.run(runs.toy_config(tmp_path, compute={"learners": 2}))
    assert list(tmp_path.iterdir()) == []


def test_one_gpu_is_not_several(tmp_path, monkeypatch):
    monkeypatch.setattr(ranks, "world_size", lambda: 2)
    with pytest.raises(UserError, match=r"policy\.device = .cuda:0. is one GPU, and there are 2 learners: use .auto."):
        runs.run(runs.toy_config(tmp_path, policy={"model": learners.MODEL, "device": "cuda:0"}, compute={"learners": 2}))


def test_more_learners_than_gpus(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    with pytest.raises(UserError, match=r"compute\.learners = 3, and this machine has 2 GPUs: lower it, or start the run on"):
        launch(3, ["train", "run.toml"])
