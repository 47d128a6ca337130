"""Every key of a run file changes something that can be seen: each has an entry here, and a new key fails until it has one.

An entry names two runs that differ in that key alone, and what has to differ between them. The runs are real ones of a tiny
model; a run that several entries compare with is made once.
"""

import contextlib
import copy
import dataclasses
import json
import os
import statistics
import tempfile
import types
import typing
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers.dynamic_module_utils
from pydantic import BaseModel
from safetensors.torch import load_file
from torch.distributed.tensor import DTensor

import mmrl.api.processes.sandbox
import mmrl.compute.ranks
import mmrl.evaluation.evaluator
import mmrl.judge
import mmrl.registry.plugins
import mmrl.rollout.simulators.experts  # before a run replaces what it imports
import mmrl.rollout.simulators.lockstep
import mmrl.train.start
import mmrl.train.update.pack_conversations
import runs
from mmrl.api.errors import UserError
from mmrl.config.load import parse_config
from mmrl.config.parts import part_of
from mmrl.config.preferences import PAIR_SETTINGS
from mmrl.config.sections import STAGES, RunConfig
from mmrl.policies import compiling, gradient_checkpointing
from mmrl.policies.vlm import coordinate_formats, tiny, vision, vision_cache
from mmrl.policies.vlm.tiny import qwen
from mmrl.rollout.generate.local import LocalGenerator
from mmrl.rollout.turns import ConversationCollector
from mmrl.run_folder.reader import read_run
from mmrl.train.smoke_shows import told_shown
from mmrl.train.update.learner import Learner
from mmrl.train.update.offload import Offload

MODEL = "tiny:qwen2_5_vl:hidden=32,layers=1"
MORE = '''
import time
from PIL import Image
from mmrl import AlarmReading, AlarmSpec, PolicySpec, Prompt, Reply, SamplingRule, SamplingRuleSpec, Task, TaskSpec, TrackerSpec
from mmrl import VerifierSpec, hookimpl, user_message

@hookimpl
def mmrl_tasks():
    return [
        TaskSpec(id=f"extras/{name}", target=f"extras:{name.title()}", verifiers={"toy/letters": 1.0}, metric="toy/letters")
        for name in ("ranked", "talk", "echo", "film")
    ]

@hookimpl
def mmrl_verifiers():
    return [VerifierSpec(id=f"extras/{name}", target=f"extras:{name}", timeout_s=60) for name in ("opposite", "slow", "hungry")]

@hookimpl
def mmrl_policies():
    return [PolicySpec(id="extras/loud", target="extras:loud")]

@hookimpl
def mmrl_trackers():
    return [TrackerSpec(id="extras/kept", target="extras:Kept")]

@hookimpl
def mmrl_sampling_rules():
    return [SamplingRuleSpec(id=f"extras/{name}", target=f"extras:{name.title()}") for name in ("idle", "bonus")]

@hookimpl
def mmrl_alarms():
    return [AlarmSpec(id="extras/long", target="extras:long", warn=1e9, summary="Completions are long")]

def long(history):
    return (mean := history.recent("length/mean")) and AlarmReading(mean, "completions are long", "shorten them")

class Idle(SamplingRule):
    def __call__(self, groups, sample):
        return groups

class Bonus(SamplingRule):
    """Pays every episode."""
    rewards = True
    def __init__(self, much: float = 1.0):
        self.much = much
    def __call__(self, groups, sample):
        for group in groups:
            group.pay("bonus", [self.much] * len(group.rollouts))
        return groups

class Ranked(Task):
    """Prompts with a difficulty, a gold completion of four words, and other words to ask in."""
    def prompts(self, split, seed):
        for i in range(8):
            yield Prompt(id=f"{split}-{i}", messages=[user_message(f"What is {i}?", Image.new("RGB", (56, 56), (i, 9, 9)))],
                         answer=f"one two three {i}", meta={"difficulty": -i})
    def pair(self, prompt):
        return prompt.answer, prompt.answer[::-1]
    def rephrase(self, prompt):
        return Prompt(id=prompt.id, messages=[user_message("In other words?", *prompt.images)], answer=prompt.answer)

class Film(Ranked):
    """A clip of five seconds, which leaves it to the policy what it sees of it."""
    def prompts(self, split, seed):
        from pathlib import Path
        import footages
        from mmrl.api.media.clips import Clip
        path = Path(__file__).parent / "film.mp4"
        if not path.exists():
            footages.write(path, footages.frames(50, 112, 84), fps=10)
        for prompt in super().prompts(split, seed):
            yield Prompt(id=prompt.id, messages=[user_message(prompt.text, Clip(path=str(path)))], answer=prompt.answer)

class Talk(Ranked):
    """An episode never ends by itself."""
    def environment(self, prompt):
        return self
    def step(self, completion):
        return Reply(messages=[user_message("No.")])
    def close(self):
        pass

class Echo(Talk):
    def step(self, completion):
        return Reply(messages=[user_message(f"Whatever you say, it is not {completion}.")])

def letters(case):
    return min(0.9, sum(ord(c) % 17 for c in case.completion) / 400)

def opposite(case, share: float = 1.0):
    return share * (1 - letters(case))

def slow(case):
    time.sleep(1.0)
    return letters(case)

def hungry(case):
    return len(bytearray(300 * 2**20)) * 0 + letters(case)

def loud(config, **options):
    import torch
    from mmrl.policies.vlm.vlm import VLM
    policy = VLM(config, **options)
    with torch.no_grad():
        for _, p in policy.parameters():
            p.mul_(2.0)
    return policy

class Kept:
    def start(self, *, name, folder, config, project, step):
        (folder / "project").write_text(project)
    def log(self, step, metrics):
        pass
    def finish(self, status):
        pass
'''
BASES: dict[str, dict[str, Any]] = {
    "rl": {"kind": "rl", "steps": 2, "prompts_per_step": 2, "group_size": 4, "learning_rate": 1e-2},
    "sft": {"kind": "sft", "steps": 2, "batch_size": 4, "learning_rate": 1e-2},
    "distill": {
        "kind": "distill",
        "teacher": f"{MODEL},seed=7",
        "steps": 2,
        "prompts_per_step": 2,
        "group_size": 2,
        "learning_rate": 1e-2,
    },
    "preference": {"kind": "preference", "steps": 2, "prompts_per_step": 2, "learning_rate": 1e-2},
    "off-policy": {
        "kind": "off-policy",
        "steps": 2,
        "prompts_per_step": 2,
        "updates": 2,
        "batch_size": 8,
        "critics": 3,
        "hidden": [8],
        "learning_rate": 1e-2,
    },
}
BASES["recap"] = {
    "kind": "recap",
    "steps": 2,
    "prompts_per_step": 2,
    "updates": 2,
    "batch_size": 8,
    "learning_rate": 1e-2,
    "bins": 11,
    "hidden": [8],
    "value_updates": 4,
    "value_batch_size": 8,
}
BASES["hg-dagger"] = {
    "kind": "hg-dagger",
    "steps": 2,
    "prompts_per_step": 2,
    "updates": 2,
    "batch_size": 8,
    "learning_rate": 1e-2,
    "interventions": 1.0,
}
TURN = {"id": "dial/turn", "options": {"reward": "own", "n": 8}, "verifiers": {"dial/success": 1.0}}
AROUND: dict[str, dict[str, Any]] = {
    "off-policy": {
        "policy": {"kind": "squashed", "model": "mlp", "options": {"dims": 2, "state": 2, "hidden": [8]}},
        "tasks": [TURN],
        "simulate": {"num_envs": 4},
    },
    "recap": {
        "policy": {"kind": "vla", "model": MODEL, "options": {"dims": 2, "bins": 8, "chunk": 1}},
        "tasks": [TURN],
        "simulate": {"num_envs": 4},
    },
}
"""What the runs of a kind of stage have in place of the tiny model and its task."""
AROUND["hg-dagger"] = AROUND["recap"]
FILM = {"tasks": [{"id": "extras/film"}]}
FILMED = {"tasks": [{"id": "extras/film", "verifiers": {"toy/letters": 1.0, "extras/opposite": 0.5}}]}
CONTRAST = {"id": "video/temporal-contrast"}
CONTRASTED = FILM | {"stages.0.rules": [CONTRAST]}
MEASURED = FILM | {"stages.0.length": {"min_tokens": 1, "max_tokens": 8}}
OWN_CODE, ELSEWHERE = "a checkpoint with code of its own", "a folder that is not there yet"
TWO = [{"id": "toy/colour", "name": "one"}, {"id": "toy/colour", "name": "two"}]
DIAL = str(Path(__file__).parents[1] / "support" / "dial.py")
ACTS = {
    "policy": {"kind": "vla", "model": MODEL, "options": {"dims": 2, "bins": 8, "chunk": 2}},
    "tasks": [{"id": "dial/turn", "options": {"size": 56, "reward": "own"}, "verifiers": {"dial/success": 1.0}}],
    "simulate.num_envs": 4,
}
"""A policy that acts, two actions at a time."""
RANKED = [{"id": "extras/ranked"}]
WRONG = [{"id": "toy/colour", "verifiers": {"toy/exact": 1.0}}]


# -- one run, and all that can be seen of it ------------------------------------------------------------------------------


@dataclass
class Ran:
    """What there is to see of a run."""

    data: dict[str, Any]
    path: Any = None
    error: str = ""
    notes: list[str] = field(default_factory=list)
    policy: Any = None
    first: dict[str, torch.Tensor] = field(default_factory=dict)
    """The weights that it began with."""
    packs: list[Any] = field(default_factory=list)
    """Of each batch: its rollouts, and how they were packed."""
    decodes: int = 0
    compiled: set[Any] = field(default_factory=set)
    """Forward passes of layers."""
    workers: int = 0
    vllm: list[tuple[float, bool, int]] = field(default_factory=list)
    vllm_more: list[tuple[int, dict]] = field(default_factory=list)
    vllm_runner: list[tuple[str, bool]] = field(default_factory=list)
    """The memory of each vLLM that is started."""
    engines: list[Any] = field(default_factory=list)
    """Of the samplers in processes of their own: how many, how often one may die, and what samples beside them."""
    transfers: list[str] = field(default_factory=list)
    """Of the samplers in processes of their own: how weights reach them."""
    judges: list[Any] = field(default_factory=list)
    """Of the judges in processes of their own: how many."""
    sandboxes: int = 0
    """Workers in a sandbox."""
    elsewhere: list[int] = field(default_factory=list)
    """Environments in each simulator in a process of its own."""
    lanes: list[int] = field(default_factory=list)
    """Environments in each lane of simulators."""
    resets: list[list[list[int]]] = field(default_factory=list)
    timeouts: list[float | None] = field(default_factory=list)
    """Of each lane: the environments in which episodes began, at each time."""
    kept: int = 0
    """Bytes that backward passes found in memory."""
    in_host: int = 0
    """Tensors that were moved to the host's memory."""
    looked: int = 0
    """Pictures that the vision tower looked at in steps."""
    sdpa: int = 0
    threads: set[int] = field(default_factory=set)

    @property
    def moved(self):
        """Parts of the model whose weights are others now."""
        return {part_of(n) for n, p in self.policy.parameters() if not torch.equal(p, self.first[n])}

    @property
    def last(self):
        return dict(self.policy.parameters())

    def read(self, name):
        path = self.path / name
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    @property
    def steps(self):
        rows = [r for r in self.read("metrics.jsonl") if "metrics" in r]
        return [{k: v for k, v in r["metrics"].items() if not k.startswith(("time/", "memory/"))} for r in rows]

    @property
    def kinds(self):
        return [r["stage"] for r in self.read("metrics.jsonl") if "metrics" in r]

    @property
    def figures(self):
        return [r["eval"] for r in self.read("metrics.jsonl") if "eval" in r]

    @property
    def warned(self):
        return [r["what"] for r in self.read("errors.jsonl")]

    def files(self, pattern):
        return sorted(p.relative_to(self.path).as_posix() for p in self.path.glob(pattern))

    @property
    def rollouts(self):
        return [row for name in self.files("rollouts/*.jsonl") for row in self.read(name)]

    @property
    def items(self):
        return [row for name in self.files("evaluations/*.jsonl") for row in self.read(name)]

    def tensors(self, pattern):
        return load_file(sorted((self.path / "checkpoints").glob(f"*/{pattern}"))[-1])

    def metric(self, name):
        return [s.get(name) for s in self.steps]

    @property
    def prompts(self):
        """Ids of the prompts that were trained on, in order."""
        return [r.prompt.id for p in self.packs for r in p.rollouts]

    @property
    def spread(self):
        """Weights are."""
        return all(isinstance(p, DTensor) for _, p in self.policy.parameters())

    @property
    def texts(self):
        """What the rollouts that were trained on answer, in order."""
        return [r.prompt.text for p in self.packs for r in p.rollouts]


def at(data, path, value):
    """Put the value where the path leads; lists and sections on the way are made."""
    node, steps = data, path.split(".")
    for name, following in zip(steps, [*steps[1:], None], strict=True):
        key: Any = int(name) if isinstance(node, list) else name
        if following is None:
            node[key] = value
        elif isinstance(node, list):
            node = node[key]
        else:
            node = node.setdefault(key, [] if following.lstrip("-").isdigit() else {})


class Lab:
    """Makes runs, each once."""

    def __init__(self, folder):
        self.folder, self.ran = folder, {}
        (folder / "extras.py").write_text(MORE)

    def __call__(self, base, changes=(), patch=None):
        changes = dict(changes)
        key = json.dumps([base, changes, patch and patch.__name__], sort_keys=True, default=repr)
        if key not in self.ran:
            self.ran[key] = self.run(base, changes, patch, self.folder / str(len(self.ran)))
        return self.ran[key]

    def checkpoint(self):
        """A folder with a checkpoint that comes with code of its own."""
        folder = self.folder / "own-code"
        if not folder.exists():
            tiny.save(str(folder), hidden=32, layers=1)
            settings = json.loads((folder / "config.json").read_text())
            (folder / "config.json").write_text(json.dumps({**settings, "auto_map": {"AutoConfig": "own.Qwen2_5_VLConfig"}}))
            (folder / "own.py").write_text(
                "from transformers import Qwen2_5_VLConfig as Plain\nclass Qwen2_5_VLConfig(Plain):\n    pass\n"
            )
        return str(folder)

    def run(self, base, changes, patch, folder):
        data = {
            "name": "toy",
            "runs_dir": str(folder),
            "policy": {"model": MODEL},
            "tasks": [{"id": "toy/colour"}],
            "stages": [BASES[base]],
            "generate": {"max_tokens": 4},
            "evaluate": {"num_prompts": 0},
            "train": {"threads": 1},
            "record": {"rollouts_every": 1, "rollouts": 999, "trackers": []},
            **AROUND.get(base, {}),
        }
        data = copy.deepcopy(data)
        for path, value in changes.items():
            made = {OWN_CODE: self.checkpoint, ELSEWHERE: lambda: str(self.folder / "elsewhere")}.get(repr(value)[1:-1])
            at(data, path, made() if made else copy.deepcopy(value))
        found, watcher, before = Ran(data), runs.Silent(), torch.get_num_threads()
        with pytest.MonkeyPatch.context() as m:
            m.setenv("MMRL_PLUGIN_FILES", os.pathsep.join([runs.TOY, DIAL, str(self.folder / "extras.py")]))
            watch(m, found)
            if patch:
                patch(m)
            try:
                found.path = runs.run(parse_config(data), progress=watcher).path
            except UserError as error:
                found.error = str(error)
                assert "\n" not in found.error
            finally:
                torch.set_num_threads(before)
        found.notes = watcher.notes
        return found


