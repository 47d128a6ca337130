"""Algorithms by their ids: settings, what they bring to their stage, what is refused, and gradients that no split changes."""

import functools
import re
from dataclasses import replace

import pytest
import torch

import vlm_cases as cases
from mmrl.algorithms.advantage import group_relative
from mmrl.algorithms.loss import LossInputs
from mmrl.algorithms.presets import check_bounds, load_algorithm, settings_of, signals_of, with_defaults
from mmrl.algorithms.signals import Signals
from mmrl.api.episodes import Conversation
from mmrl.api.errors import PluginError, UserError
from mmrl.api.specs import Bounds
from mmrl.api.tokens import DISCRETE
from mmrl.api.types import Prompt, Score, Status, Turn
from mmrl.config.sections import PolicyConfig, RlStage
from mmrl.policies.batches import Credit
from mmrl.policies.critic import Critic
from mmrl.policies.reference import Reference
from mmrl.policies.vlm.vlm import VLM
from mmrl.registry.plugins import Registry
from mmrl.testing.cases import mostly_slow
from mmrl.train.update.learner import Learner
from mmrl.train.update.pack_conversations import pack

BUILT_IN = [
    *(
        "advantage-reweighting",
        "archer",
        "aspo",
        "awr",
        "bapo",
        "bi-level-gae",
        "ce-gppo",
        "cispo",
        "clip-cov",
        "d3s",
        "dapo",
        "dcpo",
        "digirl",
        "divergence-ppo",
        "dppo",
        "dr-grpo",
        "dro",
        "filtered-cloning",
        "fipo",
        "gdpo",
    ),
    *(
        "gigpo",
        "gmpo",
        "gpg",
        "grpo",
        "grpo-passk",
        "gspo",
        "gui-g1",
        "gvpo",
        "kdrl",
        "kl-cov",
        "lite-ppo",
        "m2po",
        "maxrl",
        "nft",
        "nsr",
        "opd",
        "opo",
        "otb",
        "pacs",
        "pkpo",
    ),
    *(
        "ppo",
        "psr",
        "real",
        "reinforce++",
        "reinforce++-baseline",
        "remax",
        "rloo",
        "rlsd",
        "rover",
        "sapo",
        "sdar",
        "sdpo",
        "stable-reinforce",
        "topr",
        "trajectory-grpo",
        "vespo",
        "vppo",
        "w-reinforce",
    ),
]


def stage(algorithm="grpo", **keys):
    return RlStage(kind="rl", steps=1, algorithm=algorithm, **keys)


def signals(rewards=(0.0, 1.0, 2.0, 4.0), length=2, **more):
    turn = Turn(observed_ids=(1,), token_ids=(9,) * length, logprobs=(-1.0,) * length, text="")
    rollouts = [Conversation(prompt=Prompt(messages=[]), group=0, turns=(turn,), status=Status.FINISHED) for _ in rewards]
    return Signals(rollouts, [Score(r) for r in rewards], stage(), **more)


@pytest.fixture
def plugin(site):
    """Algorithms `x/NAME` with advantages of this source; returns `load_algorithm` of one."""

    def make(source, name="mine", settings=None, **spec):
        site(
            f"mmrl-{name}",
            {
                f"x_{name}.py": f"""
                from mmrl import AlgorithmSpec, hookimpl
                from mmrl.api.specs import Bounds

                @hookimpl
                def mmrl_algorithms():
                    return [AlgorithmSpec(id="{name}/it", target="x_{name}_code:it", **{spec!r})]
                """,
                f"x_{name}_code.py": source,
            },
            entry={name: f"x_{name}"},
        )
        return load_algorithm(f"{name}/it", settings or {})

    return make


# -- settings ---------------------------------------------------------------------------------------------------------------


def test_the_built_in_algorithms_are_these():
    assert sorted(Registry(entry_points=[]).specs("algorithms")) == BUILT_IN and len(BUILT_IN) == 58


