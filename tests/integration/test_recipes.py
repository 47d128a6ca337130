"""The run files of published systems: each is what its page says, and runs as it stands on a tiny model and the samples."""

import json
import math
import re
from pathlib import Path

import pytest

import runs
from browsers import no_browser
from mmrl.config.load import load_config
from mmrl.train.resolve import resolve
from mmrl.train.sampling.rules import plugin_rules
from mmrl.train.smoke import smoke
from mmrl.train.smoke_proof import told, unproved
from sandboxes import no_plots

pytestmark = pytest.mark.forks

ROOT = Path(__file__).parents[2]
RECIPES = sorted((ROOT / "configs" / "recipes").glob("*.toml"))
PAGES = "\n".join(page.read_text() for page in sorted((ROOT / "docs" / "recipes").glob("*.md")))


@pytest.fixture(autouse=True)
def here(monkeypatch):
    monkeypatch.chdir(ROOT)  # the samples are named from there
    monkeypatch.delenv("MMRL_PLUGIN_FILES", raising=False)


def test_there_is_one_for_each_system_and_a_place_for_each_on_the_page():
    names = {path.stem for path in RECIPES}
    assert names >= {
        *("vlm-r1-rec", "vlm-r1-ovd", "vision-r1", "visurf", "jigsaw-r1", "cls-rl", "no-thinking-rl", "ssl4rl", "rewardmap"),
        *("rrvf", "rlrf", "vlaa-thinking", "r1-reward", "generalpoints", "uav-vl-r1", "maye", "ttrv", "modomodo"),
        *("synthrl", "spark", "mmedagent-rl", "metis-rise", "co-reward", "drm"),
        *(
            "rl4vla",
            "rlinf-vla-ppo",
            "rlinf-vla-grpo",
            "simplevla-rl",
            "vla-rl",
            "vla-opd",
            "pi-rl",
            "llarp",
            "resfit",
            "recap",
            "rlpd",
            "pa-rl",
        ),
        *(
            "vlac-critic",
            "vlac",
            "vlm-rm",
            "vlm-rl",
            "rl-vlm-f",
            "human2sim2robot",
            "ript-vla",
            "simplevla-rl-libero",
            "openvla-oft-libero",
        ),
        *("gui-g1", "uishift", "digirl", "webwise", "vsc-rl", "archer"),
        *("deepeyes", "pixel-reasoner", "v-irl"),
        *("temporal-r1", "seed-bench-r1", "video-rts", "videossr", "video-r1", "time-r1", "v-reason"),
        "r1-aqa",
    }
    headings = re.findall(r"^## `([^`]+)`", PAGES, re.MULTILINE)
    assert sorted(headings) == sorted(names)
    for name in names:
        text = PAGES.partition(f"\n## `{name}`\n")[2].partition("\n## ")[0]
        assert "**Reproduced**" in text and "**Not reproduced**" in text and "**You bring**" in text, name


LIBERO = ROOT / ".simulators" / "libero"
"""Where `make simulators` puts it."""
BROWSER = ("digirl", "webwise", "vsc-rl", "archer")
"""Those that are played in a browser."""
LEARNED = ("rl", "distill", "preference", "off-policy", "recap")
"""The kinds of stages whose steps have scores."""
SANDBOX = ("rrvf",)
"""Those whose programs run in a sandbox."""
EVERYDAY = ("vlm-r1-rec", "jigsaw-r1", "gui-g1", "resfit")
"""An answer in words, a puzzle, a screen, a robot. The others run with the long tests."""
LONG = ("v-irl", "simplevla-rl-libero", "webwise", "rl4vla", "rlinf-vla-grpo", "ript-vla", "videossr")
"""Those that take a quarter of a minute or more; another one has the same world."""


def lacking(recipe):
    """Why a recipe can't run here, or an empty text."""
    if recipe in BROWSER:
        return no_browser()
    return no_plots() if recipe in SANDBOX else ""


MARKS = dict.fromkeys(EVERYDAY, ()) | dict.fromkeys(LONG, (pytest.mark.slow, pytest.mark.exhaustive))


@pytest.mark.parametrize(
    "path",
    [pytest.param(p, marks=pytest.mark.slow if p.stem in ("rewardmap", "vlac-critic") else ()) for p in RECIPES],
    ids=lambda p: p.stem,
)
def test_it_is_named_after_its_file_and_says_so_at_its_top(path):
    if why := lacking(path.stem):
        pytest.skip(why)
    config = load_config(path)
    first = path.read_text().splitlines()[0]
    assert config.name == path.stem and first.startswith("# ") and "(" in first, "what it is, with the paper"
    assert not config.policy.model.startswith("tiny:"), "it names the real model"
    resolve(config)