def watch(m, found):
    """Keep what the run folder doesn't tell."""
    load, pack, decode, accumulate = (
        mmrl.train.start.load_policy,
        mmrl.train.update.pack_conversations.pack,
        LocalGenerator._decode,
        Learner._accumulate,
    )
    lane = mmrl.rollout.simulators.lockstep.make_lane
    worker, attention = mmrl.judge.Worker, torch.nn.functional.scaled_dot_product_attention

    def counted(function):
        def moved(*args):
            found.in_host += 1
            return function(*args)

        return moved

    m.setattr(gradient_checkpointing, "_to_host", counted(gradient_checkpointing._to_host))
    m.setattr(Offload, "leave", counted(Offload.leave))
    seen = vision._seen

    def looked(tower, patches, grids, **given):
        found.looked += len(grids) if vision_cache._CACHE.get() else 0  # in steps, and not where a model is tried
        return seen(tower, patches, grids, **given)

    m.setattr(vision, "_seen", looked)

    def traced(forward):  # what inductor makes of it takes a minute
        found.compiled.add(forward)
        return torch.compile(forward, dynamic=True, backend="aot_eager")

    m.setattr(compiling, "compiled", traced)
    m.setattr(compiling, "_KINDS", {})

    def loaded(*args):
        found.policy = load(*args)
        found.first = {name: p.detach().clone() for name, p in found.policy.parameters()}
        return found.policy

    class Vllm(LocalGenerator):
        """Stands for the real one, which has tests of its own."""

        def __init__(self, policy, settings, batch_size, max_context, device, routes):
            super().__init__(policy, batch_size)
            found.vllm.append((settings.gpu_memory_utilization, settings.sleep_mode, settings.tensor_parallel))
            found.vllm_more.append((settings.sleep_level, settings.vllm))
            found.vllm_runner.append((settings.model_runner, routes))

    class Engines(LocalGenerator):
        """Stands for those that are Ray's, which have tests of their own."""

        def __init__(self, config, policy, beside):
            super().__init__(policy, config.generate.batch_size)
            compute = config.compute
            found.engines.append((compute.engines, compute.retries, beside is not None))
            found.transfers.append(compute.weight_transfer)

    def judges(config, verifiers, on_gpu):
        """Stands for those that are Ray's, which have tests of their own."""
        found.judges.append(config.compute.judges)
        return mmrl.judge.local_judge(verifiers)

    class Simulators:
        """Stands for those that are Ray's and those over a wire, which have tests of their own."""

        def __init__(self, config):
            pass

        def make(self, simulation, size):
            found.elsewhere.append(size)
            return mmrl.registry.plugins.registry().make_simulator(simulation, size, "cpu")

        def close(self):
            pass

    m.setattr("mmrl.rollout.collector.EngineActors", Engines)
    m.setattr("mmrl.rollout.collector.SimulatorActors", Simulators)
    m.setattr("mmrl.rollout.collector.WireSimulators", Simulators)
    m.setattr("mmrl.train.start.ray_judge", judges)
    m.setattr("mmrl.rollout.generate.vllm.VllmGenerator", Vllm)
    m.setattr("mmrl.rollout.generate.vllm_engine.check_installed", lambda: None)

    def laned(simulation, size, device, elsewhere=None, watchdog=None, *seen):
        found.timeouts.append(watchdog and watchdog.seconds)
        made = lane(simulation, size, device, elsewhere, watchdog, *seen)
        found.lanes.append(size)
        found.resets.append(made.simulator.resets)
        return made

    def packed(rollouts, credit, policy, **options):
        batch = pack(rollouts, credit, policy, **options)
        found.threads.add(torch.get_num_threads())
        found.packs.append(
            types.SimpleNamespace(
                rollouts=[replace(r, inputs=None) for r in rollouts],
                micro=len(batch.micro),
                rows=sum(len(m.ids_BS) for m in batch.micro),
                **options,
            )
        )
        return batch

    def decoded(self, *args):
        found.decodes += 1
        return decode(self, *args)

    def accumulated(self, *args):
        own = (p.to_local() if isinstance(p, DTensor) else p for _, p in self.policy.parameters())
        weights, seen = {p.untyped_storage().data_ptr() for p in own}, {}

        def keep(t):
            if t.untyped_storage().data_ptr() not in weights:
                seen[t.untyped_storage().data_ptr()] = t.untyped_storage().nbytes(), t
            return t

        with torch.autograd.graph.saved_tensors_hooks(keep, lambda t: t):
            figures = accumulate(self, *args)
        found.kept += sum(n for n, _ in seen.values())
        return figures

    def hired(*args, **options):
        found.workers += 1
        found.sandboxes += bool(options["wrapper"])
        return worker(*args, **options)

    def attended(*args, **options):
        found.sdpa += 1
        return attention(*args, **options)

    m.setattr(mmrl.train.start, "load_policy", loaded)
    m.setattr(mmrl.train.update.pack_conversations, "pack", packed)
    m.setattr(mmrl.rollout.simulators.lockstep, "make_lane", laned)
    m.setattr(LocalGenerator, "_decode", decoded)
    m.setattr(Learner, "_accumulate", accumulated)
    m.setattr(mmrl.judge, "Worker", hired)
    m.setattr(mmrl.api.processes.sandbox, "wrapper", lambda gpu=False: ["env"])  # the real one has tests of its own
    m.setattr(torch.nn.functional, "scaled_dot_product_attention", attended)


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    return Lab(tmp_path_factory.mktemp("effects"))


# -- what is seen ---------------------------------------------------------------------------------------------------------


def both(look, one, two):
    """What a look at each shows."""
    return lambda a, b: (look(a), look(b)) == (one, two)


def unequal(a, b):
    return a.keys() != b.keys() or any(not torch.equal(a[k], b[k]) for k in a)


def learns(a, b):
    """The weights that are kept at the end are others."""
    return unequal(a.tensors("policy/*.safetensors"), b.tensors("policy/*.safetensors"))


def critic(a, b):
    """The critic's weights are others."""
    one, two = ({k: v for k, v in r.tensors("learner.safetensors").items() if k.startswith("critic/")} for r in (a, b))
    return bool(one) and unequal(one, two)


def turn_critic(a, b):
    """The weights of the critics of turns are others."""
    return unequal(a.tensors("turn-critic.safetensors"), b.tensors("turn-critic.safetensors"))


def same(a, b):
    """Nothing is learned otherwise, beyond rounding."""
    one, two = a.last, b.last
    close = all(torch.allclose(one[k], two[k], rtol=1e-4, atol=1e-6) for k in one)
    completions = [r["completion"] for r in a.rollouts] == [r["completion"] for r in b.rollouts]
    return close and completions and learns_something(a)


def attention_of(a):
    """The name of its implementation."""
    return a.policy.model.config.get_text_config()._attn_implementation


def learns_something(a):
    return bool(a.moved)


def metric(name):
    """That metric is another, and there in both."""
    return lambda a, b: None not in [*a.metric(name), *b.metric(name)] and a.metric(name) != b.metric(name)


def bonus(a):
    """The weights of the entropy bonus, step by step."""
    return [round(weight, 6) for weight in a.metric("entropy_coef") if weight is not None]


def column(name):
    """That column of the recorded rollouts is another."""
    return lambda a, b: [r[name] for r in a.rollouts] != [r[name] for r in b.rollouts]


def rewards(a, b):
    """The same completions of the first step earn something else."""
    one, two = (r.read(r.files("rollouts/*.jsonl")[0]) for r in (a, b))
    alike = [r["completion"] for r in one] == [r["completion"] for r in two]
    return alike and [r["score"]["value"] for r in one] != [r["score"]["value"] for r in two]


def credit(a, b):
    """The same rewards of the first step give other advantages."""
    one, two = (r.read(r.files("rollouts/*.jsonl")[0]) for r in (a, b))
    alike = [r["score"]["value"] for r in one] == [r["score"]["value"] for r in two]
    return alike and [r["advantage"] for r in one] != [r["advantage"] for r in two]


def sizes(ran):
    """Completions of each recorded group."""
    found: dict[Any, int] = {}
    for name in ran.files("rollouts/*.jsonl"):
        for row in ran.read(name):
            found[name, row["group"]] = found.get((name, row["group"]), 0) + 1
    return list(found.values())


def optimiser_steps(ran):
    return {int(v) for k, v in ran.tensors("learner.safetensors").items() if k.endswith("/step")}


def shown(ran, text):
    return sum(text in t for t in ran.texts)


def refused(text):
    return lambda a, b: not a.error and text in b.error


def told(text):
    """A warning that the other run doesn't have; neither stops."""
    return lambda a, b: not a.error and not b.error and not any(text in w for w in a.warned) and any(text in w for w in b.warned)


# -- the entries ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Effect:
    """What one key does."""

    to: Any = None
    """What it is set to; a list of values is a list of runs where `each`."""
    seen: Callable[[Ran, Ran], bool]
    why: str
    base: str = "rl"
    also: dict[str, Any] = field(default_factory=dict)
    """What both runs have besides."""
    instead: dict[str, Any] | None = None
    """What the changed run has, where that is more than the key itself."""
    each: bool = False
    patch: Callable | None = None


def written_template() -> str:
    """The path of a file with the tiny model's template and more words."""
    file = Path(tempfile.mkdtemp()) / "template.jinja"
    file.write_text(qwen.CHAT_TEMPLATE + "Be brief.", encoding="utf-8")
    return str(file)


def with_actions(m):
    """Turns of two actions, as an environment with chunks would give them."""
    collect = ConversationCollector.collect

    def paid(self, *args, **options):
        found = collect(self, *args, **options)
        return [
            replace(r, turns=(replace(r.turns[0], action_rewards=(0.1 * (i % 3), 0.2), reward=0.1 * (i % 3) + 0.2),))
            if len(r.turns[0].token_ids) == 4
            else r
            for i, r in enumerate(found)
        ]

    m.setattr(ConversationCollector, "collect", paid)


def graphs_refused(m):
    """Graphs have tests of their own."""

    def asked(policy, batch_size):
        raise UserError("graphs are asked for")

    m.setattr("mmrl.rollout.generate.engines.graphs_for", asked)


def rough(m, sign=-1):
    """A sampler whose log-probabilities are off by 0.05 nats, up and down, or with sign 1 always up, with more ever more."""
    generate = LocalGenerator.generate

    def shaken(self, *args):
        return [
            [replace(s, logprobs=tuple(p + 0.05 * sign**t for t, p in enumerate(s.logprobs))) for s in group]
            for group in generate(self, *args)
        ]

    m.setattr(LocalGenerator, "generate", shaken)


class First:
    """`mmrl.compute.ranks` where a run begins, as for the first of two learners; the group has nobody else."""

    def __getattr__(self, name):
        return getattr(mmrl.compute.ranks, name)

    def world_size(self):
        return 2

    @contextlib.contextmanager
    def process_group(self, on_gpu):
        torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
        try:
            with mmrl.compute.ranks.process_group(on_gpu):
                yield
        finally:
            torch.distributed.destroy_process_group()


def two(m):
    m.setattr(mmrl.train.start, "ranks", First())


def aside(m):
    """Code of a checkpoint goes into a folder of the test."""
    folder = tempfile.mkdtemp()
    m.setattr(transformers.dynamic_module_utils, "HF_MODULES_CACHE", folder)
    m.syspath_prepend(folder)


S = "stages.-1."
VISION = {"match": "vision", "learning_rate": 1e-2}
SCORES = str(Path(__file__).parents[1] / "support" / "scores")
MOST_SPREAD = {"path": f"{SCORES}.jsonl", "max_prompts": 3}
BELL = {"path": f"{SCORES}.jsonl", "rule": "bell", "max_prompts": 1, "center": 1.0, "width": 0.01}
SELECTED = {"tasks": RANKED, S + "select": MOST_SPREAD, S + "steps": 3}


def drawn(ids):
    """These prompts are drawn and no others, and it was otherwise."""
    return lambda a, b: {*b.prompts} == ids != {*a.prompts}


def otherwise_drawn(a, b):
    """Other prompts are drawn."""
    return {*a.prompts} != {*b.prompts}


def drawn_again(a, b):
    """The first epoch is the same, and others follow in later ones."""
    return a.prompts[:32] == b.prompts[:32] and a.prompts != b.prompts


def of_training(kind):
    """The keys that all kinds of stages have."""
    return {
        "steps": Effect(to=3, seen=both(lambda r: len(r.steps), 2, 3), why="so many steps"),
        "split": Effect(
            to="test",
            seen=both(lambda r: {p.split("-")[0] for p in r.prompts}, {"train"}, {"test"}),
            why="prompts of another split",
        ),
        "tasks": Effect(
            to={"one": 1.0, "two": 0.0},
            also={"tasks": TWO, "seed": 3},
            seen=both(lambda r: {x.prompt.task for p in r.packs for x in p.rollouts}, {"one", "two"}, {"one"}),
            why="the second task isn't drawn from",
        ),
        "order": Effect(
            to="easy-first",
            each=True,
            also={"tasks": RANKED},
            seen=lambda a, b: a.prompts != b.prompts and [*dict.fromkeys(b.prompts)] == sorted({*b.prompts}, reverse=True),
            why="the lowest difficulty comes first",
        ),
        "select": Effect(
            to=MOST_SPREAD, also={"tasks": RANKED}, seen=drawn({"train-2", "train-1", "train-3"}), why="they vary most"
        ),
        "select.path": Effect(
            to=f"{SCORES}-other.jsonl", also=SELECTED, seen=drawn({"train-6", "train-5", "train-7"}), why="others vary most"
        ),
        "select.rule": Effect(to=["bell", "all"], each=True, also=SELECTED, seen=otherwise_drawn, why="others are taken"),
        "select.max_prompts": Effect(to=1, also=SELECTED, seen=drawn({"train-2"}), why="the one that varies most"),
        "select.above": Effect(to=0.6, also=SELECTED, seen=drawn({"train-3", "train-7"}), why="those above it that vary"),
        "select.up_to": Effect(to=0.4, also=SELECTED, seen=drawn({"train-1", "train-5"}), why="those up to it that vary"),
        "select.center": Effect(
            to=0.75, also=SELECTED | {S + "select": BELL}, seen=drawn({"train-3"}), why="the only one with that mean"
        ),
        "select.width": Effect(
            to=1e9,
            also=SELECTED | {S + "select": BELL | {"max_prompts": 3, "width": 1e-3}},
            seen=otherwise_drawn,
            why="all are as likely",
        ),
        "optimizer": Effect(
            to=["adam", "sgd", "rmsprop", "adafactor", "muon", "adamw_8bit", "paged_adamw_8bit"],
            each=True,
            seen=learns,
            also={S + "weight_decay": 0.1},
            why="another rule of the step",
        ),
        "learning_rate": Effect(
            to=1e-3, seen=lambda a, b: learns(a, b) and b.metric("learning_rate") == [1e-3] * 2, why="smaller steps"
        ),
        "beta1": Effect(to=0.5, seen=learns, why="another mean of the gradient"),
        "beta2": Effect(to=0.9, seen=learns, why="another mean of its square"),
        "warmup_steps": Effect(
            to=2,
            seen=lambda a, b: learns(a, b) and b.metric("learning_rate") == pytest.approx([5e-3, 1e-2]),
            why="the rate rises",
        ),
        "schedule": Effect(
            to=["linear", "cosine"],
            each=True,
            also={S + "steps": 3},
            why="the rate falls",
            seen=lambda a, b: (
                learns(a, b)
                and b.metric("learning_rate")[1]
                == pytest.approx({"linear": 2e-2 / 3, "cosine": 7.5e-3}[b.data["stages"][0]["schedule"]])
            ),
        ),
        "min_lr_ratio": Effect(
            to=0.5,
            also={S + "schedule": "linear"},
            why="the rate falls less",
            seen=lambda a, b: (
                learns(a, b) and (a.metric("learning_rate")[1], b.metric("learning_rate")[1]) == pytest.approx((5e-3, 7.5e-3))
            ),
        ),
        "optimizer_every": Effect(
            to=1, also={S + "steps": 3}, seen=learns, why="the second step begins with means of its own gradient alone"
        ),
        "weight_decay": Effect(to=0.5, seen=learns, why="weights are pulled to zero"),
        "max_grad_norm": Effect(
            to=1e-3,
            also={S + "optimizer": "sgd", S + "beta1": 0.0},
            why="a long gradient is cut",
            seen=lambda a, b: learns(a, b) and max((b.last[n] - p).norm() for n, p in b.first.items()) <= 2 * 1e-2 * 1e-3 * 1.001,
        ),
        "ema_decay": Effect(
            to=0.9,
            seen=lambda a, b: learns(a, b) and not unequal(a.last, b.last),
            why="the mean is kept, and what is trained is the same",
        ),
        "parts": Effect(
            to=[{"match": "vision", "freeze": True}],
            seen=lambda a, b: "vision" in a.moved and a.moved - b.moved == {"vision"},
            why="the vision tower stays",
        ),
        "parts.match": Effect(
            to="language",
            also={S + "parts": [{"match": "vision", "freeze": True}]},
            why="another part stays",
            seen=lambda a, b: "vision" not in a.moved and "vision" in b.moved and "language" not in b.moved,
        ),
        "parts.freeze": Effect(
            also={S + "parts": [VISION]},
            instead={S + "parts": [{"match": "vision", "freeze": True}]},
            seen=lambda a, b: "vision" in a.moved and "vision" not in b.moved,
            why="frozen instead of trained",
        ),
        "parts.learning_rate": Effect(
            to=1e-4,
            also={S + "parts": [VISION]},
            why="that part moves less",
            seen=lambda a, b: 0 < far(b, "vision") < 0.1 * far(a, "vision") and far(b, "language") > 0.5 * far(a, "language"),
        ),
        "parts.weight_decay": Effect(
            to=10.0,
            also={S + "parts": [VISION]},
            why="that part alone is pulled to zero",
            seen=lambda a, b: far(b, "vision") > 1.05 * far(a, "vision") and far(b, "language") < 1.05 * far(a, "language"),
        ),
    }