def test_settings_reach_the_function_that_has_them():
    """Rewards 0, 1, 2, 4: mean 1.75, squares 8.75. A ratio of 2 with an advantage of 1 counts up to 1 + clip_high."""

    def objective(algorithm):
        inputs = LossInputs(
            logprobs_L=torch.tensor([2.0]).log(),
            old_logprobs_L=torch.zeros(1),
            advantages_L=torch.ones(1),
            rollout_L=torch.zeros(1, dtype=torch.long),
            lengths_N=torch.ones(1, dtype=torch.long),
        )
        return -algorithm.loss(inputs)[0].item()

    plain = load_algorithm("grpo", {})
    assert plain.credit(signals()).advantages[3].item() == pytest.approx(2.25 / ((8.75 / 3) ** 0.5 + 1e-4))
    assert objective(plain) == pytest.approx(1.2) and plain.normalise == "sequence"
    changed = load_algorithm("grpo", {"scale": "none", "clip_high": 0.5, "normalise": "token"})
    assert changed.credit(signals()).advantages.tolist() == [-1.75, -0.75, 0.25, 2.25]
    assert objective(changed) == pytest.approx(1.5) and changed.normalise == "token"
    assert load_algorithm("grpo", {"biased": True}).credit(signals()).advantages[3].item() == pytest.approx(
        2.25 / ((8.75 / 4) ** 0.5 + 1e-4)
    )
    assert objective(load_algorithm("dapo", {})) == pytest.approx(1.28), "the spec's own settings"


def test_a_setting_that_an_advantage_and_another_s_loss_have_keeps_both_meanings():
    """VPPO's share is of a rollout's tokens, and Clip-Cov's of those that are left out: 0.4 of them would be left out."""
    alike = {("vppo", "clip-cov"): {"share"}, ("vppo", "nft"): {"least"}, ("stable-reinforce", "divergence-ppo"): {"limit"}}
    alike |= {("awr", "dro"): {"beta"}, ("rlsd", "fipo"): {"weight_clip"}}
    for (id, other), names in alike.items():
        both, own, theirs = load_algorithm(id, {"loss": other}), load_algorithm(id, {}), load_algorithm(other, {})
        assert names == settings_of(own.advantage.func).keys() & settings_of(theirs.loss.func).keys()
        assert both.advantage.keywords == own.advantage.keywords and both.loss.keywords == theirs.loss.keywords
        for name in names:
            with pytest.raises(UserError, match=f"'{id}'.* {name} .*'{other}'.* leave it out"):
                load_algorithm(id, {"loss": other, name: 0.5})
    assert load_algorithm("vppo", {"loss": "clip-cov", "least": 0.8, "low": 0.5}).loss.keywords["share"] == 2e-4


def test_a_loss_of_another_algorithm_comes_with_its_settings_bounds_and_average():
    """verl's and ms-swift's estimator and loss are two keys; the names of an advantage's settings stay its own."""
    both = load_algorithm("opo", {"loss": "gspo", "clip_high": 0.5})
    assert both.needs == ("rewards_N", "groups_N", "lengths_N") and both.loss.func is load_algorithm("gspo", {}).loss.func
    assert both.loss.keywords == {"clip_low": 3e-4, "clip_high": 0.5} and both.normalise == "sequence"
    assert both.tokens == load_algorithm("gspo", {}).tokens and {"clip_low", "clip_high"} <= both.bounds.keys()
    assert load_algorithm("gspo", {"loss": "rloo"}).constant == 1.0 and not load_algorithm("gspo", {"loss": "rloo"}).loss.keywords
    clipped = load_algorithm("rloo", {"loss": "grpo", "normalise": "token"})
    assert clipped.advantage.func is load_algorithm("rloo", {}).advantage.func and clipped.normalise == "token"
    assert "dual_clip" in clipped.bounds and "scale" not in clipped.advantage.keywords
    kept = load_algorithm("dr-grpo", {"loss": "sapo"})
    assert kept.advantage.keywords["scale"] == "none" and kept.loss.keywords["temperature"] == 1.0
    assert load_algorithm("grpo", {"loss": "grpo"}).loss.keywords == load_algorithm("grpo", {}).loss.keywords
    assert load_algorithm("grpo", {"entropy_share": 0.2}).tokens == DISCRETE


