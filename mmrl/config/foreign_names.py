"""Names of algorithms, averages, trainers and policies elsewhere and what is written here in their place, so that the error for
one says so.

docs/from-*.md and docs/off-policy.md explain them, and a test compares them with this table."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

Names = Mapping[str, Mapping[str, str]]
_PREFERENCES = {
    name: f'kind = "preference", loss = "{loss}"'
    for name, loss in {"dpo": "dpo", "kto": "kto", "simpo": "simpo", "orpo": "orpo", "rm": "bradley-terry"}.items()
} | {"cpo": 'kind = "preference", loss = "dpo", reference = "none", nll_weight = 1.0'}
_TOKENS = 'algorithm = "grpo", settings = {normalise = "token"}'
_CONSTANT = 'algorithm = "grpo", settings = {normalise = "constant"}'
_PAIRS = {  # `loss_type` of DPO
    theirs: f'kind = "preference", loss = "{ours}"'
    for theirs, ours in {
        "sigmoid": "dpo",
        "sigmoid_norm": "dpo-norm",
        "exo_pair": "exo",
        "nca_pair": "nca",
        "bco_pair": "bco",
        "sppo_hard": "sppo",
        "aot_unpaired": "aot-unpaired",
        "apo_zero": "apo-zero",
        "apo_down": "apo-down",
        **{name: name for name in ("hinge", "ipo", "robust", "aot", "discopop")},
    }.items()
}
_AVERAGES = {  # of verl and RLinf
    "token-mean": 'settings = {normalise = "token"}',
    "seq-mean-token-mean": 'settings = {normalise = "sequence"}',
    "seq-mean-token-sum": 'settings = {normalise = "constant", constant = 1}',
}
_ADVANTAGES = {  # of verl, and so of EasyR1
    "gae": 'algorithm = "ppo"',
    "reinforce_plus_plus": 'algorithm = "reinforce++"',
}

NAMES: Names = {
    "TRL": {
        "dapo": _TOKENS,
        "bnpo": _TOKENS,
        "dr_grpo": _CONSTANT,
        "luspo": 'algorithm = "gspo", settings = {normalise = "constant", constant = 1}',
        **_PAIRS,
        "normalize_then_sum": 'algorithm = "gdpo"',
        "AsyncGRPOTrainer": 'algorithm = "grpo"',
        "SFTTrainer": 'kind = "sft"',
        "DPOTrainer": _PREFERENCES["dpo"],
        "KTOTrainer": _PREFERENCES["kto"],
        "RewardTrainer": _PREFERENCES["rm"],
        "OnlineDPOTrainer": 'kind = "preference", loss = "dpo", pairs = "sampled"',
        "GKDTrainer": 'kind = "distill"',
        "DistillationTrainer": 'kind = "distill"',
        "CPOTrainer": _PREFERENCES["cpo"],
        "ORPOTrainer": _PREFERENCES["orpo"],
        "TPOTrainer": "",
        "GOLDTrainer": "",
        "SDFTTrainer": "",
        "SDPOTrainer": 'algorithm = "sdpo"',
    },
    "verl": _ADVANTAGES
    | _AVERAGES
    | {
        "seq-mean-token-sum-norm": 'settings = {normalise = "constant"}',
        "token-sum": "",
        "masked_gae": 'algorithm = "ppo"',
        "grpo_vectorized": 'algorithm = "grpo"',
        "reinforce_plus_plus_baseline": 'algorithm = "reinforce++-baseline"',
        "rloo_vectorized": 'algorithm = "rloo"',
        "optimal_token_baseline": 'algorithm = "otb"',
        "tir_optimal_token_baseline": 'algorithm = "otb"',
        "vanilla": 'algorithm = "grpo"',
        "geo_mean": 'algorithm = "gmpo"',
        "dppo_tv": 'algorithm = "divergence-ppo"',
        "dppo_kl": 'algorithm = "divergence-ppo", settings = {divergence = "kl"}',
        "bypass_mode": 'ratio_to = "sampler"',
    },
    "EasyR1": _ADVANTAGES
    | {
        "default": 'algorithm = "grpo"',
        "gspo_token": 'algorithm = "gspo", settings = {per_token = true}',
        "seq": _AVERAGES["seq-mean-token-mean"],
    },
    "ms-swift": {
        "dapo": _TOKENS,
        "bnpo": _TOKENS,
        "dr_grpo": _CONSTANT,
        "reinforce_plus_plus": 'algorithm = "reinforce++-baseline"',
        **_PREFERENCES,
        **_PAIRS,
        "gkd": 'kind = "distill"',
    },
    "RLinf": _AVERAGES
    | {
        "gae": 'algorithm = "ppo"',
        "reinpp": 'algorithm = "reinforce++"',
        "actor": 'algorithm = "grpo"',
        "actor_critic": 'algorithm = "ppo"',
        "decoupled_actor_critic": 'algorithm = "ppo", importance_sampling = "mask"',
        "embodied_sac": 'kind = "off-policy"',
        "offline_iql": 'kind = "off-policy", iql = {}',
    },
    "Stable-Baselines3": {
        "SAC": 'kind = "off-policy"',
        "TD3": 'kind = "off-policy", td3 = {}',
        "A2C": 'algorithm = "ppo", settings = {lam = 1.0, whiten = false}',
        "DDPG": "",
        "DQN": "",
    },
}
"""Trainer -> its names -> keys of `[[stages]]` in their place, as in an inline table; empty if there is no counterpart. A name is
left out if an algorithm here is the same and `plain` makes their names one."""

_ESTIMATORS = frozenset(
    (
        *("gae", "maskedgae", "grpovectorized", "rloovectorized", "reinforceplusplus", "reinforceplusplusbaseline", "reinpp"),
        *("optimaltokenbaseline", "tiroptimaltokenbaseline", "normalizethensum"),
    )
)
"""Those that name an advantage and no loss, as `plain` makes them."""

POLICIES: Names = {
    "LeRobot": {
        "groot": 'policy.kind = "gr00t"',
        "gaussian_actor": 'policy.kind = "squashed"',
        **dict.fromkeys(("eo1", "evo1", "fastwam", "lingbot_va", "molmoact2", "multi_task_dit"), ""),
        **dict.fromkeys(("tdmpc", "vla_jepa", "vqbet", "wall_x"), ""),
    },
    "RLinf": {
        "openvla": 'policy.kind = "vla"',
        "openvla_oft": 'policy.kind = "vla"',
        "openpi": 'policy.kind = "pi0" or policy.kind = "pi05"',
        "gr00t_n1d7": 'policy.kind = "gr00t"',
        "gr00t_n1d6": 'policy.kind = "gr00t"',
        "mlp_policy": 'policy.kind = "robotics/small", policy.model = "mlp"',
        "cnn_policy": 'policy.kind = "robotics/small", policy.model = "cnn"',
    },
}
"""Trainer -> its kinds of policies -> keys of a run file in their place; empty if there is no counterpart. Kinds that are called
here as they are there are left out."""

NAMED = {"stages.algorithm": NAMES, "stages.settings.normalise": NAMES, "policy.kind": POLICIES}
"""Key -> the names that others write there."""

_PAGES = {"EasyR1": "from-verl", "Stable-Baselines3": "off-policy"}


def page(trainer: str) -> str:
    """The page for those who come from it."""
    return f"docs/{_PAGES.get(trainer, f'from-{trainer.lower()}')}.md"


def plain(name: str) -> str:
    """A name without what trainers spell differently: capitals, dashes and the word `Trainer`. DR-GRPO, dr_grpo: drgrpo."""
    return re.sub(r"[^a-z0-9+]", "", name.lower()).removesuffix("trainer")


def written_here(trainer: str, name: object, names: Names = NAMES) -> str | None:
    """What a trainer's name is here; None if it has no such name. names: `NAMES` or `POLICIES`."""
    return next((ours for known, ours in names.get(trainer, {}).items() if plain(known) == plain(str(name))), None)