def far(ran, part):
    """How far the weights of a part went."""
    return float(sum((ran.last[n].detach() - p).square().sum() for n, p in ran.first.items() if part_of(n) == part) ** 0.5)


PPO = {S + "algorithm": "ppo", S + "critic": {"learning_rate": 1e-2}}
EASY = {S + "success_threshold": 0.1, S + "steps": 3}
CURRICULUM = {"tasks": RANKED, S + "curriculum": {"width": 1e-3, "step": 2.0}, S + "success_threshold": 0.1, S + "steps": 4}
EPOCHS = {
    "tasks": [{"id": "extras/ranked", "verifiers": {"toy/letters": 1.0, "extras/opposite": 0.0}}],
    S + "steps": 8,
    S + "prompts_per_step": 4,
}
FILTERED = EPOCHS | {S + "epoch_filter": {"up_to": 0.2}}
WEIGHED = {
    "tasks": [{"id": "toy/colour", "verifiers": {"toy/letters": 1.0, "extras/opposite": 1.0}}],
    S + "algorithm": "dr-grpo",
    S + "reweight": {"window": 2, "temperature": 0.1},
    S + "steps": 6,
}
STEADY = {**EASY, S + "entropy_control": {"target": 100.0}}
RISING = {**EASY, S + "entropy_coef": 0.2, S + "adaptive_entropy": {"target": 100.0}}
ARCHER = {S + "algorithm": "archer", S + "turn_critic": {"updates": 3, "batch_size": 8, "hidden": [8]}}
DIGIRL = {
    S + "algorithm": "digirl",
    S + "credit": "turn",
    S + "learning_rate": 1e-2,
    S + "turn_critic": {"rule": "success", "updates": 3, "batch_size": 8, "hidden": [8], "replay": 8},
}
BINS = {S + "algorithm": "ppo", S + "critic": {"learning_rate": 1e-2, "bins": 11}}
KL = {S + "kl_coef": 0.5, S + "steps": 3}
COLOURED = {S + "prompts_per_step": 8}  # two may both be black already
SEES = {**COLOURED, S + "perception": {"coef": 0.5}}
NOISY = {S + "noisy": {}}
CONSISTENT = {S + "consistency": {"opening": "o", "closing": "zz", "correct_above": 0.0}, S + "group_size": 16}
EXPERTS = {"policy": {"model": "tiny:qwen3_vl_moe:hidden=32,layers=1"}, S + "learning_rate": 1e-2}
HINTS = {"tasks": RANKED, S + "prompts_per_step": 6, S + "success_threshold": 0.3}
IMITATE = {S + "imitation": {"batch_size": 4, "decay_steps": 4}}
SASR = {S + "imitation": {"rule": "sasr", "gamma": 1e-6, "batch_size": 4}, S + "steps": 4}
WATCHED = {
    S + "steps": 11,
    S + "prompts_per_step": 4,
    S + "group_size": 2,
    S + "epochs": 2,
    S + "learning_rate": 1e-3,
    "record.rollouts_every": 0,
    "limits": {
        n: {}
        for n in (
            "answer_collapse",
            "length_growth",
            "entropy_fall",
            "clip_share",
            "kl",
            "zero_std",
            "blind",
            "reward_hacking",
            "logprob_gap",
        )
    },
}
LORA = {"policy.lora": {}}
VLLM = {"compute.sampler": "vllm"}
SGD = {S + "optimizer": "sgd", S + "learning_rate": 0.1}
EVAL = {"tasks": RANKED, "evaluate.num_prompts": 4}
STEERED = EVAL | FILM | {"evaluate.steer": True, "evaluate.steering": {"learning_rate": 1.0, "interval": 1, "ema": 0.99}}


def steered(a, b):
    """The steered answers are others, and the figures themselves are the same."""
    entropies = [[f["extra"]["steered/entropy"] for f in ran.figures] for ran in (a, b)]
    values = [[f["value"] for f in ran.figures] for ran in (a, b)]
    return entropies[0] != entropies[1] and values[0] == values[1]