def test_the_tokens_of_highest_entropy_are_chosen_among_those_that_are_trained():
    entropy = torch.tensor([[0.1, 0.2], [0.3, 0.4], [0.5, 0.6], [0.7, 0.8]])
    found, asked = load_algorithm("grpo", {"entropy_share": 0.5, "scale": "none"}), []
    made = signals(measure=lambda names: asked.append(names) or {"entropy": entropy})
    credit = found.credit(made)
    credit.advantages[3] = torch.nan  # as a sampling rule leaves rollouts out
    kept = found.selected(credit, made).advantages
    assert kept[:3].tolist() == [[0.0, 0.0], [0.0, pytest.approx(-0.75)], [0.25, 0.25]] and kept[3].isnan().all()
    assert asked == [frozenset({"entropy"})], "one forward pass measures it"
    plain = load_algorithm("grpo", {})
    assert plain.selected(credit, made) is credit


def test_the_constant_is_the_longest_completion_unless_it_is_set():
    assert load_algorithm("dr-grpo", {}, 77).constant == 77.0
    assert load_algorithm("dr-grpo", {"constant": 5}, 77).constant == 5.0
    assert load_algorithm("gui-g1", {}, 77).constant == 64.0 and load_algorithm("gui-g1", {"constant": 9.5}, 77).constant == 9.5
    assert load_algorithm("rloo", {}, 77).constant == 1.0
    assert load_algorithm("grpo", {"normalise": "constant"}, 77).normalise == "constant"


@pytest.mark.parametrize(
    ("algorithm", "settings", "message"),
    [
        ("grpo", {"clip_hihg": 0.3}, r"'grpo' has no setting 'clip_hihg'\. Did you mean 'clip_high'\? It accepts: scale"),
        ("grpo", {"normalize": "token"}, r"no setting 'normalize'\. Did you mean 'normalise'\?"),
        ("gigpo", {"state_similarity": 0.9}, r"no setting 'state_similarity'\. It is a key of the stage, not of settings\."),
        ("ppo", {"gama": 0.9}, r"algorithm 'ppo' has no setting 'gama'\. Did you mean 'gamma'\?"),
        (
            "rloo",
            {"clip_high": 0.3},
            r"algorithm 'rloo' has no setting 'clip_high'\. It accepts: normalise, constant, loss, entropy_share$",
        ),
        ("grpo", {"rewards_N": 1.0}, "has no setting 'rewards_N'"),
        ("grpo", {"epsilon_high": 0.3}, r"'epsilon_high'\. What TRL and ms-swift call so is 'stages\.settings\.clip_high' here"),
        ("grpo", {"beta": 0.04}, r"'beta'\. What TRL and ms-swift call so is 'stages\.kl_coef' here"),
        ("grpo", {"scale": "groups"}, r"algorithm 'grpo': scale = 'groups' is not one of 'group', 'batch', 'none'"),
        ("grpo", {"normalise": "tokens"}, "normalise = 'tokens' is not one of token, sequence, constant$"),
        (
            "grpo",
            {"normalise": "token-mean"},
            r"constant: what verl and RLinf call so is settings = \{normalise = \"token\"\} here \(docs/from-verl\.md\)$",
        ),
        *(
            ("grpo", {"constant": c}, r"constant = .* must be a number above 0")
            for c in (0, -1.0, True, "8", float("inf"), 10**400, 1e300)
        ),
        ("grpo", {"constant": 8}, r"constant = 8 has no effect without normalise = .constant."),
        ("grpo", {"clip_low": "0.2"}, r"algorithm 'grpo': clip_low = '0\.2' must be a number"),
        ("grpo", {"clip_low": True}, "clip_low = True must be a number"),
        ("ppo", {"lam": float("nan")}, "lam = nan must be a number"),
        ("ppo", {"whiten": 1}, "whiten = 1 must be true or false"),
        ("ppoo", {}, r"'ppoo'.*[Dd]id you mean 'ppo'"),
        ("opo", {"loss": "gspoo"}, r"^algorithm 'opo': loss = 'gspoo': .*[Dd]id you mean 'gspo'"),
        (
            "opo",
            {"loss": "geo_mean"},
            r"^algorithm 'opo': loss = 'geo_mean': what verl calls so is settings = \{loss = \"gmpo\"\} here",
        ),
        ("opo", {"loss": "bnpo"}, r"call so is settings = \{loss = \"grpo\", normalise = \"token\"\} here"),
        ("opo", {"loss": "gae"}, r"call so is algorithm = \"ppo\" here"),
        ("opo", {"loss": 3}, r"^algorithm 'opo': loss = 3 must be the id of an algorithm$"),
        (
            "opo",
            {"loss": "gspo", "dual_clip": 3.0},
            r"'opo' has no setting 'dual_clip'\..* It accepts: clip_low, clip_high, per_token",
        ),
        *(
            ("grpo", {"entropy_share": share}, r"^algorithm 'grpo': entropy_share = .* must be a number from 0 to 1$")
            for share in (-0.1, 1.1, True, "0.2", float("nan"))
        ),
        ("pacs", {"entropy_share": 0.2}, r"'pacs': entropy_share = 0\.2: its loss looks at tokens without an advantage too"),
    ],
)
def test_what_settings_are_refused(algorithm, settings, message):
    with pytest.raises(UserError, match=message):
        load_algorithm(algorithm, settings)


