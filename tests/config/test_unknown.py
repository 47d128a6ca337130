"""What is said of keys that a section doesn't have. Nothing here needs torch."""

from __future__ import annotations

import pytest

import mmrl.config.load as configs
from mmrl.api.errors import UserError
from mmrl.config.foreign_names import POLICIES, misnamed

GOOD = {
    "name": "keys",
    "policy": {"model": "m"},
    "tasks": [{"id": "a/b"}],
    "stages": [{"kind": "rl", "steps": 1}, {"kind": "sft", "steps": 1}],
}


@pytest.mark.parametrize(
    ("key", "said"),
    [
        ("stages.0.hidden_sizes", "it belongs in [stages.critic]"),
        (
            "stages.0.clip_high",
            ": a setting of the algorithm is written settings = {clip_high = ...}; known keys are kind, steps",
        ),
        ("stages.0.gamma", "or [[stages]] of kind 'off-policy'; a setting of the algorithm is written settings = {gamma = ...}"),
        ("stages.1.clip_high", ": known keys are kind, steps"),
        ("stages.0.max_frames", "it belongs in [policy.video]"),
        ("stages.0.divergence", "it belongs in [[stages]] of kind 'distill'"),
        ("stages.0.critic.epochs", "it belongs in [[stages]]"),
        ("stages.0.seed", "it belongs to no section, so write it at the top of the file"),
        ("train.learning_rate", "it belongs in [[stages]]"),
        ("group_size", "it belongs in [[stages]] or [[tasks]]"),
        ("stages.0.num_generations", "what TRL and ms-swift call so is 'stages.group_size' here (docs/from-trl.md)"),
        ("stages.0.epsilon_high", "what TRL and ms-swift call so is 'stages.settings.clip_high' here (docs/from-trl.md)"),
        (
            "stages.0.clip_ratio_high",
            "what verl, EasyR1 and RLinf call so is 'stages.settings.clip_high' here (docs/from-verl.md)",
        ),
        ("stages.0.clip_ratio_dual", "what EasyR1 calls so is 'stages.settings.dual_clip' here (docs/from-verl.md)"),
        ("stages.0.lr", "what verl, EasyR1 and RLinf call so is 'stages.learning_rate' here (docs/from-verl.md)"),
        ("stages.1.lr", "what verl, EasyR1 and RLinf call so is 'stages.learning_rate' here (docs/from-verl.md)"),
        (
            "lr",
            "what verl and EasyR1 call so is 'stages.learning_rate' or 'stages.critic.learning_rate' here (docs/from-verl.md)",
        ),
        ("data.nothing", "it is a section of verl and EasyR1, and docs/from-verl.md says what is written in its place"),
        ("critic.epochs", "it belongs in [[stages]]; it is a section of verl"),
        ("stages.0.max_prompt_length", "what verl and EasyR1 call so has no key here: no key cuts prompts (docs/from-verl.md)"),
        (
            "stages.0.beta",
            "'stages.0.beta': what TRL and ms-swift call so is 'stages.kl_coef' here (docs/from-trl.md); it belongs in",
        ),
        ("beta", "'beta': what TRL and ms-swift call so is 'stages.kl_coef' here (docs/from-trl.md); it belongs in [[stages]]"),
        ("generate.min_p", "what TRL calls so has no key here: completions are sampled from the probabilities that are trained"),
        ("min_p", "what TRL calls so has no key here: completions are sampled from the probabilities that are trained"),
        ("policy.path", "what verl and LeRobot call so is 'policy.model' here"),
        ("stages.0.rlsd_lambda", "what ms-swift calls so is 'stages.settings.weight' here (docs/from-ms-swift.md)"),
        ("save_freq", "what verl, EasyR1 and LeRobot call so is 'checkpoint.every' here (docs/from-verl.md)"),
        ("stages.0.stpes", "did you mean 'steps'?"),
        ("stages.0.prompts", "'stages.0.prompts': did you mean 'prompts_per_step'?; it belongs in [stages.entropy_control]"),
        ("stages.0.rule", "'stages.0.rule': did you mean 'rules'?; it belongs in [stages."),
    ],
)
def test_the_error_says_where_a_key_belongs_or_what_it_is_called_here(key, said):
    with pytest.raises(UserError) as caught:
        configs.parse_config(GOOD, [f"{key}=1"])
    assert str(caught.value).startswith("run file: unknown key") and said in str(caught.value)


@pytest.mark.parametrize(
    ("written", "said"),
    [
        (
            "stages.0.rules=[{id='c/d'},{id='e/f',chance=0.5}]",
            "'stages.0.rules.1.chance': an option of the rule is written options = {chance = ...}, and `mmrl list sampling_rules "
            "e/f` shows all",
        ),
        ("stages.0.rules=[{chance=0.5}]", "'stages.0.rules.0.chance': known keys are id, options"),
        (
            "tasks.0.wieght=3",
            "'tasks.0.wieght': did you mean 'weight'?; an option of the task is written options = {wieght = ...}, and `mmrl list "
            "tasks a/b` shows all",
        ),
    ],
)
def test_a_key_of_a_rule_or_a_task_may_be_one_of_its_options(written, said):
    with pytest.raises(UserError) as caught:
        configs.parse_config(GOOD, [written])
    assert str(caught.value) == f"run file: unknown key {said}"