OF_RL = {
    "kind": Effect(
        instead={"stages": [BASES["sft"]]}, seen=both(lambda r: r.kinds, ["rl"] * 2, ["sft"] * 2), why="another kind of stage"
    ),
    "prompts_per_step": Effect(to=3, seen=both(lambda r: len(sizes(r)), 4, 6), why="more groups"),
    "group_size": Effect(to=3, seen=both(sizes, [4] * 4, [3] * 4), why="smaller groups"),
    "algorithm": Effect(to="rloo", seen=lambda a, b: credit(a, b) and learns(a, b), why="another baseline and loss"),
    "settings": Effect(to={"scale": "none"}, seen=lambda a, b: credit(a, b) and learns(a, b), why="advantages in other units"),
    "epochs": Effect(to=2, seen=both(optimiser_steps, {2}, {4}), why="two passes a step"),
    "minibatches": Effect(to=2, seen=both(optimiser_steps, {2}, {4}), why="two optimiser steps"),
    "stop_kl": Effect(to=1e-9, also={S + "epochs": 3}, seen=both(optimiser_steps, {6}, {2}), why="one optimiser step a step"),
    "credit": Effect(
        to=["action", "chunk", "turn"],
        each=True,
        also=PPO,
        patch=with_actions,
        why="values of actions, or of whole turns",
        seen=lambda a, b: credit(a, b) and learns(a, b),
    ),
    "ratio": Effect(
        to=["action", "chunk"],
        each=True,
        also={**ACTS, S + "epochs": 2, S + "learning_rate": 0.1},
        seen=learns,
        why="bounds on the ratios of actions, or of chunks",
    ),
    "entropy_coef": Effect(to=0.1, seen=learns, why="a bonus in the loss"),
    "importance_sampling": Effect(
        to=["truncate", "mask"],
        each=True,
        also={S + "importance_sampling_cap": 1.0},
        patch=rough,
        seen=learns,
        why="tokens beyond the cap weigh less or nothing",
    ),
    "importance_sampling_cap": Effect(
        to=1.02, also={S + "importance_sampling": "truncate"}, patch=rough, seen=learns, why="another cap"
    ),
    "importance_sampling_floor": Effect(
        to=1.0, also={S + "importance_sampling": "truncate"}, patch=rough, seen=learns, why="smaller weights are raised to it"
    ),
    "importance_sampling_level": Effect(
        to=["sequence", "geometric"],
        each=True,
        also={S + "importance_sampling": "truncate", S + "importance_sampling_cap": 1.02},
        patch=rough,
        seen=learns,
        why="ratios of whole answers",
    ),
    "importance_sampling_normalise": Effect(
        to=True,
        also={S + "importance_sampling": "mask", S + "importance_sampling_cap": 1.02},
        patch=rough,
        seen=learns,
        why="masked weights are divided by their mean",
    ),
    "gap_estimator": Effect(
        to=["k2", "k3"],
        each=True,
        also={S + "gap_mask": 0.04},
        patch=lambda m: rough(m, sign=1),
        seen=lambda a, b: learns(a, b) and set(b.metric("importance/apart_share")) == {0.0},
        why="half the square of the gap isn't above it",
    ),
    "gap_level": Effect(
        to=["sum", "max", "token"],
        each=True,
        also={S + "gap_mask": 0.08},
        patch=lambda m: rough(m, sign=1.2),  # of four tokens the mean is 0.067, and the largest 0.086
        seen=lambda a, b: learns(a, b) and sum(b.metric("importance/apart_share")) > sum(a.metric("importance/apart_share")),
        why="the sum or the largest gap is above it, and not the mean",
    ),
    "adaptive_entropy": Effect(
        to={"target": 100.0},
        also=EASY,
        seen=both(bonus, [], [0.0, 0.005, 0.01]),
        why="a bonus, once an update has measured the entropy",
    ),
    "adaptive_entropy.target": Effect(to=1e-3, also=RISING, seen=metric("entropy_coef"), why="the entropy is above it: no bonus"),
    "adaptive_entropy.delta": Effect(
        to=0.1, also=RISING, seen=both(bonus, [0.0, 0.205, 0.21], [0.0, 0.3, 0.4]), why="it grows faster"
    ),
    "adaptive_entropy.least": Effect(
        to=0.15,
        also={**RISING, S + "adaptive_entropy": {"target": 5.9815, "delta": 0.19}},  # entropies of 5.9824, 5.9805 and 5.9786
        seen=both(bonus, [0.0, 0.0, 0.2], [0.0, 0.0, 0.34]),
        why="it shrinks no further",
    ),
    "adaptive_entropy.most": Effect(
        to=0.207, also=RISING, seen=both(bonus, [0.0, 0.205, 0.21], [0.0, 0.205, 0.207]), why="it grows no further"
    ),
    "gap_mask": Effect(
        to=0.049,
        patch=lambda m: rough(m, sign=1),
        seen=lambda a, b: learns(a, b) and set(b.metric("importance/apart_share")) == {1.0},
        why="answers that sampler and learner rate differently teach nothing",
    ),
    "ratio_to": Effect(to=["sampler"], each=True, patch=rough, seen=learns, why="ratios to another probability"),
    "off_policy_mask": Effect(
        to=1e-4,
        also={S + "epochs": 3},
        seen=lambda a, b: learns(a, b) and any(b.metric("importance/drifted_share")),
        why="worse answers teach nothing once the policy has left them",
    ),
    "kl_coef": Effect(to=0.5, also={S + "steps": 3}, seen=learns, why="a penalty in the loss"),
    "kl_estimator": Effect(to=["k1", "k2"], each=True, also=KL, seen=learns, why="another gradient"),
    "kl_bias_correction": Effect(to=True, also=KL | {S + "epochs": 2}, seen=learns, why="another gradient"),
    "kl_in": Effect(
        to="reward",
        each=True,
        also=KL,
        seen=lambda a, b: learns(a, b) and column("advantage")(a, b),
        why="the advantages hold the penalty",
    ),
    "kl_target": Effect(to=1e-6, also=KL, seen=lambda a, b: learns(a, b) and metric("kl_coef")(a, b), why="the weight adapts"),
    "kl_horizon": Effect(
        to=1.0,
        also={**KL, S + "kl_target": 1e-6},
        seen=lambda a, b: 0.5 > a.metric("kl_coef")[1] > b.metric("kl_coef")[1],
        why="it adapts faster",
    ),
    "reference": Effect(
        to=["auto", "adapter", "none"],
        each=True,
        also={**LORA, "stages": [{**BASES["rl"], "steps": 1}, {**BASES["rl"], "kl_coef": 0.5, "reference": "frozen"}]},
        seen=lambda a, b: (
            abs(a.metric("kl")[1]) < 1e-9
            and ("needs a reference model" in b.error if b.error else b.metric("kl")[1] > 1e-4)
            and bool(b.error) == (b.data["stages"][1]["reference"] == "none")
        ),
        why="not a second stage's beginning but the model without adapters, or nothing, which a penalty can't do with",
    ),
    "max_tokens": Effect(to=2, seen=both(lambda r: max(r.metric("length/max")), 4, 2), why="shorter completions"),
    "reference_every": Effect(
        to=1, also=KL, seen=lambda a, b: a.metric("kl")[2] > 1e-4 > 1e-9 > abs(b.metric("kl")[2]), why="the reference follows"
    ),
    "teacher": Effect(
        to=f"{MODEL},seed=8",
        also={S + "algorithm": "kdrl", S + "teacher": f"{MODEL},seed=7", S + "settings": {"teacher_weight": 1.0}},
        seen=learns,
        why="another teacher says something else",
    ),
    "success_threshold": Effect(
        to=0.1, also={S + "min_success_rate": 0.3}, seen=metric("sampling/filtered_share"), why="more groups succeed"
    ),
    "dynamic_sampling": Effect(
        to=2, also={"tasks": WRONG}, seen=lambda a, b: b.metric("sampling/groups") == [6.0, 6.0], why="two more rounds of prompts"
    ),
    "min_success_rate": Effect(
        to=0.9,
        also={S + "success_threshold": 0.3},
        why="groups with few successes are left out",
        seen=lambda a, b: learns(a, b) and sum(b.metric("sampling/filtered_share")) > 0,
    ),
    "max_success_rate": Effect(
        to=0.2,
        also={S + "success_threshold": 0.2},
        why="groups with many successes are left out",
        seen=lambda a, b: learns(a, b) and sum(b.metric("sampling/filtered_share")) > 0,
    ),
    "oversample": Effect(
        to=2.0,
        seen=lambda a, b: b.metric("sampling/groups") == [4.0, 4.0] and len(sizes(b)) == 4,
        why="twice the prompts, of which half are kept",
    ),
    "overlong": Effect(to="mask", each=True, seen=learns, why="what was cut off isn't learned from"),
    "overlong_buffer": Effect(to=0.9, seen=rewards, why="long completions earn less"),
    "overlong_penalty": Effect(to=3.0, also={S + "overlong_buffer": 0.9}, seen=rewards, why="by another amount"),
    "hints": Effect(
        to=["guide", "ghpo"],
        each=True,
        also=HINTS,
        why="failed groups are sampled again with a hint",
        seen=lambda a, b: (
            None not in b.metric("sampling/hinted")
            and sum(b.metric("sampling/hinted")) > 0
            and (8 in sizes(b) if b.data["stages"][0]["hints"] == "guide" else shown(b, "Hint: ") > 0 == shown(a, "Hint: "))
        ),
    ),
    "hint_shares": Effect(
        to=[1.0],
        also={**HINTS, S + "hints": "ghpo", S + "hint_shares": [0.25]},
        why="a longer hint",
        seen=lambda a, b: shown(a, "Hint: one two") == 0 < shown(a, "Hint: one") and shown(b, "Hint: one two three") > 0,
    ),
    "ground_truth": Effect(
        to=["when-failed", "always"],
        each=True,
        also=HINTS,
        why="the gold completion joins",
        seen=lambda a, b: (
            {*sizes(a)} == {4} and {*sizes(b)} == ({5} if b.data["stages"][0]["ground_truth"] == "always" else {4, 5})
        ),
    ),
    "ground_truth_without": Effect(
        to=["toy/letters"], also={S + "ground_truth": "always"}, seen=rewards, why="gold earns nothing for that"
    ),
    "labels": Effect(
        to=["majority", "ttrv", "co-reward"],
        each=True,
        also={"tasks": RANKED},
        why="votes are the reward",
        seen=lambda a, b: {k for r in b.rollouts for k in r["score"]["parts"]} == {b.data["stages"][0]["labels"]},
    ),
    "voters": Effect(to=2.0, also={"tasks": RANKED, S + "labels": "ttrv"}, why="more completions vote", seen=rewards),
    "adapt_task_weights": Effect(
        to="variance",
        each=True,
        also={
            "tasks": [TWO[0], {**TWO[1], "verifiers": {"toy/exact": 1.0}}],
            S + "prompts_per_step": 16,
            S + "group_size": 2,
            S + "steps": 3,
        },
        seen=lambda a, b: sum(r["task"] == "one" for r in b.rollouts) > sum(r["task"] == "one" for r in a.rollouts),
        why="tasks whose groups agree come less often",
    ),
    "replay_share": Effect(
        to=1.0,
        also={"tasks": WRONG, S + "steps": 3},
        why="what failed comes again",
        seen=lambda a, b: len({*b.prompts}) == 2 < len({*a.prompts}),
    ),
    "replay_buffer_size": Effect(
        to=1,
        also={"tasks": WRONG, S + "steps": 3, S + "replay_share": 1.0},
        why="only the newest failure is remembered",
        seen=lambda a, b: len({*b.prompts}) > len({*a.prompts}) == 2,
    ),
    "critic": Effect(to={"hidden_sizes": [8]}, also={S + "algorithm": "ppo"}, seen=critic, why="another value function"),
    "critic.backbone": Effect(
        to="separate",
        each=True,
        also=PPO,
        why="a copy of the model serves the critic",
        seen=lambda a, b: (
            not any("critic/critic." in k for k in a.tensors("learner.safetensors"))
            and any("critic/critic." in k for k in b.tensors("learner.safetensors"))
        ),
    ),
    "critic.hidden_sizes": Effect(
        to=[6],
        also=PPO,
        why="a hidden layer of that width",
        seen=lambda a, b: b.tensors("learner.safetensors")["critic/value.0.weight"].shape == (6, 32),
    ),
    "critic.learning_rate": Effect(to=1e-3, also=PPO, seen=critic, why="smaller steps of the head"),
    "critic.value_coef": Effect(
        to=5.0, also={**PPO, S + "steps": 3}, seen=learns, why="the value loss pulls harder at a shared backbone"
    ),
    "critic.detach": Effect(to=True, also={**PPO, S + "steps": 3}, seen=lambda a, b: learns(a, b), why="it doesn't pull at it"),
    "critic.warmup_steps": Effect(
        to=1,
        also=PPO,
        seen=lambda a, b: all(a.metric("grad_norm")) and [bool(g) for g in b.metric("grad_norm")] == [False, True],
        why="the policy waits for a step",
    ),
    "critic.bootstrap": Effect(
        to="always",
        each=True,
        also={**PPO, **ACTS, S + "steps": 3, S + "settings": {"gamma": 0.9}},
        seen=critic,
        why="what terminated is worth more",
    ),
    "critic.clip_range": Effect(
        to=1e-3,
        also={**PPO, S + "epochs": 2},
        seen=lambda a, b: sum(a.metric("value_clip_share")) < sum(b.metric("value_clip_share")),
        why="a value that moved further is cut off",
    ),
    "critic.huber": Effect(
        to=0.01, also=PPO, seen=lambda a, b: b.metric("value_loss")[0] < a.metric("value_loss")[0], why="large errors cost less"
    ),
    "critic.bins": Effect(to=11, also=PPO, seen=critic, why="a distribution of returns is learned"),
    "critic.low": Effect(to=-3.0, also=BINS, seen=critic, why="the bins are others"),
    "critic.high": Effect(to=3.0, also=BINS, seen=critic, why="the bins are others"),
    "critic.smoothing": Effect(to=2.0, also=BINS, seen=critic, why="neighbouring bins learn more of it"),
    "critic.max_grad_norm": Effect(to=1e-3, also={**PPO, S + "optimizer": "sgd"}, seen=critic, why="its gradient is cut"),
    "turn_critic": Effect(
        to={"hidden": [8]},
        also={S + "algorithm": "ppo", S + "credit": "turn"},
        seen=lambda a, b: not a.metric("turn_critic/remembered")[0] and b.metric("turn_critic/remembered") == [8.0, 16.0],
        why="critics of turns remember them",
    ),
    "state_similarity": Effect(
        to=0.01,
        also={S + "algorithm": "gigpo", "tasks": [{"id": "extras/echo"}], "generate.max_turns": 2},
        seen=credit,
        why="replies that differ are one state",
    ),
    "turn_critic.rule": Effect(
        to="success",
        each=True,
        also={**ARCHER, S + "algorithm": "ppo", S + "credit": "turn"},
        seen=lambda a, b: not list(a.path.glob("checkpoints/*/prompts.*")) and list(b.path.glob("checkpoints/*/prompts.*")),
        why="another kind of critics, which remember prompts, too",
    ),
    "turn_critic.capacity": Effect(
        to=8, also=ARCHER, seen=both(lambda r: r.metric("turn_critic/remembered")[-1], 16.0, 8.0), why="the oldest go"
    ),
    "turn_critic.gamma": Effect(
        to=0.1,
        also={**ARCHER, "tasks": [{"id": "extras/talk"}], "generate.max_turns": 2},
        seen=turn_critic,
        why="what follows counts less",
    ),
    "turn_critic.updates": Effect(to=6, also=ARCHER, seen=turn_critic, why="they learn for longer"),
    "turn_critic.batch_size": Effect(to=4, also=ARCHER, seen=turn_critic, why="other turns are drawn"),
    "turn_critic.learning_rate": Effect(to=1e-2, also=ARCHER, seen=turn_critic, why="larger steps of the critics"),
    "turn_critic.max_grad_norm": Effect(
        to=1e-3, also={**ARCHER, S + "optimizer": "sgd"}, seen=turn_critic, why="their gradient is cut"
    ),
    "turn_critic.hidden": Effect(
        to=[6],
        also=ARCHER,
        seen=both(lambda r: r.tensors("turn-critic.safetensors")["states/layers.0.weight"].shape[-1], 8, 6),
        why="a hidden layer of that width",
    ),
    "turn_critic.target_rate": Effect(to=0.9, also=ARCHER, seen=turn_critic, why="the targets follow sooner"),
    "turn_critic.warmup_steps": Effect(
        to=1,
        also=ARCHER,
        seen=both(lambda r: [bool(g) for g in r.metric("grad_norm")], [True, True], [False, True]),
        why="the policy waits for a step",
    ),
    "turn_critic.answers": Effect(
        to=3,
        also=ARCHER,
        seen=lambda a, b: not a.metric("turn_critic/answered")[0] and b.metric("turn_critic/answered") == [3.0, 3.0],
        why="remembered observations are answered anew",
    ),
    "turn_critic.replay": Effect(
        to=3,
        also={**DIGIRL, S + "turn_critic.top": 1.0},
        seen=both(lambda r: r.metric("turn_critic/replayed"), [8.0, 8.0], [3.0, 3.0]),
        why="fewer episodes are imitated again",
    ),
    "turn_critic.top": Effect(
        to=0.25,
        also=DIGIRL,
        seen=both(lambda r: r.metric("turn_critic/replayed")[-1], 2.0, 4.0),
        why="more of them are chosen from",
    ),
    "imitation": Effect(
        to={"batch_size": 4},
        why="gold completions in the loss",
        seen=lambda a, b: a.metric("imitation/loss") == [None] * 2 and None not in b.metric("imitation/loss") and learns(a, b),
    ),
    "imitation.rule": Effect(
        to=["sasr", "hpt", "relift"],
        each=True,
        also=IMITATE,
        why="one or the other, or where no answer is good",
        seen=lambda a, b: a.metric("imitation/weight")[0] == 0.9 and {*b.metric("imitation/weight")} <= {0.5, 1.0, None},
    ),
    "imitation.up_to": Effect(
        to=1.0,
        also={S + "imitation": {"rule": "hpt"}, S + "success_threshold": 0.3},
        seen=lambda a, b: learns(a, b) and b.metric("imitation/weight") == [1.0, 1.0] != a.metric("imitation/weight"),
        why="all prompts are imitated",
    ),
    "imitation.start_weight": Effect(
        to=0.5, also=IMITATE, seen=lambda a, b: b.metric("imitation/weight")[0] == 0.5 and learns(a, b), why="begins with less"
    ),
    "imitation.end_weight": Effect(to=0.5, also=IMITATE, seen=metric("imitation/weight"), why="ends with more"),
    "imitation.decay_steps": Effect(
        to=1,
        also=IMITATE,
        seen=lambda a, b: b.metric("imitation/weight")[1] == pytest.approx(0.05) and learns(a, b),
        why="gets there sooner",
    ),
    "imitation.gamma": Effect(
        to=1e6,
        also=SASR,
        why="imitation becomes rare",
        seen=both(lambda r: r.metric("imitation/weight"), [1.0] * 4, [1.0, None, None, None]),
    ),
    "imitation.batch_size": Effect(
        to=2, also=IMITATE, why="fewer gold completions", seen=both(lambda r: min(len(p.rollouts) for p in r.packs), 4, 2)
    ),
    "imitation.uncertainty_weighting": Effect(
        to=True, also=IMITATE, seen=lambda a, b: metric("imitation/loss")(a, b) and learns(a, b), why="tokens weigh p (1 - p)"
    ),
    "curriculum": Effect(to={}, also={"tasks": RANKED}, seen=otherwise_drawn, why="by the angles of hidden states"),
    "curriculum.width": Effect(to=1e3, also=CURRICULUM, seen=otherwise_drawn, why="prompts are drawn from further away"),
    "curriculum.step": Effect(to=50.0, also=CURRICULUM, seen=otherwise_drawn, why="the centre moves faster"),
    "curriculum.sensitivity": Effect(to=0.01, also=CURRICULUM, seen=otherwise_drawn, why="successes hardly move the centre"),
    "curriculum.target": Effect(to=1.0, also=CURRICULUM, seen=otherwise_drawn, why="fewer successes are not enough"),
    "curriculum.max_step": Effect(to=0.1, also=CURRICULUM, seen=otherwise_drawn, why="the centre moves less"),
    "epoch_filter": Effect(to={"up_to": 0.2}, also=EPOCHS, seen=drawn_again, why="what never succeeds isn't drawn again"),
    "epoch_filter.above": Effect(to=0.17, also=FILTERED, seen=drawn_again, why="what earns little is left out, too"),
    "epoch_filter.up_to": Effect(to=0.17, also=FILTERED, seen=drawn_again, why="less is easy enough"),
    "epoch_filter.verifier": Effect(to="extras/opposite", also=FILTERED, seen=drawn_again, why="other values decide"),
    "reweight": Effect(
        to={"window": 2, "temperature": 0.1},
        also={**{k: v for k, v in WEIGHED.items() if k != S + "reweight"}},
        seen=learns,
        why="one of two verifiers weighs more",
    ),
    "reweight.window": Effect(to=3, also=WEIGHED, seen=learns, why="the weights stay longer"),
    "reweight.temperature": Effect(to=1e3, also=WEIGHED, seen=learns, why="all weigh the same"),
    "entropy_control": Effect(
        to={},
        also=EASY,
        seen=both(lambda r: r.metric("imitation/weight"), [None] * 3, [None, 0.1, 0.1]),
        why="right answers are imitated, once an update has measured the entropy",
    ),
    "entropy_control.target": Effect(
        to=1e-3, also=STEADY, seen=learns, why="the entropy is now too high, and answers are sampled colder"
    ),
    "entropy_control.low": Effect(
        to=0.1, also={**STEADY, S + "entropy_control": {"target": 1e-3}}, seen=learns, why="they are colder"
    ),
    "entropy_control.high": Effect(to=3.0, also=STEADY, seen=learns, why="they are hotter"),
    "entropy_control.weight": Effect(
        to=0.5,
        also=STEADY,
        seen=both(lambda r: r.metric("imitation/weight"), [None, 0.1, 0.1], [None, 0.5, 0.5]),
        why="they count more",
    ),
    "entropy_control.prompts": Effect(to=1.0, also=STEADY, seen=learns, why="more prompts are answered again"),
    "entropy_penalty": Effect(to=0.5, seen=learns, why="what was sampled becomes likelier"),
    "perception": Effect(
        to={"coef": 0.5},
        also=COLOURED,
        seen=lambda a, b: learns(a, b) and b.metric("perception/kl")[0] > 0,
        why="it learns to say something else",
    ),
    "perception.masked": Effect(to=1.0, also=SEES, seen=metric("perception/kl"), why="the whole image is black"),
    "perception.patch": Effect(to=28, also=SEES, seen=metric("perception/kl"), why="larger squares"),
    "perception.coef": Effect(to=2.0, also=SEES, seen=learns, why="it counts more"),
    "perception.gradient": Effect(to="both", each=True, also=SEES, seen=learns, why="what sees less learns too"),
    "perception.entropy_penalty": Effect(
        to=0.5,
        also={**COLOURED, S + "perception": {"coef": 0.5, "gradient": "both"}},
        seen=learns,
        why="what it says that sees less becomes likelier",
    ),
    "reference_decay": Effect(
        to=0.9,
        also={**KL, S + "reference_every": 1, S + "learning_rate": 1e-2},
        seen=lambda a, b: abs(b.metric("kl")[2]) > 1e-6 > abs(a.metric("kl")[2]),
        why="the reference lags behind",
    ),
    "consistency": Effect(to={"opening": "o"}, seen=rewards, why="what follows from its thoughts is paid more"),
    "consistency.bonus": Effect(to=1.0, also=CONSISTENT, seen=rewards, why="it is paid more"),
    "consistency.margin": Effect(to=1.0, also=CONSISTENT, seen=rewards, why="all that is right is paid"),
    "consistency.cap": Effect(to=1e-12, also=CONSISTENT, seen=rewards, why="all count as equally likely"),
    "consistency.correct_above": Effect(to=1.0, also=CONSISTENT, seen=rewards, why="nothing is right enough"),
    "consistency.verifier": Effect(
        to="extras/opposite",
        also={**CONSISTENT, "tasks": [{"id": "toy/colour", "verifiers": {"toy/letters": 1.0, "extras/opposite": 0.5}}]},
        seen=rewards,
        why="another verifier tells right from wrong",
    ),
    "consistency.opening": Effect(to="zzz", also=CONSISTENT, seen=rewards, why="no completion has an answer"),
    "consistency.closing": Effect(
        to="e", also=CONSISTENT, seen=metric("consistency/confidence"), why="less of it counts as the answer"
    ),
    "noisy": Effect(
        to={}, seen=lambda a, b: sizes(b) == [2 * n for n in sizes(a)] and learns(a, b), why="groups have as many answers again"
    ),
    "noisy.share": Effect(to=0.5, also=NOISY, seen=lambda a, b: sum(sizes(a)) > sum(sizes(b)), why="fewer of them"),
    "noisy.level": Effect(to=100, also=NOISY, seen=metric("noisy/level"), why="less noise"),
    "noisy.schedule": Effect(
        to=["linear", "constant"], each=True, also=NOISY, seen=metric("noisy/level"), why="it falls otherwise"
    ),
    "noisy.steepness": Effect(to=3.0, also=NOISY, seen=metric("noisy/level"), why="it falls earlier"),
    "noisy.middle": Effect(to=0.1, also=NOISY, seen=metric("noisy/level"), why="it falls earlier"),
    "noisy.ratio": Effect(to="clean", each=True, also=NOISY, seen=learns, why="the ratio is 1"),
    "condition": Effect(
        to={}, seen=lambda a, b: shown(a, "Advantage: positive") == 0 < shown(b, "Advantage: positive"), why="the prompt tells"
    ),
    "condition.positive": Effect(
        to="very good",
        also={S + "condition": {}},
        seen=lambda a, b: shown(a, "very good") == 0 < shown(b, "very good"),
        why="another text",
    ),
    "condition.negative": Effect(
        to="very bad",
        also={S + "condition": {}},
        seen=lambda a, b: shown(a, "very bad") == 0 < shown(b, "very bad"),
        why="another text",
    ),
    "condition.top": Effect(
        to=0.8,
        also={S + "condition": {"drop": 0.0}},
        why="more are called good",
        seen=lambda a, b: shown(a, "positive") < shown(b, "positive"),
    ),
    "condition.drop": Effect(
        to=0.9,
        also={S + "condition": {"drop": 0.0}},
        why="most hear nothing",
        seen=lambda a, b: shown(a, "Advantage") == len(a.texts) > 2 * shown(b, "Advantage"),
    ),
}
OF_EXPERTS = {
    "experts": Effect(to={"freeze_router": True}, also=EXPERTS, seen=learns, why="the router doesn't learn"),
    "experts.freeze_router": Effect(
        to=True, also={**EXPERTS, S + "experts": {"z_loss_coef": 0.1}}, seen=learns, why="the router doesn't learn"
    ),
    "experts.aux_loss_coef": Effect(
        to=0.5, also={**EXPERTS, S + "experts": {"z_loss_coef": 0.1}}, seen=learns, why="experts are to be equally busy"
    ),
    "experts.z_loss_coef": Effect(
        to=0.5, also={**EXPERTS, S + "experts": {"aux_loss_coef": 0.1}}, seen=learns, why="logits of routers are to be small"
    ),
}
"""Of a stage of one of both kinds that learn from answers."""
REPLAYED = {**EXPERTS, S + "experts": {"z_loss_coef": 0.1}, S + "epochs": 2, S + "learning_rate": 0.1}
OF_RL |= {
    **OF_EXPERTS,
    "experts.router_replay": Effect(
        to=["R2", "R3"], each=True, also=REPLAYED, seen=learns, why="tokens go through the experts of before"
    ),
    "experts.compare_sampler": Effect(
        to=True,
        also={**EXPERTS, S + "experts": {"z_loss_coef": 0.1}},
        seen=lambda a, b: a.metric("experts/mismatch")[0] is None is not b.metric("experts/mismatch")[0],
        why="the sampler tells its experts",
    ),
}
OF_SFT = {
    **OF_EXPERTS,
    "experts.router_replay": Effect(
        to=["R2", "R3"],
        each=True,
        also={**EXPERTS, S + "experts": {"z_loss_coef": 0.1}},
        seen=refused("is for an rl stage"),
        why="there is nothing to replay",
    ),
    "experts.compare_sampler": Effect(
        to=True,
        also={**EXPERTS, S + "experts": {"z_loss_coef": 0.1}},
        seen=refused("is for an rl stage"),
        why="nothing is sampled",
    ),
    "kind": Effect(
        instead={"stages": [BASES["rl"]]}, seen=both(lambda r: r.kinds, ["sft"] * 2, ["rl"] * 2), why="another kind of stage"
    ),
    "batch_size": Effect(to=3, seen=both(lambda r: [len(p.rollouts) for p in r.packs], [4, 4], [3, 3]), why="fewer examples"),
    "token_weights": Effect(to="probability", each=True, seen=learns, why="an unlikely token counts less"),
}
OF_DISTILL = {
    "kind": Effect(
        instead={"stages": [BASES["sft"]]},
        seen=both(lambda r: r.kinds, ["distill"] * 2, ["sft"] * 2),
        why="another kind of stage",
    ),
    "teacher": Effect(to=f"{MODEL},seed=8", seen=learns, why="another teacher says something else"),
    "divergence": Effect(to=["forward", "hard", "sampled"], each=True, seen=learns, why="another measure of the distance"),
    "prompts_per_step": Effect(to=3, seen=both(lambda r: len(r.packs[0].rollouts), 4, 6), why="more prompts"),
    "group_size": Effect(to=3, seen=both(lambda r: len(r.packs[0].rollouts), 4, 6), why="more completions of each"),
    "max_tokens": Effect(to=2, seen=learns, why="shorter completions"),
}