def test_whole_numbers_do_for_others():
    assert load_algorithm("ppo", {"gamma": 1, "lam": 0}).advantage.keywords["lam"] == 0


def test_signals_are_positional_and_settings_are_not():
    assert signals_of(group_relative) == ("rewards_N", "groups_N")
    assert settings_of(group_relative) == {"scale": "group", "biased": False, "epsilon": 1e-4}
    assert load_algorithm("grpo", {}).compares and not load_algorithm("grpo", {}).has_critic
    assert load_algorithm("ppo", {}).has_critic and not load_algorithm("ppo", {}).compares
    assert {a for a in BUILT_IN if load_algorithm(a, {}).has_critic} == {"archer", "bi-level-gae", "ppo", "digirl", "dppo"}


# -- advantages that can't be used ------------------------------------------------------------------------------------------


def test_an_unknown_signal_is_refused_with_a_suggestion(plugin):
    unknown = r"algorithm 'mine/it': its advantage takes an unknown signal 'reward_N'\. Did you mean 'rewards_N'\?"
    with pytest.raises(PluginError, match=unknown):
        plugin("def it(reward_N): return reward_N")


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        ("rewards_N[:2]", r"must give a tensor \[N\] or \[N, T\] for N = 4, T = 2, not a tensor \[2\]"),
        ("rewards_N[:, None]", r"not a tensor \[4, 1\]"),
        ("torch.zeros(4, 3)", r"not a tensor \[4, 3\]"),
        ("torch.zeros(4, 2, 1)", r"not a tensor \[4, 2, 1\]"),
        ("rewards_N.sum()", r"not a tensor \[\]"),
        ("rewards_N.tolist()", r"not \[0\.0, 1\.0, 2\.0, 4\.0\]"),
        ("None", "not None"),
        ("(values_NT, values_NT, values_NT)", r"must give a pair of .* N = 4, T = 2, not a tensor \[4, 2\], a tensor"),
        ("(rewards_N, values_NT)", r"not a tensor \[4\], a tensor \[4, 2\]"),
        ("(values_NT, rewards_N)", r"not a tensor \[4, 2\], a tensor \[4\]"),
        ("(values_NT, None)", r"not a tensor \[4, 2\], None"),
        ("1 / 0", "its advantage raised ZeroDivisionError: division by zero"),
    ],
)
def test_an_advantage_of_another_shape_is_refused(plugin, returned, message):
    found = plugin(f"import torch\ndef it(rewards_N, values_NT): return {returned}")
    measured = {"values": torch.zeros(4, 2), "bootstrap": torch.zeros(4)}
    with pytest.raises(PluginError, match=f"algorithm 'mine/it'.*{message}"):
        found.credit(signals(measure=lambda names: measured))


