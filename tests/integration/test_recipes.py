"""The run files of published systems: each is what its page says, and runs as it stands on a tiny model and the samples."""

import json
import math
import re
from pathlib import Path

import pytest

import runs
from browsers import no_browser
from mmrl.algorithms.presets import load_algorithm, with_defaults
from mmrl.config.load import load_config
from mmrl.config.sections import RlStage
from mmrl.run_folder.reader import read_run
from mmrl.train.resolve import resolve
from mmrl.train.sampling.rules import plugin_rules
from mmrl.train.smoke import smoke
from mmrl.train.smoke_shows import figures, seen, told, unproved
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
        *("papo", "vppo", "noisyrollout", "visual-rft", "synthrl", "spark", "mmedagent-rl", "metis-rise", "co-reward", "drm"),
        *(
            "rl4vla",
            "rlinf-vla-ppo",
            "rlinf-vla-grpo",
            "simplevla-rl",
            "vla-rl",
            "vla-opd",
            "pi-rl",
            *("dppo", "dppo-robomimic"),
            "llarp",
            "resfit",
            "recap",
            "hg-dagger",
            "rlpd",
            "crossq",
            "hil-serl",
            "pa-rl",
            *("dsrl", "dsrl-na"),
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


LIBERO, ROBOSUITE = ROOT / ".simulators" / "libero", ROOT / ".simulators" / "robosuite"
"""Where `make simulators` puts them."""
BROWSER = ("digirl", "webwise", "vsc-rl", "archer")
"""Those that are played in a browser."""
LEARNED = ("rl", "distill", "preference", "off-policy", "recap", "hg-dagger")
"""The kinds of stages whose steps have scores."""
SANDBOX = ("rrvf",)
"""Those whose programs run in a sandbox."""
EVERYDAY = ("vlm-r1-rec", "jigsaw-r1", "gui-g1", "resfit")
"""An answer in words, a puzzle, a screen, a robot. The others run with the long tests."""
LONG = ("v-irl", "simplevla-rl-libero", "dppo-robomimic", "webwise", "rl4vla", "rlinf-vla-grpo", "ript-vla", "videossr")
LONG += ("dsrl-na",)
"""Those that take a quarter of a minute or more; another one has the same world."""


BY_REWARD = {
    *("cls-rl", "gui-g1", "jigsaw-r1", "maye", "mmedagent-rl", "modomodo", "no-thinking-rl", "r1-aqa", "r1-v", "rewardmap"),
    *("rlrf", "seed-bench-r1", "ssl4rl", "synthrl", "temporal-r1", "time-r1", "uav-vl-r1", "uishift", "video-rts"),
    *("videossr", "vision-r1", "visual-rft", "vlaa-thinking", "vlm-r1-ovd", "vlm-r1-rec", "webwise"),
}
"""Those that are named after rewards, prompts, data or the order of stages: gold completions show that the rewards are told
apart."""
EVALUATES = {"openvla-oft-libero"}
"""Those that only evaluate."""


def test_each_says_what_its_smoke_run_shows_or_is_named_after_its_reward():
    silent = {path.stem for path in RECIPES if not load_config(path).smoke_shows}
    assert silent == BY_REWARD | EVALUATES


def lacking(recipe):
    """Why a recipe can't run here, or an empty text."""
    if recipe in BROWSER:
        return no_browser()
    return no_plots() if recipe in SANDBOX else ""


OFF = {"spark": ("stages.0.rules=[]",), "vppo": ("stages.0.settings.share=1.0",)}
"""Recipe -> what switches off the mechanism that the first of its `smoke_shows` shows, where no key of the stage does, which
`test_effects.py` would try."""
ALIKE = {"visurf": {"grounding/non-repeat@vision-reasoner"}}
"""Recipe -> rewards that gold completions and others earn alike."""


def recorded(folder):
    """The recorded rollouts: their `source` and the parts of their rewards."""
    texts = [file.read_text() for file in folder.path.glob("rollouts/step-*.jsonl")]
    return [(row["source"], row["score"]["parts"]) for text in texts for row in map(json.loads, text.splitlines())]


def alike(folder, names):
    """Those of these rewards that gold completions and others earn alike."""
    rows = recorded(folder)
    names = {name for source, parts in rows if source == "gold" for name in parts.keys() & names}
    return {name for name in names if len({parts[name] for _, parts in rows if name in parts}) == 1}


def norms(folder):
    """Those of the gradients of each step."""
    return [row["metrics"]["grad_norm"] for row in runs.rows(folder) if "metrics" in row]


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
    only = with_defaults(maye.stages[0])
    assert (only.learning_rate, only.kl_coef, only.beta2, only.weight_decay) == (5e-6, 1e-3, 0.95, 0.01)
    assert (only.kl_in, only.kl_estimator) == ("loss", "k3"), "KL_REWARD_COEFF is 0; maye/rlhf/loss/ppo.py"
    assert (only.prompts_per_step, only.minibatches, only.group_size) == (128 * 7, 128 // 4, 1)
    assert {part.match for part in only.parts if part.freeze} == {"vision", "projector"}
    assert maye.tasks[0].verifiers["vqa/reward@maye"] == 1.0 and maye.tasks[0].verifiers["vqa/reflection@maye"] == 0.0
    stage = judged.stages[0]
    assert (stage.group_size, stage.prompts_per_step, stage.minibatches, stage.learning_rate) == (1, 256, 2, 3e-7)
    assert (stage.settings["baseline"], stage.kl_coef, stage.kl_in, stage.kl_estimator) == ("batch", 1e-3, "reward", "k1")


TOKEN_MEAN = {"normalise": "token", "epsilon": 1e-6}
VERL = {"weight_decay": 0.01, "beta2": 0.999, "max_grad_norm": 1.0, "epochs": 1, "kl_in": "loss", "kl_estimator": "k3"}
VERL |= {"entropy_coef": 0.0, "settings": TOKEN_MEAN}
"""What verl's scripts leave to its ppo_trainer.yaml, core_algos.py and fsdp_workers.py: loss_agg_mode token-mean, low_var_kl."""
PUBLISHED = {
    # run_qwen_vision_r1.sh, Jigsaw-R1's README, b2n.sh: transformers' linear schedule; 8 devices of a prompt, two accumulated
    "vision-r1": [("linear", 1e-6, 0.5), ("linear", 5e-7, 0.0)],
    "jigsaw-r1": [("linear", 1e-6, 0.5), ("linear", 5e-7, 0.0)],
    "visual-rft": [{"prompts_per_step": 8 * 2, "schedule": "linear", "steps": 2 * 6000 // 16, "kl_coef": 0.04, "group_size": 8}],
    "cls-rl": [{"prompts_per_step": 16, "schedule": "linear", "steps": 50 * 96 // 16}],
    "no-thinking-rl": [{"prompts_per_step": 16, "schedule": "linear", "steps": 50 * 96 // 16}],
    # openrlhf/cli/train_ppo_ray.py and ppo_actor.py of each: adam_betas, lr_warmup_ratio and min_lr
    "r1-reward": [("cosine", 3e-7, 0.1), {"beta2": 0.95, "warmup_steps": math.ceil(0.03 * 195)}],
    # Spark @bc47b93: batches of 64 of 64 x 8 answers and, after these, of as many to recycled prompts; use_kl_loss, k3
    "spark": [
        {"schedule": "cosine", "learning_rate": 5e-7, "min_lr_ratio": 0.1, "beta2": 0.95, "warmup_steps": math.ceil(0.03 * 594)}
        | {"minibatches": 2 * 64 * 8 // 64, "kl_coef": 1e-3, "kl_in": "loss", "kl_estimator": "k3"}
        | {"settings": {"normalise": "token", "epsilon": 1e-9}}
    ],
    # verl's fsdp_workers.py: 0.01 if nothing is said
    **{key: [{"weight_decay": 0.01}] for key in ("simplevla-rl", "simplevla-rl-libero")},
    # SSL4RL @57c830a: run_mmbench_position.sh; DeepEyes @6c5e796; Co-rewarding @6c60ea4: run_corewarding-I.sh, whose loss is the
    # sum of two; RRVF's README thanks verl and DeepEyes. Clipping at 3 shows where a step has several mini-batches
    "ssl4rl": [VERL | {"minibatches": 512 // 128, "kl_coef": 0.01, "settings": TOKEN_MEAN | {"dual_clip": 3.0}}],
    "deepeyes": [VERL | {"minibatches": 1, "kl_coef": 0.0}],
    "co-reward": [VERL | {"minibatches": 1, "kl_coef": 0.005, "warmup_steps": 115 // 10, "max_grad_norm": 1 / 2}],
    "rrvf": [VERL],
    # PAPO @fb63bf4: qwen2_5_vl_3b_grpo_papo.sh; VPPO @26d5ae4: train_vppo_7b.sh; NoisyRollout @09347dd: the script of Geometry3K;
    # with their config.yaml and the defaults of their workers/actor/config.py: clip_ratio_low, _high and _dual, entropy_coeff
    "papo": [
        VERL
        | {"prompts_per_step": 384, "minibatches": 384 // 128, "group_size": 5, "kl_coef": 0.01, "steps": 2 * (38_870 // 384)}
        | {"settings": TOKEN_MEAN | {"clip_low": 0.2, "clip_high": 0.3, "dual_clip": 3.0}}
    ],
    "vppo": [
        VERL
        | {"prompts_per_step": 384, "minibatches": 384 // 128, "group_size": 8, "kl_coef": 0.0, "entropy_penalty": 0.06}
        | {"settings": {"share": 0.4, "least": 0.9, "epsilon": 1e-6, "clip_low": 0.2, "clip_high": 0.28, "dual_clip": 3.0}}
    ],
    "noisyrollout": [
        VERL
        | {"prompts_per_step": 512, "minibatches": 512 // 128, "group_size": 6, "kl_coef": 0.0, "entropy_coef": 1e-3}
        | {"steps": 15 * (2101 // 512)}
    ],
    # EasyR1, before it had a second clip: SynthRL @b4a6aab, whose loss has no entropy; Temporal-R1 @f364f6c, Seg-Zero @42a3345
    # (VisionReasoner) and RewardMap @15428ac: entropy_coeff = 1e-3 of workers/actor/config.py; the last has micro-batches of one
    "synthrl": [VERL | {"minibatches": 512 // 128, "kl_coef": 0.0, "prompts_per_step": 512}],
    "temporal-r1": [VERL | {"minibatches": 1, "kl_coef": 0.01, "entropy_coef": 1e-3}],
    "visurf": [VERL | {"minibatches": 1, "kl_coef": 0.01, "entropy_coef": 1e-3}],
    "rewardmap": [VERL | {"minibatches": 1, "kl_coef": 0.01, "entropy_coef": 1e-3, "settings": {"epsilon": 1e-6}}] * 2,
    # openvla/vla-scripts/finetune.py and openvla_train.py: torch's AdamW
    "rl4vla": [{"weight_decay": 0.01}] * 2,
    # train_rl_vllm_ray_fsdp.sh: 10 x 128 steps of a device in batches of 16
    "vla-rl": [{"minibatches": 10 * 128 // 16, "learning_rate": 5e-6}],
    # maniskill_grpo_openvlaoft: 256 environments of 80 / 8 chunks in batches of 640; libero_spatial_ppo_openpi
    "rlinf-vla-grpo": [{"minibatches": 256 * 10 // 640, "max_grad_norm": 10.0, "weight_decay": 0.01}],
    "pi-rl": [{"weight_decay": 0.01, "beta2": 0.95, "minibatches": 512 * 48 // 2048}],
    "ript-vla": [{}, {"weight_decay": 1e-4, "dynamic_sampling": 4}],
    "llarp": [{"max_grad_norm": 0.2, "settings": {"gamma": 0.99, "lam": 0.95, "whiten": False}}],
    # 1_cansorting_residual_rl.sh with config/rlpd.py; agents/continuous/openvla.py with configs/base_config.py
    "resfit": [{"weight_decay": 0.01, "max_grad_norm": 1.0, "hidden": [1024] * 2, "gamma": 0.995, "n_step": 5, "updates": 4}],
    # hil-serl @5d02aed: examples/experiments/config.py; utils/launcher.py, make_sac_pixel_agent
    "hil-serl": [
        {"learning_rate": 3e-4, "batch_size": 256, "updates": 2, "gamma": 0.97, "critics": 2, "subset": 2, "hidden": [256] * 2}
        | {"capacity": 200_000, "starts_after": 100, "start_temperature": 1e-2, "backup_entropy": False, "target_rate": 5e-3}
    ],
    # CrossQ @a318a26: train.py -algo crossq; RLinf @0792d14: realworld_pnp_dagger_openpi.yaml, whose rate is 1e-5
    "crossq": [
        {"learning_rate": 1e-3, "beta1": 0.5, "beta2": 0.999, "updates": 1, "critics": 2, "hidden": [2048] * 2, "gamma": 0.99}
        | {"starts_after": 5000, "capacity": 10**6, "batch_size": 256, "backup_entropy": True, "start_temperature": 1.0}
    ],
    "hg-dagger": [
        {"updates": 1, "batch_size": 32, "beta2": 0.95, "weight_decay": 1e-10, "max_grad_norm": 4.0, "warmup_steps": 20}
    ],
    # dsrl_pi0 @7f48937: run_real.sh, launch_train_real.py and train_utils_real.py
    "dsrl": [
        {"updates": 30, "batch_size": 256, "learning_rate": 1e-4, "critic_learning_rate": 3e-4, "gamma": round(0.99**10, 3)}
        | {"capacity": 500_000 // 30, "critics": 2, "subset": 2, "hidden": [1024] * 3, "target_entropy": 0.0}
        | {"start_temperature": 1.0, "backup_entropy": False, "target_rate": 5e-3}
    ],
    # ajwagen/dsrl: cfg/robomimic/dsrl_can.yaml, of whose steps each is one in 4 environments
    "dsrl-na": [
        {"updates": 20 // 4, "batch_size": 256, "learning_rate": 3e-4, "gamma": 0.99, "critics": 2, "subset": 2}
        | {"hidden": [2048] * 3, "target_entropy": 0.0, "backup_entropy": True, "target_rate": 5e-3, "starts_after": 1501 * 4}
    ],
    "pa-rl": [{"learning_rate": 2e-5, "weight_decay": 0.0, "conservative": 0.005, "high": 100.0, "low": 0.0, "bins": 128}],
    # cfg/robomimic/finetune/can/ft_ppo_diffusion_unet_img.yaml: 50 environments of 300 calls of 4 steps, 300 an episode
    "dppo-robomimic": [
        {"steps": 151, "prompts_per_step": 50 * 300 * 4 // 300, "minibatches": 200 * 75 * 5 // (500 * 15), "epochs": 10}
        | {"learning_rate": 5e-5, "weight_decay": 0.0, "warmup_steps": 10}
    ],
    # CrossEmbodimentPPOLSTM.yaml; kube/job.yaml; libero_spatial_opd_openvlaoft: 512 episodes of 240 / 8 chunks, 4,096 a batch
    "human2sim2robot": [{"learning_rate": 1e-4, "epochs": 4, "minibatches": 4, "settings": {"gamma": 0.998, "lam": 0.95}}],
    "vlm-rm": [{"settings": {"gamma": 0.95, "lam": 0.95}}],
    "vla-opd": [{"weight_decay": 0.01, "group_size": 8, "steps": 200 * 512 * 30 // 4096, "learning_rate": 2e-6}],
    # TTRV @b9cf778: examples/ttrv/run.sh and its log of 500 questions in updates of one; VideoSSR @b0d2acb: train.sh. Both: verl
    "ttrv": [
        {"steps": 2 * 500 // 4, "prompts_per_step": 4, "minibatches": 4, "group_size": 16, "voters": 32 / 16}
        | {"learning_rate": 5e-7, "schedule": "cosine", "warmup_steps": int(0.03 * 250), "weight_decay": 0.01, "kl_coef": 1e-3}
        | {"settings": {"normalise": "token", "epsilon": 1e-6, "dual_clip": 3.0}}
    ],
    "videossr": [
        {"steps": 30_000 // 64, "group_size": 8, "weight_decay": 0.01, "kl_coef": 1e-3, "schedule": "constant"}
        | {"settings": {"normalise": "token", "epsilon": 1e-6}}
    ],
    # RLRF, section 4.1, as prefix-rl's config_svg_rlrf_7b.yaml and DebdanSamanta02/rlrf's config.py quote it
    "rlrf": [
        {"steps": 3 * 1_700_000 // 1024, "batch_size": 1024, "learning_rate": 1e-5},
        {"steps": 500, "prompts_per_step": 32, "group_size": 64, "kl_coef": 0.0}
        | {"schedule": "linear", "learning_rate": 1e-5, "min_lr_ratio": round(0.7**4, 2)}
        | {"settings": {"scale": "none", "clip_low": 0.4, "clip_high": 0.4}},
    ],
    # VSC_RL @401d793: scripts/config/main/default.yaml and vscrl_online.yaml
    "vsc-rl": [
        {"algorithm": "digirl", "steps": 100, "prompts_per_step": 16, "group_size": 1, "max_grad_norm": 0.01, "kl_coef": 0.0}
        | {"settings": {"gamma": 0.5, "margin": 0.05}}
    ],
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
        stage = with_defaults(stage) if isinstance(stage, RlStage) else stage
        if isinstance(wanted, tuple):
            wanted = dict(zip(("schedule", "learning_rate", "min_lr_ratio"), wanted, strict=True))
        assert {key: getattr(stage, key) for key in wanted} == wanted


AVERAGED = {
    # agg_loss or masked_mean of verl, EasyR1 and OpenRLHF over a micro-batch of several answers; MAYE's and Time-R1's own
    **dict.fromkeys(("ssl4rl", "deepeyes", "co-reward", "synthrl", "temporal-r1", "visurf", "videossr", "ttrv"), "token"),
    **dict.fromkeys(("spark", "pixel-reasoner", "maye", "time-r1", "papo", "vppo", "noisyrollout"), "token"),
    # trainers that are made of TRL's first ones; R1-Reward's loss.py; EasyR1 with one answer in a micro-batch
    **dict.fromkeys(
        ("vlm-r1-rec", "vision-r1", "jigsaw-r1", "cls-rl", "no-thinking-rl", "seed-bench-r1", "visual-rft"), "sequence"
    ),
    **dict.fromkeys(("video-r1", "video-rts", "r1-aqa", "uishift", "r1-reward", "rewardmap"), "sequence"),
    "gui-g1": "constant",
}
"""How the published code of each averages its loss over tokens."""


@pytest.mark.parametrize("name", AVERAGED)
def test_losses_are_averaged_as_in_the_published_code(name):
    stages = [s for s in load_config(ROOT / "configs" / "recipes" / f"{name}.toml").stages if isinstance(s, RlStage)]
    assert stages and {load_algorithm(s.algorithm, s.settings).normalise for s in stages} == {AVERAGED[name]}


def test_small_networks_of_robots_have_their_published_settings():
    """Human2Sim2Robot: AsymmetricCritic_mlp.yaml, value_bootstrap. RL-VLM-F: train_batch_size of reward_model.py for pictures
    without a ResNet. PA-RL: Qs of base_config.py differ by up to 100. ResFiT's reward is 1 at success. VLA-OPD:
    temperature_eval."""
    names = ("human2sim2robot", "rl-vlm-f", "pa-rl", "resfit", "vla-opd")
    found = {name: load_config(ROOT / "configs" / "recipes" / f"{name}.toml") for name in names}
    tracked, labelled = found["human2sim2robot"], found["rl-vlm-f"].stages[0].rules[0].options
    assert tracked.stages[0].critic.learning_rate == 5e-5 and tracked.tasks[0].options["time_limit_terminates"]
    assert (labelled["batch_size"], labelled["members"], labelled["epochs"]) == (64, 3, 10)
    chosen, paid = found["pa-rl"], {name: found[name].tasks[0].options["stages"] for name in ("pa-rl", "resfit")}
    assert paid == {"pa-rl": {"success": chosen.stages[0].high}, "resfit": {"success": 1.0}}
    improve, (part,) = chosen.stages[0].improve, chosen.stages[0].parts
    assert (improve.step_size, improve.imitation_temperature, improve.batch_size, part.weight_decay) == (3e-4, 1.0, 16, 0.01)
    assert found["vla-opd"].generate.temperature == found["vla-opd"].evaluate.temperature == 1.6


def test_adapters_lengths_and_pictures_are_those_of_the_published_scripts():
    """RL4VLA, VLA-RL and PA-RL: lora_alpha = min(rank, 16); RLinf: rank. SEED-Bench-R1: grpo.sh names no length, TRL's is 256.
    VisionReasoner: max_response_length of visionreasoner_7b.yaml.
    Video-R1: MAX_PIXELS and VIDEO_MAX_PIXELS of its vision_process.py."""
    found = {
        name: load_config(ROOT / "configs" / "recipes" / f"{name}.toml")
        for name in (
            "rl4vla",
            "vla-rl",
            "pa-rl",
            "rlinf-vla-ppo",
            "rlinf-vla-grpo",
            "seed-bench-r1",
            "no-thinking-rl",
            "video-r1",
            "visurf",
        )
    }
    alphas = {name: config.policy.lora.alpha for name, config in found.items() if config.policy.lora}
    assert alphas == {"rl4vla": 16, "vla-rl": 16, "pa-rl": 16, "rlinf-vla-ppo": 32, "rlinf-vla-grpo": 32}
    lengths = {name: found[name].generate.max_tokens for name in ("seed-bench-r1", "no-thinking-rl", "visurf")}
    assert lengths == {"seed-bench-r1": 256, "no-thinking-rl": 1024, "visurf": 2000}
    video = found["video-r1"].policy
    assert (video.max_pixels, video.video.max_pixels, video.video.max_frames) == (256 * 28 * 28, 128 * 28 * 28, 16)


def test_sampling_shares_and_rewards_are_those_of_the_published_scripts():
    """TTRV's logs of Qwen2.5-VL-3B; RLRF, section 4.1; VideoSSR's pretext_tasks; VLM-R1's grpo_jsonl.py; MMedAgent-RL: 0.5 for
    the format; VSC-RL: the critics of its default.yaml, and its sub-goals are paid as success is."""
    names = ("ttrv", "rlrf", "videossr", "vlm-r1-ovd", "mmedagent-rl", "vsc-rl")
    found = {name: load_config(ROOT / "configs" / "recipes" / f"{name}.toml") for name in names}
    ttrv = found["ttrv"]
    assert (ttrv.generate.temperature, ttrv.generate.max_tokens, ttrv.tasks[0].options["style"]) == (1.5, 1024, "plain")
    assert found["rlrf"].generate.temperature == 1.1
    shares = {task.id.removesuffix("@videossr"): task.weight for task in found["videossr"].tasks}
    assert shares == {"video/anomaly": 12_000 / 6_000, "video/jigsaw": 12_000 / 6_000, "video/counting": 1}
    assert (found["vlm-r1-ovd"].policy.min_pixels, found["vlm-r1-ovd"].policy.max_pixels) == (3136, 12845056)
    assert all(task.verifiers == {"vqa/answer": 1.0, "vqa/format": 0.5} for task in found["mmedagent-rl"].tasks)
    goals = found["vsc-rl"]
    critic = goals.stages[0].turn_critic
    assert (critic.rule, critic.gamma, critic.updates, critic.batch_size) == ("success", 0.5, 5, 4 * 32)
    assert (critic.learning_rate, critic.capacity, critic.top, critic.warmup_steps) == (1e-4, 2000, 0.1, 0)
    assert goals.tasks[0].verifiers == {"gui/success": 1.0, "gui/subgoals": 1.0}
    assert (goals.generate.max_tokens, goals.generate.max_turns, goals.generate.temperature) == (128, 10, 1.0)


def test_pivot_has_the_settings_of_its_script():
    """PIVOT @5bd57fb, scripts/train/stage2-dpo.sh: 8 devices of 1 pair, 32 steps accumulated, 3 epochs of 20,000 pairs, 3% of
    warm-up, alpha 1 and gamma 0."""
    (stage,) = load_config(ROOT / "configs" / "recipes" / "pivot.toml").stages
    assert (stage.loss, stage.beta, stage.nll_weight, stage.learning_rate, stage.schedule) == ("dpo", 0.1, 0.0, 1e-6, "cosine")
    assert stage.prompts_per_step == 8 * 1 * 32 and stage.steps == 3 * 20_000 // 256 and not stage.parts
    assert stage.warmup_steps == math.ceil(0.03 * stage.steps) and (stage.weight_decay, stage.max_grad_norm) == (0.0, 1.0)


def test_mpo_has_the_settings_of_its_script():
    """InternVL @db29b7e, internvl2_8b_internlm2_7b_dynamic_res_mpo_full.sh: 256 devices of 1 pair, 1 epoch, 3% of warm-up, with
    TRL's default beta."""
    (stage,) = load_config(ROOT / "configs" / "recipes" / "mpo.toml").stages
    assert (stage.losses, stage.nll_weight, stage.beta) == ({"dpo": 0.8, "bco": 0.2}, 1.0, 0.1) and stage.reward_shift
    assert (stage.learning_rate, stage.schedule, stage.weight_decay) == (5e-6, "cosine", 0.05) and not stage.parts
    assert stage.prompts_per_step == 256 and stage.steps == math.ceil(750_000 / 256)
    assert stage.warmup_steps == math.ceil(0.03 * stage.steps)


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
    assert (stage.prompts_per_step, stage.group_size, stage.minibatches) == (512, 8, 512 * 8 // 256), "rbuffer counts questions"
    assert (stage.schedule, stage.min_lr_ratio, stage.beta2) == ("cosine", 0.5, 0.95)
    assert stage.warmup_steps == math.ceil(0.03 * stage.steps)
    assert stage.settings == {"scale": "none", "clip_high": 0.35, "normalise": "token"}, "loss.py, experience_maker.py"
    assert (pixel.generate.temperature, pixel.generate.top_p, pixel.generate.top_k) == (1.0, 0.95, 40)
    assert plugin_rules(stage)[0].settings == {"threshold": 0.3, "most": 1, "alpha": 0.5, "beta": 0.05, "form": "paper"}


def test_systems_for_video_have_the_rules_that_they_publish():
    """The figures are those of Video-R1's trainer and Temporal-R1's code."""
    video, temporal = (load_config(ROOT / "configs" / "recipes" / f"{name}.toml") for name in ("video-r1", "temporal-r1"))
    length, (order,) = video.stages[0].length, plugin_rules(video.stages[0])
    assert (length.bonus, length.min_tokens, length.max_tokens, length.correct_above) == (0.2, 320, 512, 0.1)
    assert (order.bonus, order.ratio, order.share, order.above) == (0.3, 0.8, 0.5, 0.1)
    assert [length.verifier] == order.verifiers == ["video/answer@video-r1"]
    assert length.verifier in video.tasks[0].verifiers
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
    if path.stem.endswith("-robomimic"):
        if not (ROBOSUITE / "installed").is_file():
            pytest.skip("robosuite is not installed: make simulators")
        monkeypatch.setenv("MMRL_ROBOSUITE_PYTHON", str(ROBOSUITE / "bin" / "python"))
        shorter = ["tasks.0.options.max_steps=8", "simulate.num_envs=1", "evaluate.num_prompts=1"]
    config = smoke(load_config(path, [f"runs_dir={tmp_path}", *shorter]))
    folder = runs.run(config)
    summary = json.loads((folder.path / "summary.json").read_text())
    assert summary["steps"] == sum(s.steps for s in config.stages) and summary["last"].keys() == {t.label for t in config.tasks}
    rows = [row for row in runs.rows(folder) if row.get("stage") in LEARNED and "metrics" in row]
    assert rows and all(r["metrics"].get("judge/failed_share", 0) == 0 for r in rows)
    assert all("reward/mean" in r["metrics"] for r in rows if r["stage"] == "rl")
    assert [found["stage"] for found in summary["smoke"]] == list(range(1, len(config.stages) + 1))
    assert not unproved(summary["smoke"]), told(summary["smoke"])
    found = figures(read_run(folder.path))
    assert [said for said in config.smoke_shows if seen(said, found).value is None] == []
    if off := OFF.get(path.stem):
        without = runs.run(smoke(load_config(path, [f"runs_dir={tmp_path / 'off'}", *off])))
        assert seen(config.smoke_shows[0], figures(read_run(without.path))).value is None
        assert norms(without) != norms(folder), "it changes the update"
    weights = resolve(config).weights.values()
    told_apart = {name for own in weights for name, (weight, _) in own.items() if weight}
    assert alike(folder, told_apart) == ALIKE.get(path.stem, set()), "gold completions earn more than those of a random model"