def test_systems_with_public_settings_have_them():
    """SFTvsRL @5a6ea55: rl/configs/llama_gp_vl.yaml, 2 x 1,024 answers an update. MAYE @af35b9a and r1_reward @3693413: their
    scripts train_ppo_vllm_distributed.sh, configs/full_ppo_vllm_distributed.yaml and train.sh."""
    points, maye, judged = (
        load_config(ROOT / "configs" / "recipes" / f"{n}.toml") for n in ("generalpoints", "maye", "r1-reward")
    )
    ppo = points.stages[1]
    assert ppo.settings == {"gamma": 0.9, "lam": 0.95, "clip_low": 0.1, "clip_high": 0.1} and ppo.credit == "turn"
    assert (ppo.epochs, ppo.minibatches, ppo.steps, ppo.learning_rate, ppo.max_grad_norm) == (4, 2, 20, 1e-6, 0.01)
    assert (ppo.critic.clip_range, ppo.critic.value_coef, ppo.critic.hidden_sizes) == (0.1, 0.5, [1024, 512])
    assert (ppo.entropy_coef, points.generate.temperature, points.generate.max_tokens) == (0.0, 0.2, 512)
    only = maye.stages[0]
    assert (only.learning_rate, only.kl_coef, only.kl_in, only.beta2, only.weight_decay) == (5e-6, 1e-3, "loss", 0.95, 0.01)
    assert (only.prompts_per_step, only.minibatches, only.group_size) == (128 * 7, 128 // 4, 1)
    assert {part.match for part in only.parts if part.freeze} == {"vision", "projector"}
    assert maye.tasks[0].verifiers["vqa/reward@maye"] == 1.0 and maye.tasks[0].verifiers["vqa/reflection@maye"] == 0.0
    stage = judged.stages[0]
    assert (stage.group_size, stage.prompts_per_step, stage.minibatches, stage.learning_rate) == (1, 256, 2, 3e-7)
    assert (stage.settings["baseline"], stage.kl_coef, stage.kl_in, stage.kl_estimator) == ("batch", 1e-3, "reward", "k1")


PUBLISHED = {
    # run_qwen_vision_r1.sh, Jigsaw-R1's README, b2n.sh: transformers' linear schedule; 8 devices of a prompt, two accumulated
    "vision-r1": [("linear", 1e-6, 0.5), ("linear", 5e-7, 0.0)],
    "jigsaw-r1": [("linear", 1e-6, 0.5), ("linear", 5e-7, 0.0)],
    "cls-rl": [{"prompts_per_step": 16, "schedule": "linear", "steps": 50 * 96 // 16}],
    "no-thinking-rl": [{"prompts_per_step": 16, "schedule": "linear", "steps": 50 * 96 // 16}],
    # openrlhf/cli/train_ppo_ray.py and ppo_actor.py of each: adam_betas, lr_warmup_ratio and min_lr
    "r1-reward": [("cosine", 3e-7, 0.1), {"beta2": 0.95, "warmup_steps": math.ceil(0.03 * 195)}],
    "spark": [("cosine", 5e-7, 0.1), {"beta2": 0.95, "warmup_steps": math.ceil(0.03 * 594)}],
    # verl's fsdp_workers.py (0.01 if nothing is said), visionreasoner_7b.yaml, reward_map.yaml, run_corewarding-I.sh
    **{key: [{"weight_decay": 0.01}] for key in ("deepeyes", "ssl4rl", "visurf", "simplevla-rl", "simplevla-rl-libero")},
    "rewardmap": [{"weight_decay": 0.01}] * 2,
    "co-reward": [{"weight_decay": 0.01, "warmup_steps": 115 // 10}],
    # openvla/vla-scripts/finetune.py and openvla_train.py: torch's AdamW
    "rl4vla": [{"weight_decay": 0.01}] * 2,
    # train_rl_vllm_ray_fsdp.sh: 10 x 128 steps of a device in batches of 16
    "vla-rl": [{"minibatches": 10 * 128 // 16, "learning_rate": 5e-6}],
    # maniskill_grpo_openvlaoft: 256 environments of 80 / 8 chunks in batches of 640; libero_spatial_ppo_openpi
    "rlinf-vla-grpo": [{"minibatches": 256 * 10 // 640, "max_grad_norm": 10.0, "weight_decay": 0.01}],
    "pi-rl": [{"weight_decay": 0.01, "beta2": 0.95, "minibatches": 512 * 48 // 2048}],
    "ript-vla": [{}, {"weight_decay": 1e-4, "dynamic_sampling": 4}],
    "llarp": [{"max_grad_norm": 0.2, "settings": {"gamma": 0.99, "lam": 0.95, "whiten": False}}],
    # of 1,200 steps of a cosine of 260,000 / 8, the rate is that of the beginning
    "video-r1": [{"schedule": "constant", "weight_decay": 0.01, "max_grad_norm": 5.0}],
    "v-reason": [{"schedule": "constant", "weight_decay": 0.01, "max_grad_norm": 5.0}],
}
"""Optimiser's settings of each stage, read in the public scripts."""


@pytest.mark.parametrize("name", PUBLISHED)
def test_the_optimiser_is_that_of_the_published_script(name):
    stages = load_config(ROOT / "configs" / "recipes" / f"{name}.toml").stages
    several = len(stages) > 1
    for i, wanted in enumerate(PUBLISHED[name]):
        stage = stages[i if several else 0]
        if isinstance(wanted, tuple):
            wanted = dict(zip(("schedule", "learning_rate", "min_lr_ratio"), wanted, strict=True))
        assert {key: getattr(stage, key) for key in wanted} == wanted


def test_adapters_lengths_and_pictures_are_those_of_the_published_scripts():
    """RL4VLA and VLA-RL: lora_alpha = min(rank, 16); RLinf: rank. SEED-Bench-R1: grpo.sh names no length, and TRL's is 256.
    Video-R1: MAX_PIXELS and VIDEO_MAX_PIXELS of its vision_process.py."""
    found = {
        name: load_config(ROOT / "configs" / "recipes" / f"{name}.toml")
        for name in ("rl4vla", "vla-rl", "rlinf-vla-ppo", "rlinf-vla-grpo", "seed-bench-r1", "no-thinking-rl", "video-r1")
    }
    alphas = {name: config.policy.lora.alpha for name, config in found.items() if config.policy.lora}
    assert alphas == {"rl4vla": 16, "vla-rl": 16, "rlinf-vla-ppo": 32, "rlinf-vla-grpo": 32}
    assert (found["seed-bench-r1"].generate.max_tokens, found["no-thinking-rl"].generate.max_tokens) == (256, 1024)
    video = found["video-r1"].policy
    assert (video.max_pixels, video.video.max_pixels, video.video.max_frames) == (256 * 28 * 28, 128 * 28 * 28, 16)


def test_pivot_has_the_settings_of_its_script():
    """PIVOT @5bd57fb, scripts/train/stage2-dpo.sh: 8 devices of 1 pair, 32 steps accumulated, 3 epochs of 20,000 pairs, 3% of
    warm-up, alpha 1 and gamma 0."""
    (stage,) = load_config(ROOT / "configs" / "recipes" / "pivot.toml").stages
    assert (stage.loss, stage.beta, stage.nll_weight, stage.learning_rate, stage.schedule) == ("dpo", 0.1, 0.0, 1e-6, "cosine")
    assert stage.prompts_per_step == 8 * 1 * 32 and stage.steps == 3 * 20_000 // 256 and not stage.parts
    assert stage.warmup_steps == math.ceil(0.03 * stage.steps) and (stage.weight_decay, stage.max_grad_norm) == (0.0, 1.0)


def test_r1_aqa_has_the_settings_of_its_script():
    """R1-AQA @5d24f31: src/train.py, with TRL 0.15.2's defaults (its requirements.txt): beta 0.04, lr 1e-6, 256 tokens."""
    config = load_config(ROOT / "configs" / "recipes" / "r1-aqa.toml")
    (stage,), (task,) = config.stages, config.tasks
    assert (stage.steps, stage.group_size, stage.prompts_per_step) == (1000, 8, 8 * 1 * 2)
    assert (stage.learning_rate, stage.schedule, stage.kl_coef, stage.parts) == (1e-6, "linear", 0.04, [])
    assert (config.seed, config.generate.temperature, config.generate.max_tokens) == (42, 1.0, 256)
    assert config.policy.model == "Qwen/Qwen2-Audio-7B-Instruct" and task.id == "audio/choice-data@r1-aqa"
    weights = {name: weight for name, (weight, _) in resolve(config).weights[task.label].items()}
    assert weights == {"audio/accuracy@r1-aqa": 1.0, "audio/format@r1-aqa": 1.0}


def test_systems_with_tools_have_their_published_settings():
    """DeepEyes @6c5e796: examples/agent/final_merged_v1v8_thinklite.sh. Pixel Reasoner @a3a6c3a: the README's figures, and the
    weights of section 4.2."""
    deepeyes, pixel = (load_config(ROOT / "configs" / "recipes" / f"{n}.toml") for n in ("deepeyes", "pixel-reasoner"))
    stage = deepeyes.stages[0]
    assert (stage.prompts_per_step, stage.group_size, stage.learning_rate, stage.kl_coef) == (256, 16, 1e-6, 0.0)
    assert (deepeyes.generate.max_tokens, deepeyes.generate.max_turns, deepeyes.generate.max_context) == (10240, 5, 8192 + 20480)
    imitation, stage = pixel.stages
    assert (imitation.batch_size, imitation.learning_rate, imitation.schedule) == (16, 1e-6, "cosine")
    assert {part.match for part in imitation.parts if part.freeze} == {"vision", "projector"} and imitation.warmup_steps == 10
    assert (stage.prompts_per_step * stage.group_size, stage.group_size, stage.minibatches) == (512, 8, 2)
    assert (stage.schedule, stage.min_lr_ratio, stage.beta2, stage.warmup_steps) == ("cosine", 0.5, 0.95, 9)
    assert plugin_rules(stage)[0].settings == {"threshold": 0.3, "most": 1, "alpha": 0.5, "beta": 0.05, "form": "paper"}


def test_systems_for_video_have_the_rules_that_they_publish():
    """The figures are those of Video-R1's trainer and Temporal-R1's code."""
    video, temporal = (load_config(ROOT / "configs" / "recipes" / f"{name}.toml") for name in ("video-r1", "temporal-r1"))
    length, (order,) = video.stages[0].length, plugin_rules(video.stages[0])
    assert (length.bonus, length.min_tokens, length.max_tokens, length.correct_above) == (0.2, 320, 512, 0.1)
    assert (order.bonus, order.ratio, order.share, order.above) == (0.3, 0.8, 0.5, 0.1)
    assert length.verifier == order.verifier == "video/answer@video-r1" in video.tasks[0].verifiers
    setup = resolve(temporal)
    weights = {label: {v: w for v, (w, _) in found.items()} for label, found in setup.weights.items()}
    assert weights["when"] == {"video/tiou@temporal-r1": 0.5, "video/format@temporal-r1": 0.5}
    assert weights["what"] == {"video/answer": 1.0, "video/format": 0.1}
    left = {label: setup.prompts(0, label) for label in setup.tasks}
    ids = {label: sorted(found[i].id for i in range(len(found))) for label, found in left.items()}
    assert ids == {"when": ["train-0-0"], "what": ["train-0-0", "train-0-3"]}, "one that is always right is left out"


@pytest.mark.parametrize(
    "path", [pytest.param(p, marks=MARKS.get(p.stem, (pytest.mark.slow,))) for p in RECIPES], ids=lambda p: p.stem
)
def test_it_runs_with_smoke(path, tmp_path, monkeypatch):
    if why := lacking(path.stem):
        pytest.skip(why)
    shorter = []
    if path.stem.endswith("-libero"):
        if not (LIBERO / "installed").is_file():
            pytest.skip("LIBERO is not installed: make simulators")
        monkeypatch.setenv("MMRL_LIBERO_PYTHON", str(LIBERO / "bin" / "python"))
        shorter = [f"tasks.0.options.{option}" for option in ("max_steps=3", "size=32", "task=0")]  # of hundreds of steps
        shorter += ["simulate.num_envs=1", "evaluate.num_prompts=1"]  # a process starts in 10 s, and a step takes 0.4
    config = smoke(load_config(path, [f"runs_dir={tmp_path}", *shorter]))
    folder = runs.run(config)
    summary = json.loads((folder.path / "summary.json").read_text())
    assert summary["steps"] == sum(s.steps for s in config.stages) and summary["last"].keys() == {t.label for t in config.tasks}
    rows = [row for row in runs.rows(folder) if row.get("stage") in LEARNED and "metrics" in row]
    assert rows and all(r["metrics"].get("judge/failed_share", 0) == 0 for r in rows)
    assert all("reward/mean" in r["metrics"] for r in rows if r["stage"] == "rl")
    assert [found["stage"] for found in summary["smoke"]] == list(range(1, len(config.stages) + 1))
    assert not unproved(summary["smoke"]), told(summary["smoke"])