def test_targets_for_a_critic_that_nobody_asked_for_are_refused(plugin):
    found = plugin("def it(rewards_NT): return rewards_NT, rewards_NT")
    with pytest.raises(PluginError, match="gives targets of a critic but doesn't take values_NT"):
        found.credit(signals())


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        ("torch.zeros(4, device='meta')", r"one of torch\.float32 on meta"),
        ("rewards_N.float().to_sparse()", r"torch\.sparse_coo: give real numbers"),
        ("rewards_N.to(torch.complex64)", "complex64"),
        ("rewards_N / 0", "its advantage gives infinite credit"),
        ("rewards_N * 1e300", "its advantage gives infinite credit"),
        ("rewards_N * torch.nan", "gives NaN for 4 of 4 rollouts whose signals are numbers"),
        ("torch.where(mask_NT, 1.0, torch.nan).T.contiguous().T", None),
        ("torch.full(mask_NT.shape, torch.nan)", "gives NaN for 4 of 4"),
    ],
)
def test_credit_that_nothing_can_be_learned_from_is_refused(plugin, returned, message):
    found = plugin(f"import torch\ndef it(rewards_N, mask_NT): return {returned}")
    if message is None:
        assert found.credit(signals()).advantages.tolist() == [[1.0, 1.0]] * 4
        return
    with pytest.raises(PluginError, match=f"algorithm 'mine/it'.*{message}"):
        found.credit(signals())


def test_credit_may_lack_where_a_signal_does_and_needs_no_gradient(plugin):
    mean = plugin("def it(rewards_N): return rewards_N - rewards_N.nanmean()")
    assert mean.credit(signals((1.0, None, 3.0))).advantages.isnan().tolist() == [False, True, False]
    careless = plugin("def it(rewards_N): return rewards_N - rewards_N.mean()", name="careless")
    with pytest.raises(PluginError, match=r"gives NaN for 2 of 3 rollouts .* one failed score affects its group's mean"):
        careless.credit(signals((1.0, None, 3.0)))
    traced = plugin("import torch\ndef it(rewards_N): return rewards_N * torch.ones(1, requires_grad=True)", name="traced")
    assert not traced.credit(signals()).advantages.requires_grad


@pytest.mark.parametrize(
    ("source", "spec", "message"),
    [
        ("def it(): return 1", {}, "its advantage takes no signal: name its arguments after signals"),
        ("def it(rewards_N): return 1", {"loss": "builtins:print"}, "its loss must take one argument, the LossInputs"),
        ("def it(rewards_N): return 1\ndef loss(a, b): 1", {"loss": "x_mine_code:loss"}, "its loss must take one argument"),
        ("def it(rewards_N): return 1", {"loss": "builtins:max"}, "must be a Python function with named parameters"),
        ("it = max", {}, "algorithm 'mine/it': its advantage 'x_mine_code:it' must be a Python function with named parameters"),
        ("it = 3", {}, "must be a Python function with named parameters"),
    ],
)
def test_a_signature_that_can_not_be_called_is_refused_before_the_run(plugin, source, spec, message):
    with pytest.raises(PluginError, match=message):
        plugin(source, **spec)


@pytest.mark.parametrize("default", ["'mean'", "True"])
def test_bounds_of_a_setting_that_is_no_number_are_refused_before_the_run(plugin, default):
    with pytest.raises(
        PluginError, match=rf"^algorithm 'mine/it': its bounds are for numbers, and the setting 'x' is {default} "
    ):
        plugin(f"def it(rewards_N, *, x={default}): return rewards_N", bounds={"x": Bounds(low=0)})


@pytest.mark.parametrize("value", ["much", True, [1]])
def test_a_setting_with_bounds_must_be_a_number(value):
    """Where the code doesn't say so: its default is None."""
    with pytest.raises(UserError, match=rf"^stages.0.settings.x = {re.escape(repr(value))} must be a number$"):
        check_bounds("stages.0.settings", {"x": value}, {"x": Bounds(low=0)})


