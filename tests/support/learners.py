"""Runs of several learners and of one, for tests that compare them.

The file is also the program of each process: `python learners.py RANK RANKS FOLDER` plays what FOLDER/play.json lists, one after
another, in one set of processes, and writes what came of each to FOLDER/NUMBER.RANK.pt.
"""

from __future__ import annotations

import contextlib
import copy
import datetime
import functools
import json
import math
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import distributed
from torch.distributed.tensor import DTensor

import forked
import runs
from mmrl.api.errors import PluginError, UserError
from mmrl.compute import ranks
from mmrl.run_folder.reader import read_jsonl
from mmrl.train.smoke import smoke

MODEL = "tiny:qwen2_5_vl:hidden=32,layers=2"
SHARES = str(Path(__file__).with_name("shares.py"))
DIAL = str(Path(__file__).with_name("dial.py"))
PLUGINS = os.pathsep.join([runs.TOY, SHARES, DIAL])
STEPS = 6
"""Of a run; evaluations come before them, halfway and at the end."""
STOP, STOP_AGAIN = 2, 3
"""After these steps of the case "resumed" tests stop runs that go on."""
RL = {"kind": "rl", "steps": STEPS, "prompts_per_step": 3, "group_size": 4, "learning_rate": 1e-3}
SFT = {"kind": "sft", "steps": STEPS, "batch_size": 3, "learning_rate": 1e-3}
DISTILL = {
    "kind": "distill",
    "teacher": f"{MODEL},seed=7",
    "steps": STEPS,
    "prompts_per_step": 3,
    "group_size": 2,
    "learning_rate": 1e-3,
}
PAIRS = {"kind": "preference", "steps": STEPS, "prompts_per_step": 3, "learning_rate": 1e-3}
TIMED = (
    *("simulator/steps_per_s", "simulator/busy_share", "policy/idle_share", "ranks/wait_s"),
    *("async/process", "async/generate", "async/judge"),
)
"""What depends on the clock."""
LETTERS = {"toy/letters": 1.0}


def rl(tasks: Sequence[str] = (), also: dict[str, Any] | None = None, **stage: Any) -> dict[str, Any]:
    """A run of one rl stage. tasks: kinds of prompts; pictures of one size when empty. also: other sections."""
    return case({**RL, **stage}, tasks=tasks, **(also or {}))


def case(*stages: dict[str, Any], tasks: Sequence[str] = (), **sections: Any) -> dict[str, Any]:
    mixed = {"id": "shares/mixed", "options": {"kinds": list(tasks), "folder": "FOLDER"}}
    colour = {"id": "toy/colour", "verifiers": LETTERS}
    return {"tasks": [mixed if tasks else colour], "stages": list(stages), **sections}