def copied(ran):
    """Names of the reference model's weights in the checkpoint."""
    return [k for k in ran.tensors("learner.safetensors") if k.startswith("reference/") and not k.startswith("reference/kept/")]


KTO, SAMPLED = {S + "loss": "kto"}, {S + "pairs": "sampled"}
OF_PREFERENCE = {
    "kind": Effect(
        instead={"stages": [BASES["sft"]]},
        seen=both(lambda r: r.kinds, ["preference"] * 2, ["sft"] * 2),
        why="another kind of stage",
    ),
    "pairs": Effect(
        to="sampled",
        each=True,
        seen=lambda a, b: learns(a, b) and b.metric("reward/mean") != [None] * 2,
        why="completions are sampled",
    ),
    "loss": Effect(
        to=[loss for loss in PAIR_SETTINGS if loss != "dpo"],
        each=True,
        also={S + "prompts_per_step": 6, S + "steps": 4},  # aot is dpo while the pairs are in the order of the reference model
        seen=lambda a, b: "trains a reward model" in b.error if b.error else learns(a, b),
        why="another loss of a pair, or of another kind of policy",
    ),
    "losses": Effect(to={"dpo": 0.8, "bco": 0.2}, seen=learns, why="two losses are added"),
    "prompts_per_step": Effect(to=3, seen=both(lambda r: r.metric("preference/pairs"), [2] * 2, [3] * 2), why="more pairs"),
    "group_size": Effect(
        to=3,
        also=SAMPLED,
        seen=both(lambda r: len({x["completion"] for x in r.rollouts}) <= 12, False, True),
        why="fewer of each",
    ),
    "max_tokens": Effect(to=2, also=SAMPLED, seen=learns, why="shorter completions"),
    "beta": Effect(to=0.5, also={S + "beta": 0.1}, seen=learns, why="held to the reference model more strongly"),
    "margin": Effect(to=3.0, also={S + "loss": "simpo"}, seen=learns, why="rewards are to be further apart"),
    "label_smoothing": Effect(to=0.3, seen=learns, why="labels are doubted"),
    "desirable_weight": Effect(to=3.0, also=KTO, seen=learns, why="preferred sides count more"),
    "undesirable_weight": Effect(to=3.0, also=KTO, seen=learns, why="rejected sides count more"),
    "reward_shift": Effect(
        to=True, also={S + "loss": "bco", S + "steps": 3}, seen=learns, why="rewards are counted from their mean"
    ),
    "reward_alpha": Effect(to=2.0, also={S + "loss": "alphapo"}, seen=learns, why="rewards have another shape"),
    "discopop_tau": Effect(to=0.5, also={S + "loss": "discopop"}, seen=learns, why="a wider change of losses"),
    "divergence": Effect(
        to=["forward-kl", "jensen-shannon", "alpha"], each=True, seen=learns, why="another divergence from the reference model"
    ),
    "divergence_alpha": Effect(to=0.9, also={S + "divergence": "alpha"}, seen=learns, why="nearer to the forward KL"),
    "nll_weight": Effect(to=1.0, seen=learns, why="preferred sides are imitated, too"),
    "tail_weight": Effect(to=0.0, seen=learns, why="the rest of the longer side counts for nothing"),
    "reference_every": Effect(
        to=1,
        also={S + "steps": 3, S + "learning_rate": 1e-2},
        seen=lambda a, b: abs(a.metric("preference/margin")[2]) > 1e-3 and learns(a, b),
        why="the reference follows",
    ),
    "reference_decay": Effect(
        to=0.9,
        also={S + "reference_every": 1, S + "steps": 3, S + "learning_rate": 1e-2},
        seen=learns,
        why="the reference lags behind",
    ),
    "on_policy_weights": Effect(
        to=True,
        seen=lambda a, b: learns(a, b) and None not in b.metric("preference/weight"),
        why="pairs count by how likely the policy is to write them",
    ),
    "reference": Effect(
        to=["auto", "adapter", "none"],
        each=True,
        also={"policy.lora.rank": 4, S + "reference": "frozen"},
        seen=both(lambda r: bool(copied(r)), True, False),
        why="without a copy of the adapters",
    ),
}


def played(ids):
    """Episodes of these starts are played and of no others, and it was otherwise."""
    return lambda a, b: starts(b) == ids != starts(a)


def starts(ran):
    return {row["prompt_id"] for row in ran.rollouts}


def remembered(ran):
    return ran.tensors("memory.safetensors")


def outputs(ran):
    """Numbers that a critic gives."""
    return ran.tensors("learner.safetensors")["critic/layers.1.weight"].shape[-1]


RATED = {"tasks": [TURN | {"name": "extras/ranked"}], S + "steps": 3}
CHOSEN = RATED | {S + "select": MOST_SPREAD}
EXPERT_TOO = {S + "offline": "expert", S + "offline_episodes": 4}
CRITIC_BINS = {S + "bins": 11}
CAUTIOUS = {S + "conservative": 1.0}
BY_PRIORITY = {S + "priority": 0.8, S + "steps": 3}
OF_OFF_POLICY = {
    **{
        key: of_training("off-policy")[key]
        for key in (
            *("steps", "optimizer", "beta1", "beta2", "learning_rate", "warmup_steps", "schedule", "min_lr_ratio"),
            *("optimizer_every", "weight_decay", "ema_decay"),
        )
    },
    "kind": Effect(
        instead={"stages": [{"kind": "sft", "steps": 2, "batch_size": 2}]},
        seen=both(lambda r: r.kinds, ["off-policy"] * 2, ["sft"] * 2),
        why="another kind of stage",
    ),
    "split": Effect(
        to="test", seen=both(lambda r: {p.split("-")[0] for p in starts(r)}, {"train"}, {"test"}), why="starts of another split"
    ),
    "tasks": Effect(
        to={"one": 1.0, "two": 0.0},
        also={"tasks": [TURN | {"name": "one"}, TURN | {"name": "two"}], "seed": 3},
        seen=both(lambda r: {row["task"] for row in r.rollouts}, {"one", "two"}, {"one"}),
        why="the second task isn't drawn from",
    ),
    "order": Effect(to="easy-first", each=True, seen=refused("difficulty"), why="these starts have no difficulty"),
    "select": Effect(to=MOST_SPREAD, also=RATED, seen=played({"train-2", "train-1", "train-3"}), why="they vary most"),
    "select.path": Effect(
        to=f"{SCORES}-other.jsonl", also=CHOSEN, seen=played({"train-6", "train-5", "train-7"}), why="others vary most"
    ),
    "select.rule": Effect(
        to=["bell", "all"], each=True, also=CHOSEN, seen=lambda a, b: starts(a) != starts(b), why="others are taken"
    ),
    "select.max_prompts": Effect(to=1, also=CHOSEN, seen=played({"train-2"}), why="the one that varies most"),
    "select.above": Effect(to=0.6, also=CHOSEN, seen=played({"train-3", "train-7"}), why="those above it that vary"),
    "select.up_to": Effect(to=0.4, also=CHOSEN, seen=played({"train-1", "train-5"}), why="those up to it that vary"),
    "select.center": Effect(
        to=0.75, also=CHOSEN | {S + "select": BELL}, seen=played({"train-3"}), why="the only one with that mean"
    ),
    "select.width": Effect(
        to=1e9,
        also=CHOSEN | {S + "select": BELL | {"max_prompts": 3, "width": 1e-3}},
        seen=lambda a, b: starts(a) != starts(b),
        why="all are as likely",
    ),
    "max_grad_norm": Effect(to=1e-4, also={S + "optimizer": "sgd"}, seen=learns, why="a long gradient is cut"),
    "parts": Effect(
        to=[{"match": "vision", "freeze": True}], seen=refused("always trains all its weights"), why="this policy has no parts"
    ),
    **{
        f"parts.{key}": Effect(
            to=value,
            instead={S + "parts": [{"match": "vision", "freeze": True} | {key: value}]},
            seen=refused("stages"),
            why="this policy has no parts",
        )
        for key, value in (("match", "language"), ("freeze", True), ("learning_rate", 1e-4), ("weight_decay", 1.0))
    },
    "prompts_per_step": Effect(to=3, seen=both(lambda r: len(r.rollouts), 4, 6), why="more starts"),
    "group_size": Effect(to=2, seen=both(lambda r: len(r.rollouts), 4, 8), why="more episodes of each"),
    "updates": Effect(
        to=4, seen=lambda a, b: b.metric("off_policy/updates")[0] == 2 * a.metric("off_policy/updates")[0], why="twice as many"
    ),
    "interventions": Effect(
        to=1.0, seen=lambda a, b: a.metric("off_policy/offline")[-1] is None and learns(a, b), why="experts act"
    ),
    "starts_after": Effect(
        to=1000, seen=lambda a, b: learns(a, b) and b.metric("off_policy/updates") == [0, 0], why="there are too few steps"
    ),
    "explore_steps": Effect(to=1, seen=learns, why="what is new is paid for"),
    "rules": Effect(to=[{"id": "extras/bonus"}], seen=learns, why="a rule pays"),
    "rules.id": Effect(to="extras/idle", also={S + "rules": [{"id": "extras/bonus"}]}, seen=learns, why="another pays nothing"),
    "rules.options": Effect(
        to={"much": 3.0}, also={S + "rules": [{"id": "extras/bonus"}]}, seen=learns, why="episodes are paid more"
    ),
    "batch_size": Effect(to=4, seen=learns, why="fewer transitions"),
    "capacity": Effect(
        to=8, seen=lambda a, b: len(remembered(a)["rewards"]) > 8 == len(remembered(b)["rewards"]), why="it is full"
    ),
    "gamma": Effect(to=0.5, also={S + "steps": 3}, seen=learns, why="what is paid later counts less"),
    "n_step": Effect(to=3, also={S + "steps": 3}, seen=learns, why="more rewards before the critics' value"),
    "priority": Effect(to=0.8, also={S + "steps": 3}, seen=learns, why="others are drawn"),
    "priority_correction": Effect(to=1.0, also=BY_PRIORITY, seen=learns, why="their weights are smaller"),
    "offline": Effect(instead=EXPERT_TOO, seen=learns, why="half of a batch is the expert's"),
    "offline_episodes": Effect(to=2, also=EXPERT_TOO, seen=learns, why="fewer of the expert's episodes"),
    "offline_share": Effect(to=0.25, also=EXPERT_TOO, seen=learns, why="less of a batch is the expert's"),
    "critics": Effect(
        to=2, seen=both(lambda r: len(r.tensors("learner.safetensors")["critic/layers.0.weight"]), 3, 2), why="fewer critics"
    ),
    "subset": Effect(to=3, also={S + "steps": 3}, seen=learns, why="the lowest of more critics"),
    "hidden": Effect(
        to=[12],
        seen=both(lambda r: r.tensors("learner.safetensors")["critic/layers.0.weight"].shape[-1], 8, 12),
        why="wider critics",
    ),
    "bins": Effect(
        to=11,
        seen=both(lambda r: r.tensors("learner.safetensors")["critic/layers.1.weight"].shape[-1], 1, 11),
        why="distributions",
    ),
    "low": Effect(to=-2.0, also=CRITIC_BINS, seen=learns, why="other bins"),
    "high": Effect(to=2.0, also=CRITIC_BINS, seen=learns, why="other bins"),
    "smoothing": Effect(to=2.0, also=CRITIC_BINS, seen=learns, why="wider targets"),
    "critic_learning_rate": Effect(to=1e-3, seen=learns, why="the critics take smaller steps"),
    "target_rate": Effect(to=0.5, also={S + "steps": 3}, seen=learns, why="targets follow sooner"),
    "conservative": Effect(to=1.0, seen=learns, why="unknown actions are pushed down"),
    "conservative_samples": Effect(to=2, also=CAUTIOUS, seen=learns, why="fewer actions are pushed down"),
    "backup_entropy": Effect(to=True, also={S + "steps": 3}, seen=learns, why="the target has the entropy"),
    "target_entropy": Effect(to=1.0, seen=metric("off_policy/temperature"), why="the temperature aims elsewhere"),
    "start_temperature": Effect(to=0.1, seen=metric("off_policy/temperature"), why="another beginning"),
}