def test_what_fails_in_making_a_signal_is_not_blamed_on_the_advantage():
    def measure(names):
        raise RuntimeError("out of memory")

    with pytest.raises(RuntimeError, match=r"^out of memory$"):
        load_algorithm("ppo", {}).credit(signals(measure=measure))


def test_credit_is_float32_with_values_only_where_there_are_targets(plugin):
    credit = plugin("def it(groups_N): return groups_N + 1").credit(signals())
    assert credit.advantages.dtype == torch.float32 and credit.advantages.tolist() == [1.0] * 4
    assert credit.values_NT is None and credit.returns_NT is None
    measured = {"values": torch.full((4, 2), 0.5), "bootstrap": torch.zeros(4)}
    credit = load_algorithm("ppo", {"whiten": False}).credit(signals(measure=lambda names: measured))
    assert credit.values_NT.tolist() == [[0.5, 0.5]] * 4 and credit.values_NT.dtype == torch.float32
    assert credit.returns_NT.dtype == torch.float32 and credit.returns_NT[3].tolist() == pytest.approx(
        [0.95 * 4 + 0.05 * 0.5, 4.0]
    )


# -- what an algorithm brings to its stage ----------------------------------------------------------------------------------


def test_only_keys_that_the_run_file_leaves_open_are_filled_in():
    made = with_defaults(stage("dapo"))
    buffer = 4096 / 20480  # of verl's run_dapo_qwen2.5_32b.sh, and of section 4.1 of the paper
    assert (made.dynamic_sampling, made.overlong_buffer, made.overlong_penalty) == (3, buffer, 1.0)
    made = with_defaults(stage("dapo", dynamic_sampling=0, group_size=5))
    assert (made.dynamic_sampling, made.overlong_buffer, made.group_size) == (0, buffer, 5)
    made = with_defaults(stage("reinforce++", kl_coef=0.0))
    assert (made.kl_coef, made.kl_in, made.kl_estimator) == (0.0, "reward", "k1")
    plain = stage("grpo", learning_rate=1e-3)
    assert with_defaults(plain) == plain and with_defaults(plain).model_fields_set == plain.model_fields_set


def test_a_critic_comes_with_the_algorithms_that_need_one():
    assert with_defaults(stage("grpo")).critic is None
    assert with_defaults(stage("ppo")).critic.hidden_sizes == []
    made = with_defaults(stage("ppo", critic={"hidden_sizes": [8]}))
    assert made.critic.hidden_sizes == [8] and made.critic.model_fields_set == {"hidden_sizes"}
    assert with_defaults(with_defaults(stage("dapo"))) == with_defaults(stage("dapo")), "once is enough"


def test_an_algorithm_may_bring_a_critic_of_its_own(plugin):
    plugin(
        "def it(rewards_NT, values_NT): return rewards_NT, rewards_NT",
        stage_defaults={"critic": {"backbone": "separate", "hidden_sizes": [512, 128]}, "credit": "chunk"},
    )
    made = with_defaults(stage("mine/it"))
    assert (made.critic.backbone, made.critic.hidden_sizes, made.credit) == ("separate", [512, 128], "chunk")
    assert with_defaults(stage("mine/it", critic={"detach": True})).critic.backbone == "shared", "a section is one key"


def test_a_stage_key_that_there_is_not_is_refused(plugin):
    plugin("def it(rewards_N): return rewards_N", stage_defaults={"epoch": 2})
    with pytest.raises(PluginError, match=r"algorithm 'mine/it': its stage_defaults set 'epoch', .*Did you mean 'epochs'\?"):
        with_defaults(stage("mine/it"))


def test_a_key_that_contradicts_what_the_algorithm_brings_is_refused_in_one_line(plugin):
    with pytest.raises(UserError, match=r"^algorithm 'reinforce\+\+' sets kl_coef = 0\.001, .*: kl_coef = 0\.001 needs a ref"):
        with_defaults(stage("reinforce++", reference="none"))
    plugin("def it(rewards_N): return rewards_N", stage_defaults={"epochs": 0})
    with pytest.raises(UserError, match=r"^algorithm 'mine/it' sets epochs = 0: epochs: Input should be greater than"):
        with_defaults(stage("mine/it"))