def test_the_options_of_a_rule_are_listed_by_whoever_knows_them():
    names = {("sampling_rules", "e/f"): ["bonus", "chances"]}
    with pytest.raises(UserError) as caught:
        configs.parse_config(GOOD, ["stages.0.rules=[{id='e/f',chance=0.5}]"], option_names=lambda listed, id: names[listed, id])
    assert str(caught.value).endswith("an option of the rule is written options = {chance = ...}, with chances, bonus")
    names["tasks", "a/b"] = ["path"]  # what others call so isn't meant
    with pytest.raises(UserError) as caught:
        configs.parse_config(GOOD, ["tasks.0.path=x"], option_names=lambda listed, id: names[listed, id])
    assert str(caught.value).endswith("unknown key 'tasks.0.path': an option of the task is written options = {path = ...}")


@pytest.mark.parametrize(
    ("written", "said"),
    [
        (
            "actor_rollout_ref.actor.clip_ratio_high=0.28",
            "'actor_rollout_ref.actor.clip_ratio_high': what verl calls so is 'stages.settings.clip_high' here (docs/from",
        ),
        (
            "data.max_response_length=512",
            "'data.max_response_length': what verl and EasyR1 call so is 'generate.max_tokens' here (docs/from-verl.md)",
        ),
        (
            "algorithm.adv_estimator=gae",
            "'algorithm.adv_estimator': what verl and EasyR1 call so is 'stages.algorithm' here, with algorithm = \"ppo\" "
            "(docs/from-verl.md)",
        ),
        (
            "algorithm.adv_estimator=grpo",
            "'algorithm.adv_estimator': what verl and EasyR1 call so is 'stages.algorithm' here (docs/from-verl.md)",
        ),
        (
            "stages.0.loss_type=bnpo",
            "'stages.0.loss_type': what TRL and ms-swift call so is 'stages.algorithm' and 'stages.settings' here, with "
            'algorithm = "grpo", settings = {normalise = "token"} (docs/from-trl.md)',
        ),
        (
            "stages.0.loss_agg_mode=seq-mean-token-sum",
            "'stages.0.loss_agg_mode': what verl calls so is 'stages.settings.normalise' here, with settings = {normalise = "
            '"constant", constant = 1} (docs/from-verl.md)',
        ),
        (
            "stages.0.loss_type=sigmoid",
            '\'stages.0.loss_type\': what TRL and ms-swift call so is kind = "preference", loss = "dpo" here (docs/from-trl.md)',
        ),
        (
            "stages.0.loss_type=hinge",
            '\'stages.0.loss_type\': what TRL and ms-swift call so is kind = "preference", loss = "hinge" here '
            "(docs/from-trl.md)",
        ),
        (
            "stages.0.ld_alpha=0.5",
            "'stages.0.ld_alpha': what TRL and ms-swift call so is 'stages.tail_weight' here (docs/from-trl.md)",
        ),
        (
            "policy.type=groot",
            "'policy.type': what LeRobot calls so is 'policy.kind' here, with policy.kind = \"gr00t\" (docs/from-lerobot.md)",
        ),
        ("policy.type=pi05", "'policy.type': what LeRobot calls so is 'policy.kind' here (docs/from-lerobot.md)"),
        ("stages.0.rlhf_type=kto", 'here, with kind = "preference", loss = "kto" (docs/from-ms-swift.md)'),
        (
            "stages.0.actor.clip_ratio_c=3",
            "'stages.0.actor.clip_ratio_c': what verl calls so is 'stages.settings.dual_clip' here",
        ),
        (
            "data.max_prompt_length=1",
            "'data.max_prompt_length': what verl and EasyR1 call so has no key here: no key cuts prompts",
        ),
        ("worker.rollout.n=5", "'worker.rollout.n': what EasyR1 calls so is 'stages.group_size' here (docs/from-verl.md)"),
        ("env.train.total_num_envs=8", "what RLinf calls so is 'simulate.num_envs' here (docs/from-rlinf.md)"),
        ("dataset.repo_id=x/y", "'dataset.repo_id': what LeRobot calls so is 'tasks.options.folder' here (docs/from-lerobot.md)"),
        (
            "worker.actor={max_grad_norm=1,ppo_epochs=1,nothing=1,optim={lr=1},model={lora={rank=8}}}",
            "'worker': what EasyR1 calls worker.actor.max_grad_norm is 'stages.max_grad_norm' here (docs/from-verl.md); what "
            "EasyR1 calls worker.actor.ppo_epochs is 'stages.epochs' here (docs/from-verl.md); what EasyR1 calls "
            "worker.actor.optim.lr is 'stages.learning_rate' here (docs/from-verl.md); and so on",
        ),
    ],
)
def test_a_section_of_another_trainer_is_told_by_its_keys(written, said):
    with pytest.raises(UserError) as caught:
        configs.parse_config(GOOD, [written])
    found = str(caught.value).removeprefix("run file: unknown key ")
    assert found.startswith(said) if said.startswith("'") else said in found


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("grpo", 'an algorithm is a key of kind = "rl"'),
        ("PPO", 'an algorithm is a key of kind = "rl"'),
        ("dpo", 'what TRL and ms-swift call so is kind = "preference", loss = "dpo" here (docs/from-trl.md)'),
        ("SFTTrainer", 'what TRL calls so is kind = "sft" here (docs/from-trl.md)'),
        ("SAC", 'what Stable-Baselines3 calls so is kind = "off-policy" here (docs/off-policy.md)'),
        ("orpo", 'what TRL and ms-swift call so is kind = "preference", loss = "orpo" here (docs/from-trl.md)'),
        ("TPOTrainer", "what TRL calls so has no counterpart here (docs/from-trl.md)"),
    ],
)
def test_a_kind_of_another_trainer_is_told(kind, said):
    with pytest.raises(UserError, match=r"'stages\.0' needs kind = ") as caught:
        configs.parse_config(GOOD, [f"stages.0.kind={kind}"])
    assert str(caught.value).endswith(f"; found {kind!r}: {said}")