def certain(m):
    """Intervals and noise without a width, so that every fall leaves them, and every rise is one."""
    m.setattr("mmrl.train.alarms._noise", lambda values: 0.0)
    m.setattr("mmrl.train.alarms.RISE", 0.0)
    m.setattr(mmrl.evaluation.results, "mean_interval", lambda values, *_: (statistics.fmean(values),) * 2)
    m.setattr(mmrl.evaluation.results, "wilson", lambda successes, n: (successes / n, successes / n))


def alarm(name, warn, text, patch=None, **also):
    """The two keys of an alarm: one speaks, the other stops."""
    also = {**WATCHED, **also}
    return {
        f"limits.{name}.warn": Effect(to=warn, also=also, patch=patch, seen=told(text), why="a person is told"),
        f"limits.{name}.stop": Effect(to=warn, also=also, patch=patch, seen=refused(text), why="the run stops"),
    }


IMPROVED = {S + "improve": {"candidates": 4, "keep": 2, "steps": 2}, S + "steps": 3}
OF_OFF_POLICY |= {
    "improve": Effect(to={}, seen=learns, why="the policy imitates what the critics chose"),
    "improve.candidates": Effect(to=2, also=IMPROVED, seen=learns, why="fewer actions to choose from"),
    "improve.keep": Effect(
        to=1,
        also={S + "improve": {"candidates": 4, "keep": 4, "steps": 5, "step_size": 0.5}, S + "steps": 3},
        seen=learns,
        why="only the best of them climbs",
    ),
    "improve.steps": Effect(to=40, also=IMPROVED, seen=learns, why="it climbs further"),
    "improve.step_size": Effect(to=0.1, also=IMPROVED, seen=learns, why="it climbs faster"),
    "improve.updates": Effect(to=0.2, also=IMPROVED, seen=learns, why="fewer updates of the policy"),
    "improve.batch_size": Effect(to=4, also=IMPROVED, seen=learns, why="fewer observations"),
    "improve.warmup_steps": Effect(to=2, also=IMPROVED, seen=learns, why="the critics learn alone at first"),
    "improve.acts": Effect(to=False, also=IMPROVED, seen=learns, why="samples are played"),
    "improve.state": Effect(to=2, also=IMPROVED, seen=refused("state"), why="this policy sees the state itself"),
    "improve.acting_temperature": Effect(to=10.0, also=IMPROVED, seen=learns, why="candidates are drawn to be played"),
    "improve.imitation_temperature": Effect(to=10.0, also=IMPROVED, seen=learns, why="candidates are drawn to be imitated"),
    "improve.data_action": Effect(to=True, also=IMPROVED, seen=learns, why="the memory's action may be imitated"),
    "improve.expectile": Effect(to=0.7, also=IMPROVED, seen=learns, why="critics of IQL choose otherwise"),
}
BY_TD3 = {S + "td3": {}, S + "steps": 3, "policy.options.noise": 0.2}
OF_OFF_POLICY |= {
    "td3": Effect(to={}, seen=refused("td3"), why="this policy learns its noise"),
    "td3.target_noise": Effect(to=0.6, also=BY_TD3, seen=learns, why="targets are of actions farther away"),
    "td3.noise_clip": Effect(to=0.01, also=BY_TD3, seen=learns, why="targets are of nearer actions"),
    "td3.warmup_updates": Effect(to=20, also=BY_TD3, seen=learns, why="the critics learn alone at first"),
}
BY_IQL = {S + "iql": {}, S + "steps": 3}
BY_CROSSQ = {S + "crossq": {}, S + "steps": 3}
OFFLINE = {S + "offline": "expert", S + "offline_episodes": 3}
OF_OFF_POLICY |= {
    "iql": Effect(to={}, seen=learns, why="the policy imitates what is good"),
    "iql.expectile": Effect(to=0.2, also=BY_IQL, seen=learns, why="values are those of worse actions"),
    "iql.inverse_temperature": Effect(to=0.0, also=BY_IQL, seen=learns, why="all actions are imitated alike"),
    "iql.max_weight": Effect(to=0.1, also=BY_IQL, seen=learns, why="good actions weigh less"),
    "crossq": Effect(to={}, seen=learns, why="critics are normalised by batches, and nothing follows them"),
    "crossq.momentum": Effect(to=0.1, also=BY_CROSSQ, seen=learns, why="the running moments are those of the last batch"),
    "crossq.warmup_updates": Effect(to=0, also=BY_CROSSQ, seen=learns, why="batches are drawn towards the running moments"),
    "dropout": Effect(to=0.5, seen=learns, why="critics drop half of their numbers"),
    "conservative_calibrated": Effect(to=False, also=CAUTIOUS, seen=learns, why="Qs are pushed below what was paid, too"),
    "offline_steps": Effect(to=1, also=OFFLINE, seen=learns, why="nothing is played at first"),
    "offline_updates": Effect(to=3, also={**OFFLINE, S + "offline_steps": 1}, seen=learns, why="fewer updates at first"),
}
ALIASES = {
    "policy": {
        "kind": "steered",
        "model": "mlp",
        "options": {
            "base": {
                "kind": "diffusion",
                "model": "tiny:diffusion:width=8,horizon=4,moments=1,times=2,pictures=0",
                "options": {"dims": 2, "chunk": 2, "state": 2, "scheduler": "DDIM"},
            },
            "hidden": [8],
        },
    },
    S + "steps": 3,
    S + "noise_aliasing": {},
}
OF_OFF_POLICY |= {
    "noise_aliasing": Effect(to={}, seen=refused("noise_aliasing"), why="this policy chooses no noise"),
    "noise_aliasing.updates": Effect(to=1, also=ALIASES, seen=learns, why="the policy follows critics of noise that know less"),
    "noise_aliasing.base_steps": Effect(to=1, also=ALIASES, seen=learns, why="the base plays alone at first"),
}
GRIPS = {
    "tasks": [TURN | {"options": {**TURN["options"], "gripper": True}}],
    "policy.options.state": 3,
    "policy.options.gripper_choices": 3,
    S + "steps": 3,
    S + "gripper": {"state": 2, "penalty": 1.0, "threshold": 0.5},
}
OF_OFF_POLICY |= {
    "gripper": Effect(to={"state": 0}, seen=refused("gripper"), why="this policy draws its gripper's number"),
    "gripper.state": Effect(to=0, also=GRIPS, seen=learns, why="another number says whether it is closed"),
    "gripper.penalty": Effect(to=0.01, also=GRIPS, seen=learns, why="changes cost hardly anything"),
    "gripper.threshold": Effect(to=-5.0, also=GRIPS, seen=learns, why="it is above that all the time"),
    "gripper.above": Effect(to=["closed"], each=True, also=GRIPS, seen=learns, why="it is said the other way round"),
}
DRAWS = ("split", "tasks", "order", "select", "select.path", "select.rule", "select.max_prompts", "select.above")
DRAWS += ("select.up_to", "select.center", "select.width", "prompts_per_step", "group_size")
GIVEN = {S + "expert_episodes": 3}
OF_RECAP = {
    **{key: of_training("recap")[key] for key in of_training("recap") if key not in DRAWS},
    **{key: OF_OFF_POLICY[key] for key in DRAWS},
    "kind": Effect(
        instead={"stages": [{"kind": "sft", "steps": 2, "batch_size": 2}]},
        seen=both(lambda r: r.kinds, ["recap"] * 2, ["sft"] * 2),
        why="another kind of stage",
    ),
    "max_grad_norm": OF_OFF_POLICY["max_grad_norm"],
    "parts.match": Effect(
        to="language",
        also={S + "parts": [{"match": "vision", "freeze": True}]},
        seen=lambda a, b: "language" in a.moved and "language" not in b.moved,
        why="another part stays",
    ),
    "parts.weight_decay": Effect(
        to=10.0,
        also={S + "parts": [VISION]},
        seen=lambda a, b: far(b, "vision") > far(a, "vision") + 1e-3,
        why="that part is pulled to zero",
    ),
    "updates": Effect(to=3, seen=learns, why="more of them"),
    "batch_size": Effect(to=4, seen=learns, why="fewer calls"),
    "condition.positive": Effect(to="Well done.", seen=learns, why="another text is told"),
    "condition.negative": Effect(
        to="Badly done.", also={S + "condition": {"drop": 0.0}}, seen=learns, why="another text is told"
    ),
    "condition.top": Effect(to=0.9, also={S + "condition": {"drop": 0.0}}, seen=learns, why="more of them are positive"),
    "condition.drop": Effect(to=0.99, also={S + "condition": {"drop": 0.0}}, seen=learns, why="no text is told"),
    "capacity": Effect(
        to=4, seen=lambda a, b: a.metric("recap/calls")[-1] > 6 >= b.metric("recap/calls")[-1], why="the oldest are forgotten"
    ),
    "guidance": Effect(to=100.0, seen=learns, why="it plays other actions"),
    "expert_episodes": Effect(to=3, seen=learns, why="the expert's are learned from, too"),
    "interventions": Effect(to=1.0, seen=metric("recap/corrected_share"), why="the expert takes over"),
    "restart": Effect(to=True, seen=learns, why="the second step begins with the first weights"),
    "lookahead": Effect(to=1, also={S + "steps": 3}, seen=learns, why="the value of the next state counts"),
    "failure": Effect(to=0.2, seen=metric("recap/value_error"), why="failures cost less"),
    "bins": Effect(to=21, seen=both(lambda r: values(r)[-1].shape[-1], 11, 21), why="a finer distribution"),
    "smoothing": Effect(to=2.0, seen=metric("value_loss"), why="wider targets"),
    "hidden": Effect(to=[12], seen=both(lambda r: values(r)[0].shape[-1], 8, 12), why="wider values"),
    "state": Effect(to=2, seen=lambda a, b: values(b)[1].shape[1] == values(a)[1].shape[1] + 2, why="they read the state, too"),
    "value_trains": Effect(
        to=["vision", "model"], each=True, seen=metric("value_loss"), why="what the values see with learns, too"
    ),
    "value_updates": Effect(to=8, seen=metric("value_loss"), why="more of them"),
    "value_batch_size": Effect(to=4, seen=metric("value_loss"), why="fewer calls"),
    "value_learning_rate": Effect(to=1e-2, seen=metric("value_loss"), why="larger steps"),
}
OF_HG_DAGGER = {
    **{key: OF_RECAP[key] for key in (*of_training("hg-dagger"), *DRAWS) if key != "kind"},
    "kind": Effect(
        instead={"stages": [{"kind": "sft", "steps": 2, "batch_size": 2}]},
        seen=both(lambda r: r.kinds, ["hg-dagger"] * 2, ["sft"] * 2),
        why="another kind of stage",
    ),
    "updates": OF_RECAP["updates"],
    "batch_size": OF_RECAP["batch_size"],
    "capacity": Effect(
        to=4,
        also={S + "prompts_per_step": 8},
        seen=lambda a, b: a.metric("hg_dagger/calls")[-1] > 4 >= b.metric("hg_dagger/calls")[-1],
        why="the oldest are forgotten",
    ),
    "expert_episodes": OF_RECAP["expert_episodes"],
    "interventions": Effect(to=0.2, seen=metric("hg_dagger/calls"), why="the expert takes over more rarely"),
}


def values(ran):
    """The weights of the values' layers."""
    found = ran.tensors("learner.safetensors")
    return [found[name] for name in sorted(found) if name.startswith("values/") and found[name].ndim == 3]


def said_to_be_shown(ran):
    """What the end of a smoke run would say, without values."""
    run = read_run(ran.path)
    return [line.split(" (")[0] for line in told_shown(run.config["smoke_shows"], run)]