# -- one update of each -----------------------------------------------------------------------------------------------------


@functools.cache
def policy():
    return VLM(PolicyConfig(model="tiny:qwen2_5_vl:hidden=32,layers=2"))


@functools.cache
def reference():
    """The policy's copy, moved a little, so that a penalty has a gradient."""
    made = Reference(policy(), adapters=False)
    noise = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for _, p in made.copy.parameters():
            p.add_(0.05 * torch.empty_like(p).normal_(generator=noise))
    return made


@functools.cache
def rollouts():
    """Two prompts, four rollouts each, one of them of two turns. The sampler's log-probabilities are the policy's but for some
    noise, which for two rollouts is that of another policy: their ratios aren't 1."""
    made = cases.rollouts(policy(), [cases.prompt(1), cases.prompt(2)], longest=6)
    more = Turn(observed_ids=(107, 109), token_ids=(120, 121), logprobs=(-1.0,) * 2, text="", reward=0.25)
    made[1] = replace(made[1], turns=(*made[1].turns, more), status=Status.TRUNCATED_TURNS)
    batch = pack(made, Credit(advantages=torch.ones(8)), policy(), shared_prefix=False, budget=10_000)
    own = Learner(policy(), stage()).measure(batch, frozenset({"logprobs"}))["logprobs"]
    own += 0.3 * torch.empty_like(own).normal_(generator=torch.Generator().manual_seed(3))
    for n, rollout in enumerate(made):
        left, turns = own[n].tolist(), []
        for t in rollout.turns:
            turns.append(replace(t, logprobs=tuple(left[: len(t.token_ids)])))
            left = left[len(t.token_ids) :]
        made[n] = replace(rollout, turns=tuple(turns), off_policy=n in (1, 6))
    return made


SCORES = (0.0, 1.0, 0.25, 1.0, 0.5, None, 1.0, 0.0)


def gradients(algorithm, budget, shared, **keys):
    """Of one update, before the optimiser: (policy's and critic's by name, metrics, number of micro-batches)."""
    if algorithm == "d3s":  # which would compute a few of the rollouts
        keys = {"settings": {"first_rollouts": 1.0, "first_tokens": 1.0}} | keys
    if algorithm in ("grpo-passk", "pkpo"):  # whose credit is 0 but for the best of a group
        keys = {"entropy_coef": 1.0} | keys
    made = with_defaults(stage(algorithm, **({"critic": {"hidden_sizes": [8]}} if algorithm in ("ppo", "digirl") else {}) | keys))
    vlm, found = policy(), load_algorithm(algorithm, made.settings, 6)
    critic = Critic(vlm, made.critic, seed=1) if made.critic else None
    if critic:
        with torch.no_grad():
            critic.head[-1].weight.normal_(generator=torch.Generator().manual_seed(2))
    learner = Learner(vlm, made, found, reference=reference() if made.kl_coef else None, critic=critic, teacher=reference().copy)

    def packed(credit, keep):
        return pack(rollouts(), credit, vlm, shared_prefix=shared, budget=budget, keep_zero=keep)

    def measure(names):
        if "answers" in names:  # they are of critics of turns, which no micro-batch changes
            noise = torch.Generator().manual_seed(3)
            shape = (8, max(r.length for r in rollouts()))
            return {name: torch.randn(shape, generator=noise) for name in sorted(names)}
        return learner.measure(packed(Credit(advantages=torch.ones(8)), True), names)

    scores = [Score(s, {} if s is None else {"exact": s, "format": 1.0 - s / 2}) for s in SCORES]
    made_of = Signals(
        rollouts(),
        scores,
        made,
        weights=[{"exact": 1.0, "format": 0.5}] * 8,
        kl=made.kl_coef,
        measure=measure,
        greedy=lambda: torch.full((8,), 0.4),
        past=lambda r: (2, 8, 0.3, 1.5),
    )
    credit = found.selected(found.credit(made_of), made_of)
    assert credit.advantages[5].isnan().all() or algorithm == "opd", "a failed score leaves the update"
    batch = packed(credit, learner.needs_every_rollout)
    kept = {}

    def step(number, only_critic=False, again=None):
        kept.update(
            {n: p.grad.clone() for n, p in [*vlm.parameters(), *(critic.parameters() if critic else ())] if p.grad is not None}
        )
        learner.optimizer.clear()
        return {}

    learner.optimizer.step = step
    metrics = learner.update([batch], 0, kl=made.kl_coef)
    return kept, metrics, len(batch.micro)