@pytest.mark.parametrize(
    ("loss", "said"),
    [
        ("sigmoid", ': what TRL and ms-swift call so is kind = "preference", loss = "dpo" here (docs/from-trl.md)'),
        ("apo_zero", ': what TRL and ms-swift call so is kind = "preference", loss = "apo-zero" here (docs/from-trl.md)'),
        ("mystery", ""),
    ],
)
def test_a_loss_of_pairs_of_another_trainer_is_told(loss, said):
    with pytest.raises(UserError, match=r"'stages\.0\.loss': input should be 'dpo'") as caught:
        configs.parse_config(GOOD, ["stages.0.kind=preference", f"stages.0.loss={loss}"])
    assert str(caught.value).endswith(f"found {loss!r}{said}")
    with pytest.raises(UserError, match=rf"'stages\.0\.losses\.{loss}': input should be 'dpo'") as caught:
        configs.parse_config(GOOD, ["stages.0.kind=preference", f"stages.0.losses={{dpo=1,{loss}=1}}"])
    assert str(caught.value).endswith(f"found {loss!r}{said}")


@pytest.mark.parametrize(
    ("id", "said"),
    [
        ("groot", ': what LeRobot calls so is policy.kind = "gr00t" here (docs/from-lerobot.md)'),
        ("pi0fast", ". Did you mean 'pi0_fast'?"),
        ("vqbet", ": what LeRobot calls so has no counterpart here (docs/from-lerobot.md)"),
        ("gae", ""),
    ],
)
def test_a_kind_of_policy_of_another_trainer_is_told(id, said):
    assert misnamed(id, ["gr00t", "pi0_fast"], POLICIES) == said


@pytest.mark.parametrize("override", [f"{'k' * 10_000}=1", f"stages.0.{'k' * 10_000}=1", f"stages.0.kind={'k' * 10_000}"])
def test_what_is_very_long_is_cut(override):
    with pytest.raises(UserError) as caught:
        configs.parse_config(GOOD, [override])
    assert len(str(caught.value)) < 2000 and "k" * 50 in str(caught.value)


@pytest.mark.parametrize(
    ("id", "said"),
    [
        ("gae", ': what verl, EasyR1 and RLinf call so is algorithm = "ppo" here (docs/from-verl.md)'),
        ("optimal_token_baseline", ': what verl calls so is algorithm = "otb" here (docs/from-verl.md)'),
        ("geo_mean", ': what verl calls so is algorithm = "gmpo" here (docs/from-verl.md)'),
        ("GMPOTrainer", ". Did you mean 'gmpo'?"),
        ("grpo_passk", ". Did you mean 'grpo-passk'?"),
        ("PPO", ". Did you mean 'ppo'?"),
        (
            "reinforce_plus_plus",
            ': what verl and EasyR1 call so is algorithm = "reinforce++" here (docs/from-verl.md); what ms-swift calls so is '
            'algorithm = "reinforce++-baseline" here (docs/from-ms-swift.md)',
        ),
        (
            "dr_grpo",
            ". Did you mean 'dr-grpo'? What TRL and ms-swift call so is "
            'algorithm = "grpo", settings = {normalise = "constant"} here (docs/from-trl.md)',
        ),
        ("bypass_mode", ': what verl calls so is ratio_to = "sampler" here (docs/from-verl.md)'),
        ("token-sum", ": what verl calls so has no counterpart here (docs/from-verl.md)"),
        ("TD3", ': what Stable-Baselines3 calls so is kind = "off-policy", td3 = {} here (docs/off-policy.md)'),
        ("mystery", ""),
    ],
)
def test_a_name_of_another_trainer_is_told(id, said):
    assert misnamed(id, ["grpo", "dr-grpo", "grpo-passk", "gmpo", "ppo", "reinforce++"]) == said