REPLICATED = {"compute": {"weights": "replicated"}}
LORA = {"policy": {"model": MODEL, "lora": {"rank": 2, "alpha": 4.0, "target_modules": ["language", "vision"]}}}
ACTS = {
    "policy": {"kind": "robotics/small", "model": "mlp", "options": {"dims": 2, "state": 2, "hidden": [8]}},
    "tasks": [{"id": "dial/turn", "options": {"reward": "own"}, "verifiers": {"dial/success": 1.0}}],
    "simulate": {"num_envs": 4},
}
FEW_STARTS = {"id": "dial/turn", "options": {"reward": "own", "n": 3}, "verifiers": {"dial/success": 1.0}}
CASES: dict[str, dict[str, Any]] = {
    "plain": rl(),
    "smoke": rl(),
    "replicated": rl(also=REPLICATED),
    "kl": rl(kl_coef=0.3, epochs=2, minibatches=2, reference_every=3, optimizer="sgd", learning_rate=0.1),
    "checkpointed": rl(
        also={"train": {"threads": 1, "gradient_checkpointing": True, "micro_batch_tokens": 40}}, entropy_coef=0.01
    ),
    "lora": rl(also=LORA, kl_coef=0.1),
    "frozen tower": rl(["picture", "text"], also={"policy": {"model": MODEL, "lora": {"rank": 2, "alpha": 4.0}}}, kl_coef=0.1),
    "ppo": rl(algorithm="ppo", critic={"hidden_sizes": [8], "learning_rate": 1e-3, "warmup_steps": 2}),
    "ppo apart": rl(["picture", "text"], algorithm="ppo", critic={"backbone": "separate", "learning_rate": 1e-3}),
    "picked": rl(dynamic_sampling=2, oversample=1.5, success_threshold=0.35, min_success_rate=0.2, max_success_rate=0.8),
    "ghpo": rl(["picture", "text"], hints="ghpo", success_threshold=0.45, ground_truth="when-failed"),
    "guide": rl(["picture", "text"], hints="guide", success_threshold=0.45, ground_truth="always"),
    "masked": rl(["picture", "text"], perception={"coef": 0.5}, entropy_penalty=0.1, minibatches=2),
    "masked, both": rl(["picture", "text"], perception={"coef": 0.5, "gradient": "both", "entropy_penalty": 0.1}),
    "consistency": rl(consistency={"opening": "e", "closing": "zz"}, reference_every=2, reference_decay=0.5),
    "noisy": rl(["picture", "text"], noisy={"share": 0.5, "ratio": "clean"}),
    # of one token, many gradients are nothing but rounding, which Adam would make as large as others
    "ttrv": rl(labels="ttrv", optimizer="sgd", learning_rate=0.1, also={"generate": {"max_tokens": 1}}),
    "co-reward": rl(["picture", "text"], labels="co-reward", also={"generate": {"max_tokens": 1}}),
    "experts": rl(
        minibatches=2,
        experts={"router_replay": "R3", "aux_loss_coef": 0.01, "z_loss_coef": 0.01},
        also={
            "policy": {"model": "tiny:qwen3_vl_moe:hidden=32,layers=2"},
            "train": {"threads": 1, "gradient_checkpointing": True, "micro_batch_tokens": 40},
        },
    ),
    "remax": rl(algorithm="remax", overlong="mask"),
    "stages": case(*({**stage, "steps": STEPS // 3} for stage in (SFT, {**RL, "ema_decay": 0.5}, DISTILL))),
    "reverse": case(DISTILL | {"divergence": "reverse"}, tasks=["picture", "text"]),
    "hard": case(DISTILL | {"divergence": "hard"}),
    "ema": rl(ema_decay=0.6),
    "kinds": rl(["text", "picture"], prompts_per_step=2, also={"policy": {"model": MODEL}}),
    "texts now and then": rl(["text", "text", "text", "picture"], prompts_per_step=1, weight_decay=0.1),
    "texts alone": rl(["text"], weight_decay=0.1),
    "clips": rl(["clip", "picture", "two", "large"], also={"policy": {"model": MODEL, "video": {"max_frames": 4}}}),
    "one": rl(prompts_per_step=1),
    "imitation": rl(imitation={"decay_steps": 8, "batch_size": 1}),
    "condition": rl(["picture", "text"], condition={}),
    "replay": rl(
        ["picture", "text"],
        order="easy-first",
        replay_share=0.5,
        replay_buffer_size=4,
        adapt_task_weights="variance",
        success_threshold=0.45,
    ),
    "broken": case(RL, tasks=()) | {"tasks": [{"id": "toy/broken-images", "options": {"folder": "OWN", "each": 16}}]},
    # of fewer prompts than a step deals out: one comes to both ranks
    "acts": case(RL | {"ratio": "action", "prompts_per_step": 5}) | ACTS | {"tasks": [FEW_STARTS]},
    "acts, ppo": case(RL | {"algorithm": "ppo", "group_size": 1, "prompts_per_step": 5, "minibatches": 2, "epochs": 2}) | ACTS,
    # one episode a step: half of the ranks have no call of their own
    "acts, vla": case(RL | {"prompts_per_step": 1, "group_size": 1, "algorithm": "reinforce++", "kl_coef": 0.1, "ema_decay": 0.5})
    | ACTS
    | {"policy": {"kind": "vla", "model": MODEL, "options": {"dims": 2, "state": 2, "size": 56, "head": "normal"}}}
    | {"checkpoint": {"every": 4, "keep": 9, "shards": True}},
    "acts, stale": case(
        RL | {"algorithm": "ppo", "group_size": 1, "importance_sampling": "truncate", "minibatches": 2},
        compute={"staleness": 1},
        checkpoint={"every": 4},
    )
    | ACTS,
    **{name: case(SFT | {"optimizer": name}) for name in ("adam", "sgd")},
    # of a longer memory the first steps are 32 times the learning rate, also where a gradient is nothing but rounding
    "rmsprop": case(SFT | {"optimizer": "rmsprop", "beta2": 0.5}),
    "muon": case(SFT | {"optimizer": "muon"}, **REPLICATED),
    "adafactor": case(SFT | {"optimizer": "adafactor"}, **REPLICATED),
    "muon, sharded": case(SFT | {"optimizer": "muon"}),
    "stale": rl(importance_sampling="truncate", gap_mask=0.005, also={"compute": {"staleness": 1}, "checkpoint": {"every": 4}}),
    "stale, to the sampler": rl(
        ratio_to="sampler", off_policy_mask=0.02, minibatches=2, also={"compute": {"staleness": 1}, "checkpoint": {"every": 4}}
    ),
    "asked otherwise": rl(
        ["clip", "text", "picture"],
        steps=2,
        also={
            "policy": {"model": MODEL, "video": {"max_frames": 4}},
            "evaluate": {
                "num_prompts": 7,
                "num_samples": 2,
                "temperature": 0.8,
                "blank_images": True,
                "shuffle_frames": True,
                "sparse_frames": [2, 4],
            },
        },
    ),
    "slow": case({**RL, "steps": 2, "prompts_per_step": 2, "group_size": 2}, tasks=["picture"])
    | {"tasks": [{"id": "shares/mixed", "options": {"kinds": ["picture"]}, "verifiers": {"shares/slow": 1.0}}]},
    "resumed": rl(
        algorithm="ppo",
        critic={"backbone": "separate", "learning_rate": 1e-3},
        kl_coef=0.2,
        ema_decay=0.5,
        also={"checkpoint": {"every": 2, "keep": 9, "shards": True}},
    ),
    "pairs": case(PAIRS),
    "ratings": case(PAIRS | {"loss": "bradley-terry"}, policy={"kind": "reward", "model": MODEL})
    | {"train": {"threads": 1, "micro_batch_tokens": 40}},
    "bfloat16": case(SFT, policy={"model": MODEL, "dtype": "bfloat16"}),
    # with float32 weights beside it, which aren't sharded; its rate is low, as Adam makes mere rounding as large as the rate
    "float16": rl(
        algorithm="ppo",
        learning_rate=1e-5,
        critic={"hidden_sizes": [8], "learning_rate": 1e-5},
        also={"policy": {"model": MODEL, "dtype": "float16"}},
    ),
}
COMPILED = ("plain", "acts, vla", "ratings")
"""Cases of each kind of policy whose layers can be compiled; the compiled ones are called "compiled, ..."."""
CASES |= {
    f"compiled, {name}": CASES[name] | {"train": {"threads": 1, **CASES[name].get("train", {}), "compile": True}}
    for name in COMPILED
}


def config(name: str, folder: Path, learners: int = 1, **sections: Any) -> Any:
    """The run file of a case, as so many learners carry it out."""
    data = copy.deepcopy(CASES[name]) | sections
    for task in data["tasks"]:
        where = {"FOLDER": folder.parents[1] / "media", "OWN": folder / f"of-{ranks.rank()}"}.get(
            task.get("options", {}).get("folder")
        )
        if where:
            where.mkdir(exist_ok=True)
            task["options"]["folder"] = str(where)
    data = {
        "policy": {"model": MODEL},
        "evaluate": {"num_prompts": 5, "every": STEPS // 2},
        "record": {"rollouts_every": 1, "rollouts": 99, "trackers": []},
        **data,
    }
    data["compute"] = {**data.get("compute", {}), "learners": learners}
    found = runs.toy_config(folder, name="run", **data)
    return smoke(found) if name == "smoke" else found


class Stopping(runs.Silent):
    """Asks for a stop after a step, in one rank, as a signal would."""

    def __init__(self, stop: int | None) -> None:
        super().__init__()
        self.stop, self.run = stop, None

    def begun(self, run: Any) -> None:
        self.run = run

    def step_finished(self, step: int, metrics: Any) -> None:
        if step == self.stop and ranks.rank() == ranks.world_size() - 1:
            self.run.stop = True


def play(
    name: str,
    folder: Path,
    learners: int = 1,
    *,
    sections: dict[str, Any] | None = None,
    stop: int | None = None,
    resume: bool = False,
    fault: str = "",
) -> dict[str, Any]:
    """Carry a case out in a folder; what came of it in this process. stop: after this step. fault: see `FAULTS`."""
    import mmrl.train.start
    from mmrl.policies import compiling
    from mmrl.policies.vlm import vlm
    from mmrl.policies.vlm.vision_cache import VisionCache
    from mmrl.train.update.pack_conversations import ConversationPacker

    chunk, vlm.LOGIT_CHUNK = vlm.LOGIT_CHUNK, 3 * 512 if name == "checkpointed" else vlm.LOGIT_CHUNK  # a few tokens at a time
    compiled, compiling.compiled = compiling.compiled, traced
    seen: dict[str, Any] = {"ids": [], "notes": [], "own": [], "error": "", "shown": 0, "looked": 0, "sight": 0}
    progress, pack, look = Stopping(stop), ConversationPacker.pack, VisionCache.look

    def packed(self: Any, rollouts: Any, *args: Any, **options: Any) -> Any:
        seen["ids"].append([None if r.is_stub else [tuple(t.token_ids) for t in r.turns] for r in rollouts])
        found = pack(self, rollouts, *args, **options)
        seen["own"].append([len(m.target_L) for batch in found for m in batch.micro])
        return found

    def looked(self: Any, tower: Any, numbers: Any, patches: Any, grids: Any, see: Any) -> Any:
        def counted(patches: Any, grids: Any) -> Any:
            seen["looked"] += len(grids)
            return see(patches, grids)

        found = look(self, tower, numbers, patches, grids, counted)
        seen["shown"], seen["sight"] = seen["shown"] + len(numbers), max(seen["sight"], self.bytes)
        return found

    ConversationPacker.pack, VisionCache.look = packed, looked  # type: ignore[method-assign]
    try:
        with FAULTS[fault](folder / "run"):
            made = mmrl.train.start.train(
                config(name, folder, learners, **(sections or {})), progress, resume=resume, begun=progress.begun
            )
    except UserError as error:
        return seen | {"error": str(error)}
    except KeyboardInterrupt:
        return seen | {"error": "stopped"}
    except SystemExit as error:
        return seen | {"error": f"exit {error.code}"}
    finally:
        ConversationPacker.pack, VisionCache.look, vlm.LOGIT_CHUNK = pack, look, chunk  # type: ignore[method-assign]
        compiling.compiled = compiled
    run = progress.run
    weights = dict(run.policy.parameters())
    state = run.steps.learner.optimizer.state()
    seen |= {
        "trajectory": runs.trajectory(made.path),
        "items": {p.name: list(read_jsonl(p)) for p in sorted((made.path / "evaluations").glob("*.jsonl"))},
        "notes": progress.notes,
        "errors": (made.path / "errors.jsonl").read_text() if (made.path / "errors.jsonl").exists() else "",
        "weights": {k: whole(v) for k, v in weights.items()},
        "state": {k: whole(v) for k, v in state.items()},
        "held": (held(weights.values()), held(state.values())),
        "all": (sum(v.numel() for v in weights.values()), sum(v.numel() for v in state.values())),
    }
    return seen


def traced(forward: Any) -> Any:
    """Takes the place of `compiling.compiled`: torch traces the function, and no code is made of it, which takes minutes."""
    from mmrl.policies import compiling

    compiling.allow_recompilations()
    return torch.compile(forward, dynamic=True, backend="aot_eager")


@contextlib.contextmanager
def crowded(path: Path) -> Any:
    """Another holds the run folder."""
    from mmrl.train.start import lock_run_folder

    with lock_run_folder(path) if ranks.is_first() else contextlib.nullcontext():
        yield


@contextlib.contextmanager
def full(path: Path) -> Any:
    """No file of the last rank's may be longer than this."""
    import resource

    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    if ranks.rank() == ranks.world_size() - 1:
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@contextlib.contextmanager
def other_model(path: Path) -> Any:
    """The newest checkpoint holds a model of another size."""
    from mmrl.policies.vlm import tiny

    if ranks.is_first():
        newest = sorted((path / "checkpoints").glob("step-*"))[-1]
        shutil.rmtree(newest / "policy")
        tiny.save(str(newest / "policy"), hidden=64, layers=2)
    yield


@contextlib.contextmanager
def planted(path: Path) -> Any:
    """From the third step on the last rank can't mask its images; and its alarms, which nobody asks, would fail at once."""
    import pytest

    from mmrl.train.alarms import AlarmMonitor
    from mmrl.train.stages import rl as steps

    calls, masked = [0], steps.masked_rollouts

    def fails(*args: Any) -> Any:
        calls[0] += 1
        if calls[0] > 2:
            raise PluginError("an image can't be masked: mend it")
        return masked(*args)

    with pytest.MonkeyPatch.context() as m:
        if ranks.rank() == ranks.world_size() - 1:
            m.setattr(steps, "masked_rollouts", fails)
            m.setattr(AlarmMonitor, "step", lambda *_: 1 / 0)
        yield


@contextlib.contextmanager
def failing_loss(path: Path, error: type[BaseException] = PluginError, stepped: bool = False) -> Any:
    """In its third update the last rank's loss fails, while the others wait for it in a pass. stepped: once the optimiser has
    stepped in that update."""
    import pytest

    from mmrl.train.update.learner import Learner

    updates, objective = [0], Learner._objective
    update = Learner.update

    def begun(self: Any, *args: Any, **options: Any) -> Any:
        updates[0], self.before = updates[0] + 1, self.optimizer.steps
        return update(self, *args, **options)

    def fails(self: Any, *args: Any) -> Any:
        if updates[0] == 3 and (self.optimizer.steps > self.before) == stepped:
            raise error("the loss failed: mend it")
        return objective(self, *args)

    with pytest.MonkeyPatch.context() as m:
        if ranks.rank() == ranks.world_size() - 1:
            m.setattr(Learner, "update", begun)
            m.setattr(Learner, "_objective", fails)
        yield


FAULTS: dict[str, Any] = {
    "": lambda path: contextlib.nullcontext(),
    "crowded": crowded,
    "full": full,
    "other model": other_model,
    "planted": planted,
    "failing loss": failing_loss,
    "failing loss, later": functools.partial(failing_loss, stepped=True),
    "interrupted": functools.partial(failing_loss, error=KeyboardInterrupt),
}


def first_weights() -> dict[str, torch.Tensor]:
    """The weights that all cases of the plain model begin with."""
    from mmrl.train.resolve import resolve
    from mmrl.train.start import load_policy

    policy: Any = load_policy(resolve(config("plain", Path("a/b/c"))), None)
    return {k: whole(v) for k, v in policy.parameters()}


def whole(tensor: torch.Tensor) -> torch.Tensor:
    tensor = tensor.detach()
    return (tensor.full_tensor() if isinstance(tensor, DTensor) else tensor).cpu().clone()


def held(tensors: Any) -> int:
    """Numbers that this process holds of them."""
    return sum((t.to_local() if isinstance(t, DTensor) else t).numel() for t in tensors)


@contextlib.contextmanager
def prepared() -> Any:
    """One judge for all runs, and no list of packages, which are slow to make."""
    import pytest

    import mmrl.run_folder.manifest
    import mmrl.train.start
    from mmrl.judge import local_judge

    names = ["toy/letters", "toy/exact", "dial/success", "shares/slow"]
    with pytest.MonkeyPatch.context() as m:
        m.setenv("MMRL_PLUGIN_FILES", PLUGINS)
        m.setattr(mmrl.run_folder.manifest, "_packages", dict)  # which is kept for later runs, unlike what it asks
        before = torch.get_num_threads()
        with local_judge({name: {} for name in names}) as judge:
            m.setattr(mmrl.train.start, "_judge", lambda config: contextlib.nullcontext(judge))
            try:
                yield
            finally:
                torch.set_num_threads(before)


def start(count: int, folder: Path, plays: Sequence[dict[str, Any]], program: str = __file__) -> list[Any]:
    """Processes that together carry these out, each the arguments of `play`, or of what else the program plays."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "play.json").write_text(json.dumps(plays))
    env = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", "PYTHONPATH": os.pathsep.join(sys.path)}
    return [
        forked.start([str(n), str(count), str(folder)], script=program, env=env, stderr=subprocess.PIPE) for n in range(count)
    ]


def ended(processes: Sequence[Any], folder: Path, timeout: float) -> list[list[dict[str, Any]]]:
    """What came of each of these plays, rank by rank."""
    try:
        for process in processes:
            _, said = process.communicate(timeout=timeout)
            assert process.returncode == 0, said[-3000:]
    finally:
        for process in processes:
            process.kill()
    plays = json.loads((folder / "play.json").read_text())
    return [
        [torch.load(folder / f"{n}.{rank}.pt", weights_only=False) for rank in range(len(processes))] for n in range(len(plays))
    ]


def differences(one: dict[str, Any], *shares: dict[str, Any], bound: float = 1e-5, sampled: bool = True) -> list[str]:
    """What of a run alone and of one of several ranks is not the same: ids and texts that are unequal, numbers further apart than
    the bound. Of a wider bound the texts of evaluations are left out, which may part at any token. sampled: all of the ids are
    there, which a run that was resumed has not seen."""
    found: list[str] = []
    ids = [one["ids"], *(share["ids"] for share in shares)] if sampled else []
    for step, (alone, *parts) in enumerate(zip(*ids, strict=True)):
        together = [[ids for ids in whose if ids is not None] for whose in zip(*parts, strict=True)]
        if together != [[ids] for ids in alone]:
            found.append(f"ids of batch {step}")
    for two in shares:
        _compare(one, two, bound, found)
    return found


def _compare(one: dict[str, Any], two: dict[str, Any], bound: float, found: list[str]) -> None:
    compare(one["trajectory"], two["trajectory"], "", bound, found)
    items = [kept["items"] if bound <= 1e-5 else _untold(kept["items"]) for kept in (one, two)]
    compare(*items, "items", bound, found)
    for kind in ("weights", "state"):
        found += [f"{kind}: {k}" for k in one[kind].keys() ^ two[kind].keys()]
        for k in one[kind].keys() & two[kind].keys():
            apart = (one[kind][k].double() - two[kind][k].double()).abs().max().item() if one[kind][k].numel() else 0.0
            if not apart <= 10 * bound:
                found.append(f"{kind}: {k} by {apart:.1e}")


def _untold(items: dict[str, list[dict[str, Any]]]) -> dict[str, list[dict[str, Any]]]:
    return {file: [{k: v for k, v in row.items() if k != "completion"} for row in rows] for file, rows in items.items()}


def compare(one: Any, two: Any, where: str, bound: float, found: list[str]) -> None:
    if isinstance(one, dict) and isinstance(two, dict):
        for key in [k for k in [*one, *(k for k in two if k not in one)] if k not in TIMED]:
            if key not in one or key not in two:
                found.append(f"{where}.{key} is missing")
            else:
                compare(one[key], two[key], f"{where}.{key}", bound, found)
    elif isinstance(one, list | tuple) and isinstance(two, list | tuple):
        if len(one) != len(two):
            found.append(f"{where}: {len(one)} and {len(two)}")
        for n, (a, b) in enumerate(zip(one, two, strict=False)):
            compare(a, b, f"{where}.{n}", bound, found)
    elif isinstance(one, float) and isinstance(two, float):
        if not (math.isnan(one) and math.isnan(two)) and not abs(one - two) <= bound * max(1.0, abs(one)):
            found.append(f"{where}: {one} and {two}")
    elif one != two:
        found.append(f"{where}: {one!r:.60} and {two!r:.60}")


def main() -> None:
    rank, count, folder = int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])
    torch.set_num_threads(1)
    os.environ["MMRL_TEST_RANK"] = str(rank)
    distributed.init_process_group(
        "gloo",
        init_method=f"file://{folder / 'store'}",
        rank=rank,
        world_size=count,
        timeout=datetime.timedelta(seconds=int(os.environ.get("PATIENCE", "120"))),
    )
    with prepared():
        for number, one in enumerate(json.loads((folder / "play.json").read_text())):
            where = Path(one.pop("folder"))
            where.mkdir(parents=True, exist_ok=True)
            torch.save(play(**one, folder=where, learners=count), folder / f"{number}.{rank}.pt")
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()