def check_splits(algorithm, **keys):
    whole, metrics, one = gradients(algorithm, 10_000, True, **keys)
    size = torch.cat([g.flatten() for g in whole.values()]).norm()
    assert one == 1 and size > 1e-4, "there is something to compare"
    counts = set()
    for budget, shared in ((10_000, False), (120, False), (1, False), (60, True)):
        split, same, micros = gradients(algorithm, budget, shared, **keys)
        counts.add(micros)
        assert split.keys() == whole.keys()
        own = [n for n in whole if n.startswith("value.")]
        for names in ([n for n in whole if n not in own], own):
            if names:
                a, b = (torch.cat([g[n].flatten() for n in names]) for g in (split, whole))
                assert ((a - b).norm() / b.norm().clamp_min(1e-4)).item() < 1e-5
        assert same == pytest.approx(metrics, rel=1e-4, abs=1e-6)
    assert len(counts) >= 3, "so many splits"


# dppo is for policies that act
@pytest.mark.parametrize("algorithm", mostly_slow([a for a in BUILT_IN if a != "dppo"], everyday=10))
def test_no_split_into_micro_batches_changes_the_gradient(algorithm):
    check_splits(algorithm)


@pytest.mark.parametrize(
    ("algorithm", "keys"),
    mostly_slow(
        [
            ("grpo", {"kl_coef": 0.5, "kl_estimator": "k3"}),
            ("dr-grpo", {"kl_coef": 0.5, "kl_estimator": "k2"}),
            ("dapo", {"kl_coef": 0.5, "kl_estimator": "k1"}),
            ("grpo", {"entropy_coef": 3.0}),
            ("dr-grpo", {"entropy_coef": 3.0, "kl_coef": 0.5}),
            ("ppo", {"entropy_coef": 3.0, "kl_coef": 0.5, "credit": "turn"}),
            ("ppo", {"kl_coef": 0.5, "kl_in": "reward"}),
            ("ppo", {"critic": {"backbone": "separate", "hidden_sizes": [8], "huber": 0.3}}),
            ("ppo", {"critic": {"detach": True, "clip_range": 0.0}, "settings": {"normalise": "sequence"}}),
            ("gspo", {"importance_sampling": "truncate", "importance_sampling_cap": 1.5}),
            ("grpo", {"settings": {"entropy_share": 0.4}}),
            ("clip-cov", {"settings": {"share": 0.3, "low": 0.0, "high": 9.0}}),
            ("kl-cov", {"settings": {"share": 0.3}}),
            ("gmpo", {"importance_sampling": "mask", "importance_sampling_level": "sequence", "off_policy_mask": 0.01}),
        ],
        everyday=4,
    ),
    ids=str,
)
def test_nor_with_other_terms_in_the_loss(algorithm, keys):
    check_splits(algorithm, **keys)


@pytest.mark.parametrize("keys", [{"kl_coef": 0.5}, {"entropy_coef": 3.0}], ids=str)
def test_such_terms_have_a_gradient_of_their_own(keys):
    """So the test above compares something: without the term the gradient is another."""
    plain, with_term = gradients("grpo", 10_000, True)[0], gradients("grpo", 10_000, True, **keys)[0]
    a, b = (torch.cat([g[n].flatten() for n in plain]) for g in (plain, with_term))
    assert ((a - b).norm() / a.norm()).item() > 0.01