def names_here(name: str, names: Names = NAMES, as_loss: bool = False) -> Iterator[str]:
    """What to write in place of a name of other trainers, in a sentence for each meaning that they give it. as_loss: in place of
    one in `settings.loss`, which takes the loss of another algorithm."""
    meanings = dict[str, list[str]]()
    for trainer in names:
        if (ours := written_here(trainer, name, names)) is not None:
            ours = _as_loss(ours) if as_loss and plain(name) not in _ESTIMATORS else ours
            meanings.setdefault(f"is {ours} here" if ours else "has no counterpart here", []).append(trainer)
    for meaning, trainers in meanings.items():
        yield sentence(trainers, "so", meaning)


def _as_loss(written: str) -> str:
    """`algorithm = "gmpo"` as `settings = {loss = "gmpo"}`, with the settings that follow; other keys as they are."""
    made = re.fullmatch(r'algorithm = ("[^"]+")(?:, settings = \{(.*)\})?', written)
    return f"settings = {{{', '.join(part for part in (f'loss = {made[1]}', made[2]) if part)}}}" if made else written


def misnamed(id: str, known: Iterable[str], names: Names = NAMES) -> str:
    """What is added to the error for an unknown algorithm or policy: that one here has nearly this name, and what other trainers
    call so; empty if neither. known: the ids that there are. names: `NAMES` or `POLICIES`."""
    same, theirs = next((one for one in known if plain(one) == plain(id)), ""), "; ".join(names_here(id, names))
    if same:
        return f". Did you mean {same!r}?{f' W{theirs[1:]}' if theirs else ''}"
    return f": {theirs}" if theirs else ""


def sentence(trainers: Sequence[str], so: str, meaning: str) -> str:
    """What these trainers call so means that. so: a key in the trainers' words, or `so` for what the error has named."""
    return f"what {listed(trainers)} call{'s' * (len(trainers) == 1)} {so} {meaning} ({page(trainers[0])})"


def listed(names: Sequence[str]) -> str:
    """Names in a sentence: A, B and C."""
    return " and ".join([*([", ".join(names[:-1])] if names[1:] else []), names[-1]])