ENTRIES = {
    **{f"stages.{kind}.{key}": effect for kind in STAGES if kind not in AROUND for key, effect in of_training(kind).items()},
    **{f"stages.rl.{key}": effect for key, effect in OF_RL.items()},
    **{f"stages.sft.{key}": effect for key, effect in OF_SFT.items()},
    **{f"stages.distill.{key}": effect for key, effect in OF_DISTILL.items()},
    **{f"stages.preference.{key}": effect for key, effect in OF_PREFERENCE.items()},
    **{f"stages.off-policy.{key}": effect for key, effect in OF_OFF_POLICY.items()},
    **{f"stages.recap.{key}": effect for key, effect in OF_RECAP.items()},
    **{f"stages.hg-dagger.{key}": effect for key, effect in OF_HG_DAGGER.items()},
    # the run
    "name": Effect(to="other", seen=both(lambda r: r.path.name, "toy", "other"), why="names the run folder"),
    "smoke": Effect(
        to=True,
        also={"name": "toy-smoke"},
        seen=both(lambda r: "smoke = true" in (r.path / "config.toml").read_text(), False, True),
        why="another smoke run may take the folder's place",
    ),
    "smoke_shows": Effect(
        to=["loss != 0"],
        seen=both(said_to_be_shown, [], ["smoke_shows held: loss != 0"]),
        why="the end of a smoke run says what some step showed",
    ),
    "runs_dir": Effect(
        to=ELSEWHERE, seen=lambda a, b: b.path.parent.name == "elsewhere" != a.path.parent.name, why="run folders are made there"
    ),
    "seed": Effect(
        to=1,
        seen=lambda a, b: a.prompts != b.prompts and unequal(a.first, b.first) and column("completion")(a, b),
        why="other prompts, samples and first weights",
    ),
    "policy": Effect(to={"model": MODEL.replace("32", "64")}, seen=lambda a, b: unequal(a.first, b.first), why="another model"),
    "policy.model": Effect(to=f"{MODEL},seed=5", seen=lambda a, b: unequal(a.first, b.first), why="another model"),
    "policy.kind": Effect(
        to="extras/loud", seen=lambda a, b: unequal(a.first, b.first), why="a plugin's policy doubles its weights"
    ),
    "policy.dtype": Effect(
        to=["bfloat16", "float16"],
        each=True,
        why="weights of another type",
        seen=lambda a, b: (
            {t.dtype for t in a.tensors("policy/*.safetensors").values()} == {torch.float32}
            and {t.dtype for t in b.tensors("policy/*.safetensors").values()} == {getattr(torch, b.data["policy"]["dtype"])}
        ),
    ),
    "policy.device": Effect(to="cuda:99", seen=refused("cuda:99"), why="there is no such GPU anywhere"),
    "policy.options": Effect(
        to={"dims": 2, "bins": 4, "chunk": 2},
        also=ACTS,
        seen=lambda a, b: not b.error and (a.rollouts != b.rollouts) and learns(a, b),
        why="coarser actions",
    ),
    "policy.attn_implementation": Effect(
        to=["sdpa", "eager", "flex_attention"],
        each=True,
        also=SGD,
        seen=lambda a, b: attention_of(a) != attention_of(b) and same(a, b),
        why="attention is computed otherwise, and the results are the same",
    ),
    "policy.batch_invariant": Effect(
        to=True,
        also=SGD,
        seen=lambda a, b: any(a.metric("logprob_gap")) and not any(b.metric("logprob_gap")) and same(a, b),
        why="sampler and learner compute the same bits",
    ),
    "policy.chat_template": Effect(
        to=written_template(),
        why="the template writes other words",
        seen=lambda a, b: prompt_length(b) > prompt_length(a) and learns(a, b),
    ),
    "policy.chat_template_kwargs": Effect(
        to={"terse": True},
        patch=lambda m: m.setattr(qwen, "CHAT_TEMPLATE", qwen.CHAT_TEMPLATE + "{% if terse %}Be brief.{% endif %}"),
        why="the template writes other words",
        seen=lambda a, b: prompt_length(b) > prompt_length(a) and learns(a, b),
    ),
    "policy.shown_tokens": Effect(
        to=["<|im_start|>"],
        why="texts of answers hold them",
        seen=lambda a, b: [r.policy.decode(r.policy.tokenizer.encode("<|im_start|>")) for r in (a, b)] == ["", "<|im_start|>"],
    ),
    "policy.frame": Effect(
        to="thousandths",
        also={"policy.frame": "unit"},
        patch=lambda m: m.setattr(coordinate_formats, "COORDINATE_FORMATS", {}),
        why="tasks are told of other numbers",
        seen=lambda a, b: [ran.policy.image_processing.coordinate_format for ran in (a, b)] == ["unit", "thousandths"],
    ),
    "policy.min_pixels": Effect(
        to=4 * 3136, why="small pictures are enlarged", seen=lambda a, b: prompt_length(b) > prompt_length(a) and learns(a, b)
    ),
    "policy.max_pixels": Effect(
        to=784,
        also={"policy.min_pixels": 784},
        why="pictures are shrunk",
        seen=lambda a, b: prompt_length(b) < prompt_length(a) and learns(a, b),
    ),
    "policy.video.fps": Effect(
        to=1.0, also=FILM, why="fewer frames are seen", seen=lambda a, b: prompt_length(b) < prompt_length(a) and learns(a, b)
    ),
    "policy.video.max_frames": Effect(
        to=4, also=FILM, why="fewer frames are seen", seen=lambda a, b: prompt_length(b) < prompt_length(a) and learns(a, b)
    ),
    "policy.video.max_pixels": Effect(
        to=28 * 28, also=FILM, why="frames are shrunk", seen=lambda a, b: prompt_length(b) < prompt_length(a) and learns(a, b)
    ),
    "policy.video.total_pixels": Effect(
        to=10 * 28 * 28,
        also=FILM,
        why="frames are shrunk",
        seen=lambda a, b: prompt_length(b) < prompt_length(a) and learns(a, b),
    ),
    "stages.rl.rules": Effect(
        to=[CONTRAST], also=FILM, why="right answers to videos are paid", seen=lambda a, b: paid(b) > 0 == paid(a)
    ),
    "stages.rl.rules.id": Effect(
        to="extras/idle", also=CONTRASTED, why="another rule pays nothing", seen=lambda a, b: paid(a) > 0 == paid(b)
    ),
    "stages.rl.rules.options": Effect(to={"bonus": 0.6}, also=CONTRASTED, why="they are paid more", seen=rewards),
    "stages.rl.length": Effect(
        to={"min_tokens": 1, "max_tokens": 8},
        also=FILM,
        why="right answers of that length are paid",
        seen=lambda a, b: long(b) > 0 == long(a),
    ),
    "stages.rl.length.bonus": Effect(to=0.4, also=MEASURED, why="they are paid more", seen=rewards),
    "stages.rl.length.min_tokens": Effect(to=5, also=MEASURED, why="none is so long", seen=lambda a, b: long(a) > 0 == long(b)),
    "stages.rl.length.max_tokens": Effect(to=1, also=MEASURED, why="few are so short", seen=lambda a, b: long(a) > long(b)),
    "stages.rl.length.correct_above": Effect(
        to=1.0, also=MEASURED, why="none is right enough", seen=lambda a, b: long(a) > 0 == long(b)
    ),
    "stages.rl.length.verifier": Effect(
        to="extras/opposite",
        also=FILMED | {S + "length": {"min_tokens": 1, "max_tokens": 8, "correct_above": 0.75}},
        why="another verifier tells right from wrong",
        seen=rewards,
    ),
    "policy.trust_remote_code": Effect(
        to=True,
        also={"policy.model": OWN_CODE, S + "steps": 1},
        patch=aside,
        why="the checkpoint's own code runs",
        seen=both(lambda r: type(r.policy.model.config).__module__.startswith("transformers_modules"), False, True),
    ),
    "policy.lora": Effect(
        to={},
        seen=lambda a, b: (
            {n for n in b.last if not torch.equal(b.last[n], b.first[n])} == {n for n in b.last if ".lora_" in n} != set()
        ),
        why="adapters are trained and nothing else",
    ),
    "policy.lora.rank": Effect(
        to=3,
        also=LORA,
        why="narrower adapters",
        seen=both(lambda r: min(min(p.shape) for n, p in r.last.items() if ".lora_" in n), 16, 3),
    ),
    "policy.lora.alpha": Effect(to=64.0, also=LORA, seen=learns, why="their output counts double"),
    "policy.lora.use_rslora": Effect(to=True, also=LORA, seen=learns, why="their output counts more"),
    "policy.lora.use_dora": Effect(to=True, also=LORA, seen=learns, why="lengths of rows are trained, too"),
    "policy.lora.target_modules": Effect(
        to=["vision"], also=LORA, seen=both(lambda r: r.moved, {"language"}, {"vision"}), why="other layers"
    ),
    "policy.lora.nf4": Effect(
        to=["language"],
        also=LORA,
        seen=both(lambda r: {p.dtype for p in r.policy.model.parameters()}, {torch.float32}, {torch.float32, torch.uint8}),
        why="weights of two in a byte",
    ),
    # tasks
    "tasks.id": Effect(
        to="extras/ranked", seen=lambda a, b: {r["task"] for r in b.rollouts} == {"extras/ranked"}, why="other prompts"
    ),
    "tasks.name": Effect(
        to="mine",
        seen=lambda a, b: {r["task"] for r in b.rollouts} == {"mine"} and "task/mine/reward" in b.steps[0],
        why="another label",
    ),
    "tasks.weight": Effect(
        to=0.0,
        also={"tasks": TWO, "seed": 3},
        why="it isn't drawn from",
        seen=both(lambda r: {row["task"] for row in r.rollouts}, {"one", "two"}, {"two"}),
    ),
    "tasks.options": Effect(
        to={"colours": 1},
        seen=lambda a, b: {r["answer"] for r in b.rollouts} == {"red"} != {r["answer"] for r in a.rollouts},
        why="the task is made with them",
    ),
    "tasks.verifiers": Effect(to={"extras/opposite": 1.0}, seen=rewards, why="another reward"),
    "tasks.prompt_template": Effect(
        to="{text} Think first.",
        seen=lambda a, b: shown(a, "Think first.") == 0 < shown(b, "Think first.") == len(b.texts),
        why="another text",
    ),
    "tasks.group_size": Effect(to=3, seen=both(sizes, [4] * 4, [3] * 4), why="groups of its own size"),
    "tasks.max_tokens": Effect(to=2, seen=both(lambda r: max(r.metric("length/max")), 4, 2), why="shorter completions"),
    # sampling
    "generate.max_tokens": Effect(to=2, seen=both(lambda r: max(r.metric("length/max")), 4, 2), why="shorter completions"),
    "generate.temperature": Effect(
        to=0.3,
        seen=lambda a, b: b.metric("entropy")[0] < a.metric("entropy")[0] and max(b.metric("logprob_gap")) < 1e-4,
        why="sharper, in the sampler and in the learner",
    ),
    "generate.top_p": Effect(to=1e-6, seen=lambda a, b: distinct(b) == 1 < distinct(a), why="only the likeliest token is left"),
    "generate.top_k": Effect(to=1, seen=lambda a, b: distinct(b) == 1 < distinct(a), why="only the likeliest token is left"),
    "generate.stop": Effect(
        to=[chr(n) for n in range(97, 113)],
        seen=lambda a, b: sum(b.metric("length/mean")) < sum(a.metric("length/mean")),
        why="half of the letters end a completion",
    ),
    "generate.max_turns": Effect(
        to=2,
        also={"tasks": [{"id": "extras/talk"}]},
        seen=lambda a, b: {*a.metric("turns/mean")} == {8.0} and {*b.metric("turns/mean")} == {2.0},
        why="episodes are cut off sooner",
    ),
    "generate.max_context": Effect(
        to=60,
        also={"tasks": [{"id": "extras/talk"}]},
        seen=lambda a, b: {*a.metric("turns/mean")} == {8.0} and all(1 < mean < 8 for mean in b.metric("turns/mean")),
        why="episodes are cut off where the next answer has no room",
    ),
    "generate.batch_size": Effect(to=4, seen=both(lambda r: r.decodes, 2, 4), why="a group at a time"),
    "generate.cuda_graphs": Effect(
        to=True,
        seen=refused("graphs are asked for"),
        patch=graphs_refused,
        why="the sampler asks for graphs, which a CPU has not",
    ),
    # evaluation
    "evaluate.split": Effect(
        to="train",
        also=EVAL,
        seen=both(lambda r: {i["id"].split("-")[0] for i in r.items}, {"test"}, {"train"}),
        why="other prompts are held out",
    ),
    "evaluate.num_prompts": Effect(
        to=3, also=EVAL, seen=both(lambda r: {f["n"] for f in r.figures}, {4}, {3}), why="fewer prompts"
    ),
    "evaluate.every": Effect(to=1, also=EVAL, seen=both(lambda r: len(r.figures), 2, 3), why="also in between"),
    "evaluate.temperature": Effect(
        to=5.0,
        also=EVAL,
        seen=lambda a, b: a.figures[0]["value"] != b.figures[0]["value"] and a.steps == b.steps,
        why="answers are sampled, and training is the same",
    ),
    "evaluate.num_samples": Effect(
        to=2,
        also={**EVAL, "evaluate.temperature": 1.0},
        why="pass@k",
        seen=both(lambda r: "pass@2" in r.figures[0]["extra"], False, True),
    ),
    # simulators
    "simulate.num_envs": Effect(to=3, also=ACTS, seen=both(lambda r: r.lanes, [4], [3]), why="fewer at once"),
    "simulate.lanes": Effect(to=2, also=ACTS, seen=both(lambda r: r.lanes, [4], [2, 2]), why="divided into two"),
    "simulate.demonstration_cache_mb": Effect(
        to=0,
        base="sft",
        also={
            **ACTS,
            "stages": [{**BASES["sft"], "split": "warm"}],
            "tasks": [{"id": "dial/turn", "options": {"size": 56, "n": 2}}],
        },
        seen=lambda a, b: [sum(map(len, lane)) for r in (a, b) for lane in r.resets] == [4 + 2, 4 + 4] and same(a, b),
        why="after a first look at all four, episodes are played again, and the results are the same",
    ),
    "simulate.timeout_s": Effect(
        to=99.0, also=ACTS, seen=both(lambda r: r.timeouts, [600.0], [99.0]), why="the deadline of a call in this process"
    ),
    "simulate.address": Effect(
        to="127.0.0.1:1", also=ACTS, seen=refused("needs the server's token"), why="whoever has no token asks no server"
    ),
    "simulate.device": Effect(to="cuda:99", also=ACTS, seen=refused("cuda:99"), why="there is no such GPU anywhere"),
    "simulate.policy_device": Effect(
        to="cpu",
        also=ACTS,
        seen=lambda a, b: (a.policy.exact_sampler, b.policy.exact_sampler) == (True, False) and same(a, b),
        why="a copy acts, and the same is learned",
    ),
    "evaluate.blank_images": Effect(
        to=True, also=EVAL, seen=both(lambda r: "blank" in r.figures[0]["extra"], False, True), why="the figure with blank images"
    ),
    "evaluate.shuffle_frames": Effect(
        to=True,
        also=EVAL | FILM,
        seen=both(lambda r: "shuffled" in r.figures[0]["extra"], False, True),
        why="the figure with shuffled frames",
    ),
    "evaluate.sparse_frames": Effect(
        to=[2, 4],
        also=EVAL | FILM,
        seen=both(lambda r: r.figures[0]["extra"].get("frames/mean", 0) > 2, False, True),
        why="answers from few frames and more",
    ),
    "evaluate.sparse_agreement": Effect(
        to=1,
        also=EVAL | FILM | {"evaluate.sparse_frames": [2, 4]},
        seen=both(lambda r: r.figures[0]["extra"]["frames/mean"], 4.0, 2.0),
        why="one answer always agrees with itself",
    ),
    "evaluate.steer": Effect(
        to=True,
        also=EVAL | FILM,
        seen=lambda a, b: (
            [f["extra"].get("steered") for f in a.figures] == [None] * 2
            and all("steered" in f["extra"] for f in b.figures)
            and [f["value"] for f in a.figures] == [f["value"] for f in b.figures]
            and a.steps == b.steps
        ),
        why="a second figure, and all else is the same",
    ),
    "evaluate.steering.learning_rate": Effect(
        to=1.0, also=STEERED | {"evaluate.steering.learning_rate": 0.0}, seen=steered, why="0 only looks on"
    ),
    "evaluate.steering.interval": Effect(to=100, also=STEERED, seen=steered, why="answers are shorter: no step is made"),
    "evaluate.steering.ema": Effect(
        to=0.0, also=STEERED | {"seed": 1, "generate.max_tokens": 24}, seen=steered, why="the entropy itself turns the sign"
    ),
    # the judge
    "verifiers": Effect(
        to={"extras/opposite": {"share": 0.5}},
        also={"tasks.0.verifiers": {"extras/opposite": 1.0}},
        seen=rewards,
        why="a verifier with another option",
    ),
    "judge.num_workers": Effect(
        to=2,
        seen=lambda a, b: (a.workers, b.workers) == (1, 2) and a.steps == b.steps and same(a, b),
        why="two workers, and the very same results",
    ),
    "judge.timeout_s": Effect(
        to=0.05,
        also={"tasks": [{"id": "toy/colour", "verifiers": {"extras/slow": 1.0}}], S + "steps": 1, S + "group_size": 2},
        seen=refused("scores of step 1 failed"),
        why="a slow verifier fails",
    ),
    "judge.memory_mb": Effect(
        to=64,
        also={"tasks": [{"id": "toy/colour", "verifiers": {"extras/hungry": 1.0}}], S + "steps": 1, S + "group_size": 2},
        seen=refused("scores of step 1 failed"),
        why="a verifier that takes 300 MB fails",
    ),
    "judge.isolation": Effect(
        to=["strict"],
        each=True,
        seen=lambda a, b: (a.sandboxes, b.sandboxes) == (0, 1) and a.steps == b.steps and same(a, b),
        why="a sandbox, and the very same results",
    ),
    "judge.failure_limit": Effect(
        to=0.0,
        also={
            "tasks": [{"id": "toy/colour", "verifiers": {"toy/sometimes": 1.0}}],
            S + "group_size": 16,
            "judge.failure_limit": 1.0,
        },
        seen=refused("more than judge.failure_limit = 0.0 allows"),
        why="one failure is too many",
    ),
    # how an update is computed
    "train.micro_batch_tokens": Effect(
        to=30,
        also=SGD,
        seen=lambda a, b: [p.micro for p in a.packs] == [1, 1] and min(p.micro for p in b.packs) > 1 and same(a, b),
        why="more passes, and the same result",
    ),
    "train.packing": Effect(
        to=["auto", "shared-prefix"],
        each=True,
        also={**SGD, "train.packing": "per-completion"},
        seen=lambda a, b: same(a, b) and ({p.rows for p in a.packs}, {p.rows for p in b.packs}) == ({8}, {2}),
        why="a row for each group instead of each completion, and the same result",
    ),
    "train.gradient_checkpointing": Effect(
        to=True,
        also=SGD,
        seen=lambda a, b: b.kept < 0.9 * a.kept and same(a, b) and a.steps == b.steps,
        why="less is kept for the backward pass, and the very same result",
    ),
    "train.offload_activations": Effect(
        to=True,
        also=SGD | {"train.gradient_checkpointing": True},
        seen=lambda a, b: same(a, b) and a.steps == b.steps and b.in_host > a.in_host == 0,
        why="copies are kept for the backward pass, and the very same result",
    ),
    "train.offload_optimizer": Effect(
        to=True,
        also=SGD | {"policy.dtype": "bfloat16"},
        seen=lambda a, b: same(a, b) and a.steps == b.steps and b.in_host > a.in_host == 0,
        why="masters have no storage between steps, and the very same result",
    ),
    "train.compile": Effect(
        to=True,
        also=SGD,
        seen=lambda a, b: same(a, b) and a.compiled == set() and len(b.compiled) == 2,
        why="layers of the language model and the vision tower are compiled, and the same result",
    ),
    "train.vision_cache_mb": Effect(
        to=0,
        also=SGD | LORA,
        seen=lambda a, b: same(a, b) and b.looked > a.looked > 0,
        why="the tower looks at a picture in each pass, and the same result",
    ),
    "train.threads": Effect(
        to=2,
        also=SGD,
        seen=lambda a, b: (a.threads, b.threads) == ({1}, {2}) and same(a, b),
        why="two threads, and the same result",
    ),
    "compute.sampler": Effect(to="vllm", each=True, seen=both(lambda r: r.vllm, [], [(0.4, True, 1)]), why="vLLM samples"),
    "compute.gpu_memory_utilization": Effect(
        to=0.25, also=VLLM, seen=both(lambda r: r.vllm, [(0.4, True, 1)], [(0.25, True, 1)]), why="of which it takes less"
    ),
    "compute.sleep_mode": Effect(
        to=False, also=VLLM, seen=both(lambda r: r.vllm, [(0.4, True, 1)], [(0.4, False, 1)]), why="it keeps what it has"
    ),
    "compute.sleep_level": Effect(
        to=1, each=True, also=VLLM, seen=both(lambda r: r.vllm_more, [(2, {})], [(1, {})]), why="its weights wait in main memory"
    ),
    "compute.model_runner": Effect(
        to=["v1", "v2"],
        each=True,
        also=VLLM,
        seen=lambda a, b: (a.vllm_runner, b.vllm_runner) == ([("auto", False)], [(b.data["compute"]["model_runner"], False)]),
        why="it is told",
    ),
    "compute.vllm": Effect(
        to={"max_num_seqs": 8},
        also=VLLM,
        seen=both(lambda r: r.vllm_more, [(2, {})], [(2, {"max_num_seqs": 8})]),
        why="it is told",
    ),
    "compute.tensor_parallel": Effect(
        to=2, also=VLLM, seen=both(lambda r: r.vllm, [(0.4, True, 1)], [(0.4, True, 2)]), why="it is spread over two"
    ),
    "compute.learners": Effect(
        to=2, seen=refused("but this is one process: start the run with `mmrl train`"), why="there would be two: test_learners.py"
    ),
    "compute.sequence_parallel": Effect(
        to=2, seen=refused("doesn't divide compute.learners = 1"), why="two would share each row: test_row_teams.py"
    ),
    "compute.weights": Effect(
        to="replicated", each=True, patch=two, seen=both(lambda r: r.spread, True, False), why="each learner holds all of them"
    ),
    "compute.placement": Effect(
        to=["separate", "hybrid"],
        each=True,
        seen=lambda a, b: (a.engines, b.engines) == ([], [(1, 2, b.data["compute"]["placement"] == "hybrid")]),
        why="engines of their own, and for the one of them one here",
    ),
    "compute.engines": Effect(
        to=3, also={"compute.placement": "separate"}, seen=both(lambda r: r.engines, [(1, 2, False)], [(3, 2, False)]), why="more"
    ),
    "compute.weight_transfer": Effect(
        to="broadcast",
        each=True,
        also={"compute.placement": "separate"},
        seen=both(lambda r: r.transfers, ["store"], ["broadcast"]),
        why="no copy on the host: test_weight_broadcast.py",
    ),
    "compute.retries": Effect(
        to=0,
        also={"compute.placement": "separate"},
        seen=both(lambda r: r.engines, [(1, 2, False)], [(1, 0, False)]),
        why="an engine that dies isn't started again",
    ),
    "compute.judges": Effect(
        to=3,
        seen=lambda a, b: (a.judges, b.judges) == ([], [3]) and a.texts == b.texts,
        why="three elsewhere, which say the same",
    ),
    "compute.simulators": Effect(
        to=["processes", "actors"],
        each=True,
        also={**ACTS, "simulate.lanes": 2},
        seen=lambda a, b: (a.elsewhere, b.elsewhere) == ([], [2, 2]) and a.resets == b.resets and not learns(a, b),
        why="one elsewhere for each lane, which do the same",
    ),
    "compute.staleness": Effect(
        to=1,
        base="rl",
        also={S + "steps": 3, S + "importance_sampling": "truncate"},
        seen=lambda a, b: (
            a.metric("staleness/max") == [None] * 3
            and b.metric("staleness/max") == [0, 1, 1]
            and a.texts[: len(a.texts) // 3] == b.texts[: len(b.texts) // 3]
        ),
        why="steps after the first learn from older weights' completions",
    ),
    "compute.interrupt": Effect(
        to=True,
        base="rl",
        also={S + "steps": 3, S + "importance_sampling": "truncate", "compute.staleness": 1},
        seen=lambda a, b: (
            a.metric("interrupted/share") == [None] * 3
            and None not in b.metric("interrupted/share")
            and a.texts[: len(a.texts) // 3] == b.texts[: len(b.texts) // 3]
        ),
        why="weights may come in the middle of answers, of which the metrics tell; the first step's come before",
    ),
    # what is kept
    "checkpoint.every": Effect(
        to=1, also={"checkpoint.keep": 9}, seen=both(lambda r: len(r.files("checkpoints/*")), 1, 2), why="also in between"
    ),
    "checkpoint.shards": Effect(
        to=True,
        patch=two,
        seen=both(lambda r: [Path(p).name for p in r.files("checkpoints/*/learner*")], ["learner.safetensors"], ["learner"]),
        why="each learner writes its own part",
    ),
    "checkpoint.keep": Effect(
        to=2,
        also={"checkpoint.every": 1, S + "steps": 3},
        why="more are kept",
        seen=both(lambda r: len(r.files("checkpoints/*")), 1, 2),
    ),
    "record.rollouts_every": Effect(to=0, seen=both(lambda r: len(r.files("rollouts/*.jsonl")), 2, 0), why="none are recorded"),
    "record.rollouts": Effect(to=3, seen=both(lambda r: len(r.rollouts), 16, 6), why="fewer a step"),
    "record.evaluation_prompts": Effect(
        to=1,
        also={"evaluate.num_prompts": 2},
        why="what fewer prompts asked is kept",
        seen=both(lambda r: (r.path / "evaluations/step-000000.jsonl").read_text().count('"messages"'), 2, 1),
    ),
    "record.episodes": Effect(
        to=1,
        also={**ACTS, "evaluate.num_prompts": 6},
        why="fewer videos of each evaluation",
        seen=lambda a, b: len(a.files("episodes/step-000000/*.webp")) > len(b.files("episodes/step-000000/*.webp")) in (1, 2),
    ),
    "record.trackers": Effect(
        to=["tensorboard"], seen=both(lambda r: bool(r.files("tensorboard/*")), False, True), why="event files"
    ),
    "record.project": Effect(
        to="mine",
        also={"record.trackers": ["extras/kept"]},
        why="trackers are told",
        seen=both(lambda r: (r.path / "project").read_text(), "mmrl", "mine"),
    ),
    # alarms
    "limits.alarms": Effect(
        to={"extras/long": {"warn": 0.5}}, also=WATCHED, seen=told("completions are long"), why="a plugin's alarm warns earlier"
    ),
    **alarm("logprob_gap", 1e-12, "sampler and learner disagree"),
    **alarm("answer_collapse", 0.01, "get the same completion"),
    **alarm("length_growth", 0.1, "times as long as in the stage's first steps"),
    **alarm("entropy_fall", 0.0, "the entropy fell by", **{S + "learning_rate": 1e-2}),
    **alarm("clip_share", 0.0, "the loss clips the probability ratio"),
    **alarm("kl", 0.0, "nats a token from its reference"),
    **alarm("zero_std", 0.9, "taught nothing", tasks=WRONG),
    **alarm(
        "blind",
        0.01,
        "with blank images the figure is",
        tasks=RANKED,
        **{"evaluate.num_prompts": 4, "evaluate.blank_images": True},
    ),
    **alarm(
        "reward_hacking",
        0.0,
        "the held-out figure fell",
        certain,
        **{
            "tasks": [{"id": "extras/ranked", "verifiers": {"toy/letters": 0.0, "extras/opposite": 1.0}}],
            "evaluate.num_prompts": 8,
            "evaluate.every": 2,
            S + "learning_rate": 1e-2,
        },
    ),
}
SECTIONS = {
    *("policy", "policy.lora"),
    *(f"stages.rl.{name}" for name in ("critic", "turn_critic", "imitation", "condition", "length")),
    *(f"stages.{kind}.select" for kind in STAGES),
}
"""Sections that may be left out or given: they have an entry of their own besides those of their keys."""


def paid(ran):
    """How much the order of frames has paid."""
    return sum(row["score"]["parts"].get("temporal", 0.0) for row in ran.rollouts)


def long(ran):
    """How much lengths have paid."""
    return sum(row["score"]["parts"].get("length", 0.0) for row in ran.rollouts)


def prompt_length(ran):
    return len(ran.policy.encode(ran.packs[0].rollouts[0].prompt).ids)


def distinct(ran):
    """Different completions of the first prompt."""
    return len({r["completion"] for r in ran.rollouts if r["group"] == 0 and r["prompt_id"] == ran.rollouts[0]["prompt_id"]})


pytestmark = pytest.mark.forks  # a thousand runs, each with a judge: what its workers are for users, other tests see


# -- every key has an entry -----------------------------------------------------------------------------------------------


def keys(model, path=""):
    """(path, annotation) of every key of the schema; sections of a stage go by their kind, items of a list by nothing."""
    for name, info in model.model_fields.items():
        here = f"{path}{name}"
        if here == "stages":
            for kind, stage in STAGES.items():
                yield from keys(stage, f"stages.{kind}.")
            continue
        inner = None if here == "limits.alarms" else section(info.annotation)  # whose keys are a plugin's
        optional = inner is not None and (type(None) in typing.get_args(info.annotation) or here == "policy")
        if inner is None or optional or here.endswith((".parts", ".rules")):
            yield here, info.annotation
        if inner is not None:
            yield from keys(inner, f"{here}.")


def section(annotation):
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((s for inner in typing.get_args(annotation) if (s := section(inner))), None)


def choices(annotation):
    return set(typing.get_args(annotation)) if typing.get_origin(annotation) is typing.Literal else set()


KEYS = dict(keys(RunConfig))


def test_every_key_has_an_entry_and_every_entry_a_key():
    assert set(KEYS) - set(ENTRIES) == set(), "say in ENTRIES what a new key changes"
    assert set(ENTRIES) - set(KEYS) == set()
    assert set(KEYS) >= SECTIONS and len(KEYS) > 180
    for key in ("stages.rl.critic.huber", "stages.sft.parts.freeze", "limits.blind.stop", "policy.lora.rank", "tasks.weight"):
        assert key in KEYS


def test_every_choice_is_tried():
    for key, annotation in KEYS.items():
        if (known := choices(annotation)) and not key.endswith(".kind"):
            effect = ENTRIES[key]
            tried = set(effect.to if isinstance(effect.to, list) else [effect.to])
            assert effect.each and len(known - tried) == 1, (
                f"{key}: {known - tried} are not tried, one of which is what it is compared with"
            )
    assert sum(bool(choices(a)) for a in KEYS.values()) > 20


@pytest.mark.slow
def test_a_run_repeats_itself(lab):
    """Otherwise everything would make a difference."""
    for base in BASES:
        lab(base)  # a process finds out once how a model may be run
        a, b = (lab.run(base, {}, None, lab.folder / f"{name}-{base}") for name in ("again", "once-more"))
        assert runs.trajectory(a.path) == runs.trajectory(b.path) and not learns(a, b) and not unequal(a.first, b.first)
        assert not a.error and (a.decodes, a.workers, a.kept, a.sdpa) == (b.decodes, b.workers, b.kept, b.sdpa)


@pytest.mark.slow
@pytest.mark.parametrize("key", ENTRIES)
def test_it_changes(key, lab):
    effect = ENTRIES[key]
    top, _, rest = key.partition(".")
    kind, _, name = rest.partition(".")
    base = kind if top == "stages" else effect.base
    place = key
    if top == "stages":
        place = S + name.replace("parts.", "parts.0.").replace("rules.", "rules.0.")
    elif top == "tasks":
        place = f"tasks.0.{rest}"
    before = lab(base, effect.also, effect.patch)
    assert not before.error, before.error
    for value in effect.to if effect.each and isinstance(effect.to, list) else [effect.to]:
        change = effect.instead if effect.instead is not None else {place: value}
        after = lab(base, merged(effect.also, change), effect.patch)
        assert effect.seen(before, after), f"{change}: {effect.why}: not so. {after.error}"
        ignored = dataclasses.replace(before, data=after.data)
        assert not effect.seen(before, ignored), f"{change}: this would be seen without an effect, too"


def merged(also, change):
    """The changes, one after the other: a change inside what `also` gives follows it."""
    return {**{k: v for k, v in also.items() if k not in change}, **change}


# -- what an entry can't say ----------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_what_chooses_tokens_says_how_many(lab):
    """Of groups with spread a quarter, or what of it has a covariance above 0 or in the band."""
    twice = {S + "epochs": 2}  # KL-Cov's penalty has no gradient where nothing has moved
    none = lab("rl", twice)
    for name, change in (
        ("credit/token_share", {S + "settings": {"entropy_share": 0.25}}),
        ("chosen_share", {S + "algorithm": "kl-cov", S + "settings": {"share": 0.25}}),
        ("chosen_share", {S + "algorithm": "clip-cov", S + "settings": {"share": 0.25, "low": 0.0, "high": 50.0}}),
    ):
        ran = lab("rl", twice | change)
        assert none.metric(name) == [None] * len(none.steps)
        assert all(0 < share < 0.35 for share in ran.metric(name)), ran.metric(name)
        assert learns(none, ran)


@pytest.mark.slow
def test_credit_of_actions_is_not_that_of_turns(lab):
    """A chunk of actions and a turn are one call of the policy each, so those two agree."""
    action, chunk, turn = (lab("rl", {**PPO, S + "credit": c}, with_actions) for c in ("action", "chunk", "turn"))
    assert credit(action, turn) and not credit(chunk, turn) and not learns(chunk, turn)
