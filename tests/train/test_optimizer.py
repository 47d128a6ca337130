"""The optimiser's arithmetic against numbers worked out by hand: one step of each rule, parts, clipping, means, resuming."""

import math
import multiprocessing

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch.nn import Parameter

from mmrl.api.errors import UserError
from mmrl.config.sections import CriticConfig, PartConfig, SftStage
from mmrl.train.update import loss_scale
from mmrl.train.update.optimizer import SCALE, Optimizer, learning_rate

RULES = ("adamw", "adam", "sgd", "rmsprop", "adafactor", "muon", "adamw_8bit")
VISION, MERGER, TEXT = "model.visual.blocks.0.w", "model.visual.merger.w", "model.language_model.w"


def sft(**settings):
    parts = [PartConfig(**p) for p in settings.pop("parts", [])]
    return SftStage(kind="sft", **{"steps": 10, "learning_rate": 0.1, "max_grad_norm": math.inf, "parts": parts, **settings})


def weights(*values, dtype=torch.float32):
    return Parameter(torch.tensor(values, dtype=dtype))


def go(optimizer, gradients, step=0, **arguments):
    """A step with these gradients: parameter -> values."""
    for p, values in gradients.items():
        p.grad = torch.tensor(values, dtype=p.dtype).reshape(p.shape)
    optimizer.gather()
    return optimizer.step(step, **arguments)


# -- rules --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        # decay first: 0.95, -1.9; then the rate against the gradient's sign
        ("adamw", [0.95 + 0.1, -1.9 - 0.1]),
        # the others' gradient is with the decay (0.2, -0.6), of the other sign
        ("adam", [1.0 - 0.1, -2.0 + 0.1]),
        ("sgd", [1.0 - 0.02, -2.0 + 0.06]),
        # the mean of squares is 0.1 g^2, so that g over its root is sqrt(10)
        ("rmsprop", [1.0 - 0.1 * math.sqrt(10), -2.0 + 0.1 * math.sqrt(10)]),
        # the step is relative to the weights' size, sqrt(2.5), before the decay
        ("adafactor", [0.95 + 0.1 * math.sqrt(2.5), -1.9 - 0.1 * math.sqrt(2.5)]),
        ("muon", [0.95 + 0.1, -1.9 - 0.1]),  # a vector is AdamW's
        ("adamw_8bit", [0.95 + 0.1, -1.9 - 0.1]),  # of a small weight, 32 bits are kept
    ],
)
def test_the_first_step_of_each_rule(rule, expected):
    p = weights(1.0, -2.0)
    found = go(Optimizer([("w", p)], sft(optimizer=rule, weight_decay=0.5, beta2=0.9)), {p: [-0.3, 0.4]})
    assert p.tolist() == pytest.approx(expected, abs=1e-6)
    assert found == {"grad_norm": pytest.approx(0.5), "learning_rate": 0.1} and p.grad is None


def test_the_second_step_remembers_as_much_as_the_betas_say():
    """Gradients 1, then 0 (adam: 3). SGD's buffer is 1, 0.8; RMSprop's mean 0.5, 0.25; Adam's 0.2, 0.76 and 0.5, 4.75."""
    moved = {}
    for rule, second in (("sgd", 0.0), ("rmsprop", 0.0), ("adamw", 3.0), ("adam", 3.0)):
        p = weights(0.0)
        optimizer = Optimizer([("w", p)], sft(optimizer=rule, beta1=0.8, beta2=0.5))
        go(optimizer, {p: [1.0]})
        before = p.item()
        go(optimizer, {p: [second]}, 1)
        moved[rule] = p.item() - before
    adam = -0.1 * (0.76 / (1 - 0.64)) / math.sqrt(4.75 / (1 - 0.25))
    assert moved == pytest.approx({"sgd": -0.08, "rmsprop": 0.0, "adamw": adam, "adam": adam})


def test_muon_steps_matrices_between_hidden_states_and_adamw_all_else():
    """A step makes the gradient's singular values alike: of diag(4, 1), nearly equal moves, 0.2 sqrt(2) of the rate each."""
    names = [
        "model.layers.0.mlp.up_proj.weight",
        "model.embed_tokens.weight",
        "lm_head.weight",
        "value.0.weight",
        "model.norm.weight",
    ]
    shapes = [(2, 2), (2, 2), (2, 2), (2, 2), (2,)]
    made = {name: Parameter(torch.zeros(shape)) for name, shape in zip(names, shapes, strict=True)}
    optimizer = Optimizer(list(made.items()), sft(optimizer="muon"))
    gradient = {p: [[4.0, 0.0], [0.0, 1.0]] if p.ndim == 2 else [4.0, 1.0] for p in made.values()}
    go(optimizer, gradient)
    matrix, *others = made.values()
    assert matrix.diag().abs().tolist() == pytest.approx([0.1 * 0.2 * math.sqrt(2)] * 2, rel=0.35)
    assert matrix[0, 1] == matrix[1, 0] == 0
    for p in others:
        moved = p.detach()[p.detach() != 0]
        assert moved.tolist() == pytest.approx([-0.1, -0.1], rel=1e-5), (
            "AdamW's first step is the rate, whatever the gradient's size"
        )
    assert {k.rsplit("/", 1)[1] for k in optimizer.state()} == {"momentum_buffer", "exp_avg", "exp_avg_sq", "step"}


def test_sgd_without_momentum_keeps_nothing():
    p = weights(1.0)
    optimizer = Optimizer([("w", p)], sft(optimizer="sgd", beta1=0.0))
    go(optimizer, {p: [2.0]})
    go(optimizer, {p: [2.0]}, 1)
    assert p.item() == pytest.approx(0.6) and optimizer.state() == {}


@pytest.mark.parametrize("rule", RULES)
def test_a_weight_without_a_gradient_stays(rule):
    p, still = weights(1.0, 2.0), weights(3.0, 4.0)
    optimizer = Optimizer([("w", p), ("still", still)], sft(optimizer=rule, weight_decay=0.5))
    go(optimizer, {p: [1.0, 1.0]})
    assert still.tolist() == [3.0, 4.0] and p.tolist() != [1.0, 2.0]
    found = optimizer.step(1)
    assert found["grad_norm"] == 0.0 and optimizer.steps == 2


# -- rates --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("schedule", "warmup", "final", "rates"),
    [
        ("constant", 0, 0.0, [8.0, 8.0, 8.0, 8.0]),
        ("constant", 2, 0.5, [4.0, 8.0, 8.0, 8.0]),
        ("constant", 8, 0.0, [1.0, 2.0, 3.0, 4.0]),
        ("linear", 0, 0.0, [8.0, 6.0, 4.0, 2.0]),
        ("linear", 0, 0.5, [8.0, 7.0, 6.0, 5.0]),
        ("linear", 2, 0.25, [4.0, 8.0, 8.0, 5.0]),
        ("linear", 0, 1.0, [8.0, 8.0, 8.0, 8.0]),
        ("cosine", 0, 0.0, [8.0, 4 + 4 * math.sqrt(0.5), 4.0, 4 - 4 * math.sqrt(0.5)]),
        ("cosine", 0, 0.5, [8.0, 6 + 2 * math.sqrt(0.5), 6.0, 6 - 2 * math.sqrt(0.5)]),
        ("cosine", 3, 0.5, [8 / 3, 16 / 3, 8.0, 8.0]),
    ],
)
def test_the_rate_of_each_of_four_steps(schedule, warmup, final, rates):
    stage = sft(steps=4, learning_rate=8.0, warmup_steps=warmup, schedule=schedule, min_lr_ratio=final)
    assert [learning_rate(stage, s) for s in range(4)] == pytest.approx(rates)
    a, b, v = weights(0.0), weights(0.0), weights(0.0)
    parts = [PartConfig(match="vision", learning_rate=2.0)]
    settings = CriticConfig(learning_rate=16.0)
    optimizer = Optimizer([(TEXT, a), (VISION, b)], stage.model_copy(update={"parts": parts}), [("value.w", v)], settings)
    for s, rate in enumerate(rates):
        assert sorted(optimizer.learning_rates(s)) == pytest.approx([rate / 4, rate, rate * 2])


def test_each_step_is_taken_at_its_rate():
    for step, rate in ((0, 0.25), (1, 0.5), (6, 0.25)):
        p = weights(0.0)
        stage = sft(learning_rate=0.5, schedule="linear", warmup_steps=2)
        assert go(Optimizer([("w", p)], stage), {p: [7.0]}, step)["learning_rate"] == rate
        assert p.item() == pytest.approx(-rate)


# -- parts --------------------------------------------------------------------------------------------------------------


def test_the_first_entry_that_matches_holds_and_says_only_what_it_says():
    a, b, c, d, v = (weights(1.0) for _ in range(5))
    parts = [
        {"match": "projector", "learning_rate": 0.2},
        {"match": "*.visual.*", "weight_decay": 0.5},
        {"match": "value", "weight_decay": 0.0},
        {"match": "*w", "learning_rate": 0.4},
    ]
    optimizer = Optimizer(
        [(VISION, a), (MERGER, b), (TEXT, c), ("lm_head.weight", d)],
        sft(optimizer="sgd", weight_decay=1.0, parts=parts),
        [("value.w", v)],
        CriticConfig(learning_rate=0.3),
    )
    go(optimizer, {p: [1.0] for p in (a, b, c, d, v)})
    # 1 - rate x (gradient + decay)
    assert [p.item() for p in (a, b, c, d)] == pytest.approx([1 - 0.15, 1 - 0.4, 1 - 0.8, 1 - 0.2])
    assert v.item() == pytest.approx(1 - 0.3), "its own rate, the entry's decay"


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_step_is_told_to_whoever_holds_copies_of_the_weights(rule, dtype):
    """torch counts what is written to a tensor, and its fused rules don't; vLLM's copy is renewed by that count."""
    p = weights([1.0, 2.0], [3.0, 4.0], dtype=dtype)
    optimizer, before = Optimizer([(TEXT, p)], sft(optimizer=rule)), p._version
    go(optimizer, {p: [0.5, -0.5, 1.0, 0.25]})
    assert p._version > before


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_frozen_part_stays_and_a_later_stage_trains_it(rule, dtype):
    a, b = weights(1.0, -3.0, dtype=dtype), weights(1.0, -3.0, dtype=dtype)
    named = [(VISION, a), (TEXT, b)]
    first = Optimizer(named, sft(optimizer=rule, weight_decay=0.5))
    go(first, {a: [1.0, 1.0], b: [1.0, 1.0]})  # momentum in both
    first.release()
    before = a.clone()
    second = Optimizer(named, sft(optimizer=rule, weight_decay=0.5, parts=[{"match": "vision", "freeze": True}]))
    assert not a.requires_grad and b.requires_grad
    for step in range(3):
        was = b.clone()
        go(second, {b: [1.0, 1.0]}, step)
        assert torch.equal(a, before) and not torch.equal(b, was)
    assert {k.split("/")[0] for k in second.state()} == {TEXT}
    second.release()
    assert a.requires_grad
    third = Optimizer(named, sft(optimizer=rule))
    go(third, {a: [1.0, 1.0], b: [1.0, 1.0]})
    assert not torch.equal(a, before)


def test_what_came_frozen_is_no_business_of_the_optimizer():
    base, adapter = weights(1.0).requires_grad_(False), weights(1.0)
    optimizer = Optimizer([("base", base), ("adapter", adapter)], sft(parts=[{"match": "base", "freeze": True}]))
    assert optimizer.frozen == []
    optimizer.release()
    assert not base.requires_grad and [n for n, _ in optimizer.named] == ["adapter"]


def test_freezing_everything_is_refused():
    with pytest.raises(UserError, match="freezes all 2 weights"):
        Optimizer([(VISION, weights(1.0)), (TEXT, weights(1.0))], sft(parts=[{"match": "*", "freeze": True}]))


# -- clipping -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("limit", "critic_limit"), [(1.0, 100.0), (100.0, 0.5), (math.inf, math.inf), (0.1, 0.1)])
def test_policy_and_critic_are_clipped_apart(limit, critic_limit):
    """Gradients (3, 4) and (6, 8), of lengths 5 and 10, stepped at rates 0.1 and 0.2."""
    p, q, v = weights(0.0), weights(0.0), weights(0.0, 0.0)
    stage = sft(optimizer="sgd", max_grad_norm=limit)
    settings = CriticConfig(learning_rate=0.2, max_grad_norm=critic_limit)
    found = go(Optimizer([("p", p), ("q", q)], stage, [("value.w", v)], settings), {p: [3.0], q: [4.0], v: [6.0, 8.0]})
    assert found == {"grad_norm": 5.0, "grad_norm/critic": 10.0, "learning_rate": 0.1}
    scale, critic_scale = min(1.0, limit / 5), min(1.0, critic_limit / 10)
    assert [p.item(), q.item()] == pytest.approx([-0.3 * scale, -0.4 * scale], rel=1e-4)
    assert v.tolist() == pytest.approx([-1.2 * critic_scale, -1.6 * critic_scale], rel=1e-4)


@pytest.mark.parametrize("bad", [math.inf, math.nan])
@pytest.mark.parametrize("whose", ["policy", "critic"])
def test_a_gradient_that_is_not_finite_moves_nothing(bad, whose):
    p, v = weights(1.0, dtype=torch.bfloat16), weights(2.0)
    optimizer = Optimizer([("p", p)], sft(ema_decay=0.5), [("value.w", v)])
    where = {"policy": "^the gradient is not finite .norm (inf|nan).: lower learning_rate or max_grad_norm; --resume"}
    where["critic"] = "^the critic's gradient is not finite .*lower stages.critic.learning_rate or stages.critic.max_grad_norm"
    with pytest.raises(UserError, match=where[whose]):
        go(optimizer, {p: [bad if whose == "policy" else 1.0], v: [bad if whose == "critic" else 1.0]})
    assert (p.item(), v.item(), optimizer.steps) == (1.0, 2.0, 0)
    assert p.grad is None and v.grad is None and all(m.grad is None for m in optimizer.masters)
    assert {k.split("/")[1] for k in optimizer.state()} == {"master", "ema"}, "no moment was taken in"


@pytest.mark.parametrize("rule", RULES)
def test_the_critic_alone(rule):
    """No momentum, no decay, no mean of the policy moves, and its gradient is forgotten."""
    p, v = weights(1.0, 2.0), weights(1.0, 2.0)
    optimizer = Optimizer([("p", p)], sft(optimizer=rule, weight_decay=0.5, ema_decay=0.9), [("value.w", v)])
    go(optimizer, {p: [1.0, -1.0], v: [1.0, 1.0]})
    before = {k: t.clone() for k, t in optimizer.state().items() if k.startswith("p/")}
    policy, critic = p.clone(), v.clone()
    found = go(optimizer, {p: [math.nan, 1.0], v: [3.0, 4.0]}, 1, only_critic=True)
    assert torch.equal(p, policy) and not torch.equal(v, critic)
    assert found["grad_norm"] == 0.0 and found["grad_norm/critic"] == 5.0
    assert all(torch.equal(t, before[k]) for k, t in optimizer.state().items() if k.startswith("p/"))
    assert p.grad is None


# -- bfloat16 -----------------------------------------------------------------------------------------------------------


def test_bfloat16_gradients_add_up_in_float32():
    """bfloat16 has no number between -32 and -32.25."""
    p = weights(0.0, dtype=torch.bfloat16)
    optimizer = Optimizer([("w", p)], sft())
    for value in (-32.0, -0.125, -0.125, -0.125):
        p.grad = torch.tensor([value], dtype=torch.bfloat16)
        optimizer.gather()
        assert p.grad is None
    assert optimizer.step(0)["grad_norm"] == 32.375


def test_bfloat16_weights_follow_masters_that_take_smaller_steps():
    """Between 1 and 2 neighbours are 2**-7 apart; four steps of 2**-9 are two of those."""
    p = weights(1.0, dtype=torch.bfloat16)
    optimizer = Optimizer([("w", p)], sft(optimizer="sgd", beta1=0.0, learning_rate=2**-9))
    seen = []
    for step in range(4):
        go(optimizer, {p: [-1.0]}, step)
        seen.append((p.item(), optimizer.state()["w/master"].item()))
    assert seen == [(1.0, 1 + 2**-9), (1.0, 1 + 2**-8), (1 + 2**-7, 1 + 3 * 2**-9), (1 + 2**-7, 1 + 2**-7)]


# -- float16 ------------------------------------------------------------------------------------------------------------


def of_float16(*values, **settings):
    p = weights(*values, dtype=torch.float16)
    return p, Optimizer([("w", p)], sft(optimizer="sgd", beta1=0.0, **settings), float16=True)


def test_float16_gradients_too_small_for_it_are_those_of_float32():
    """float16 has nothing between 0 and 6e-8."""
    p, optimizer = of_float16(1.0, 2.0, learning_rate=2.0**28)
    optimizer.backward((p.float() * torch.tensor([2.0**-30, 2.0**-28])).sum())
    assert p.grad is None
    found = optimizer.step(0)
    assert (
        found["grad_norm"] == pytest.approx(math.hypot(2.0**-30, 2.0**-28), rel=1e-6) and found["loss_scale"] == loss_scale.FIRST
    )
    assert p.tolist() == [0.75, 1.0]


def test_an_overflow_halves_the_scale_and_the_gradients_are_computed_again():
    """10 times 2**16 is above 65504; 10 times 2**12 isn't."""
    p, optimizer = of_float16(1.0, learning_rate=0.125)
    seen = []

    def compute():
        seen.append((optimizer.scale.value, optimizer.steps, p.item(), optimizer.masters[0].item(), optimizer.masters[0].grad))
        optimizer.backward((p.float() * 10).sum())

    compute()
    found = optimizer.step(0, again=compute)
    assert seen == [(2.0**n, 0, 1.0, 1.0, None) for n in range(16, 11, -1)], "nothing else had changed"
    assert found == {"grad_norm": 10.0, "learning_rate": 0.125, "loss_scale": 2.0**12} and p.item() == -0.25


def test_a_gradient_that_is_not_finite_at_any_scale_stops_the_run():
    p, optimizer = of_float16(1.0)
    tried = []

    def compute():
        tried.append(optimizer.scale.value)
        optimizer.backward((p.float() * math.inf).sum())

    compute()
    with pytest.raises(UserError, match=r'gradient is not finite \(norm inf\).*policy\.dtype = "bfloat16"'):
        optimizer.step(0, again=compute)
    assert tried == [2.0**n for n in range(16, -1, -1)] and p.item() == 1.0 and optimizer.steps == 0


def test_the_scale_grows_again_and_is_in_the_state():
    def steps(optimizer, p, count):
        for _ in range(count):
            optimizer.backward((p.float() * 2.0**-12).sum())
            optimizer.step(0)

    p, optimizer = of_float16(1.0)
    assert optimizer.scale.halved()
    steps(optimizer, p, loss_scale.GROWS_AFTER - 1)
    assert optimizer.scale.value == loss_scale.FIRST / 2
    q, later = of_float16(1.0)
    later.load_state(optimizer.state())
    assert later.scale.value == loss_scale.FIRST / 2 and torch.equal(p, q)
    steps(later, q, 1)
    assert later.scale.value == loss_scale.FIRST
    for _ in range(loss_scale.GROWS_AFTER):
        later.backward((q.float() * 0.0).sum())
        later.step(0)
    assert later.scale.value == loss_scale.FIRST, "steps without gradients say nothing"
    steps(later, q, 9 * loss_scale.GROWS_AFTER)
    assert later.scale.value == loss_scale.MOST and SCALE not in Optimizer([("w", weights(1.0))], sft()).state()


# -- means --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_running_mean_and_the_way_back(dtype):
    """From 4, steps of -1: 3, 2; the mean with decay 0.75 is 3.75, 3.3125."""
    p, v = weights(4.0, dtype=dtype), weights(4.0)
    stage = sft(optimizer="sgd", beta1=0.0, learning_rate=1.0, ema_decay=0.75)
    optimizer = Optimizer([("w", p)], stage, [("value.w", v)])
    with optimizer.averaged():
        assert p.item() == 4.0, "it starts at the weights"
    for step in range(2):
        go(optimizer, {p: [1.0], v: [1.0]}, step)
    assert optimizer.state()["w/ema"].item() == 3.3125 and "value.w/ema" not in optimizer.state()
    with pytest.raises(ZeroDivisionError):
        with optimizer.averaged():
            assert p.item() == torch.tensor(3.3125, dtype=dtype).item() and p.item() != 2.0
            with pytest.raises(RuntimeError, match="outside averaged"):
                optimizer.state()
            raise ZeroDivisionError
    assert p.item() == 2.0 and optimizer.state()["w/ema"].item() == 3.3125 and optimizer.state()["w/master"].item() == 2.0
    go(optimizer, {p: [1.0]}, 2)
    assert p.item() == 1.0 and optimizer.state()["w/ema"].item() == 3.3125 * 0.75 + 0.25


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_way_back_is_exact_for_weights_of_any_bits(dtype):
    noise = torch.Generator().manual_seed(0)
    p = Parameter(torch.randn(1000, generator=noise).to(dtype))
    optimizer = Optimizer([("w", p)], sft(ema_decay=0.9))
    for step in range(3):
        p.grad = torch.randn(1000, generator=noise).to(dtype)
        optimizer.gather()
        optimizer.step(step)
    before, mean = p.detach().clone(), optimizer.state()["w/ema"].clone()
    with optimizer.averaged():
        assert torch.equal(p, mean.to(dtype)) and not torch.equal(p, before)
    assert torch.equal(p, before) and torch.equal(optimizer.state()["w/ema"], mean)


def test_without_a_decay_there_is_no_mean():
    p = weights(4.0)
    optimizer = Optimizer([("w", p)], sft())
    go(optimizer, {p: [1.0]})
    with optimizer.averaged():
        assert p.item() == pytest.approx(3.9) and not any("ema" in k for k in optimizer.state())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_stage_that_ends_leaves_its_means(dtype):
    """As a checkpoint holds them, so that the next stage begins alike after a resume."""
    p, v = weights(4.0, dtype=dtype), weights(4.0)
    optimizer = Optimizer([("w", p)], sft(optimizer="sgd", beta1=0.0, learning_rate=1.0, ema_decay=0.75), [("value.w", v)])
    for step in range(2):
        go(optimizer, {p: [1.0], v: [1.0]}, step)
    with optimizer.averaged():
        saved = p.detach().clone()
    optimizer.adopt()
    assert torch.equal(p, saved) and p.item() == torch.tensor(3.3125, dtype=dtype).item()
    assert v.item() == pytest.approx(4 - 2e-4), "a critic has no mean"
    without = weights(4.0)
    optimizer = Optimizer([("w", without)], sft())
    go(optimizer, {without: [1.0]})
    optimizer.adopt()
    assert without.item() == pytest.approx(3.9)


# -- resuming -----------------------------------------------------------------------------------------------------------


def _two(dtype):
    noise = torch.Generator().manual_seed(1)
    return (
        Parameter(torch.randn(4, 6, generator=noise).to(dtype)),
        Parameter(torch.randn(5, generator=noise).to(dtype)),
        Parameter(torch.randn(6, generator=noise)),
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("ema", [0.0, 0.9])
@pytest.mark.parametrize("rule", RULES)
def test_a_resumed_optimizer_goes_on_bit_for_bit(rule, ema, dtype, tmp_path):
    """Also where the weights were saved as their means, and through a file."""
    stage = sft(optimizer=rule, ema_decay=ema, weight_decay=0.1, warmup_steps=3, schedule="cosine")

    def steps(optimizer, params, first, last):
        for step in range(first, last):
            noise = torch.Generator().manual_seed(step)
            for p in params:
                # laid out by columns, as the gradient of a transposed weight may be
                p.grad = torch.randn(p.shape[::-1], generator=noise).to(p.dtype).T if p.ndim == 2 else torch.randn(
                    p.shape, generator=noise).to(p.dtype)  # fmt: skip
            optimizer.gather()
            optimizer.step(step)

    def make(params):
        return Optimizer([("a", params[0]), ("b", params[1])], stage, [("value.w", params[2])])

    whole = _two(dtype)
    one = make(whole)
    steps(one, whole, 0, 3)
    save_file(one.state(), tmp_path / "o.safetensors")
    trained = [p.detach().clone() for p in whole]
    with one.averaged():
        saved = [p.detach().clone() for p in whole]
    steps(one, whole, 3, 6)
    resumed = [Parameter(p.clone()) for p in saved]
    two = make(resumed)
    tensors = load_file(tmp_path / "o.safetensors")
    two.load_state(tensors)
    assert all(torch.equal(a, b) for a, b in zip(trained, resumed, strict=True))
    kept = {k: t.clone() for k, t in tensors.items()}
    steps(two, resumed, 3, 6)
    assert all(torch.equal(a, b) for a, b in zip(whole, resumed, strict=True))
    assert one.state().keys() == two.state().keys() and all(torch.equal(one.state()[k], two.state()[k]) for k in one.state())
    assert all(torch.equal(kept[k], tensors[k]) for k in kept), "what was given is not shared"
    fresh = [Parameter(p.clone()) for p in saved]
    steps(make(fresh), fresh, 3, 6)
    assert not torch.equal(fresh[0], whole[0]), "the state matters"


def test_the_names_in_a_saved_state():
    p, b = weights(1.0, 2.0), weights(1.0, dtype=torch.bfloat16)
    optimizer = Optimizer([("a.b", p), ("c", b)], sft())
    assert set(optimizer.state()) == {"c/master"}
    go(optimizer, {p: [1.0, 1.0], b: [1.0]})
    expected = {f"{n}/{k}" for n in ("a.b", "c") for k in ("step", "exp_avg", "exp_avg_sq")} | {"c/master"}
    assert set(optimizer.state()) == expected and optimizer.state()["a.b/step"].item() == 1


# -- several ranks ------------------------------------------------------------------------------------------------------


def _rank(rank, port, found):
    torch.distributed.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
    both, one, none = weights(0.0), weights(0.0, dtype=torch.bfloat16), weights(5.0)
    stage = sft(optimizer="sgd", max_grad_norm=5.0, weight_decay=0.5)
    optimizer = Optimizer([("both", both), ("one", one), ("none", none)], stage)
    metrics = go(optimizer, {both: [1.0 + rank * 4.0]} | ({one: [8.0]} if rank else {}))
    found.put((rank, metrics["grad_norm"], both.item(), one.item(), none.item()))
    torch.distributed.destroy_process_group()


def test_two_ranks_step_on_the_sum_of_their_gradients():
    """1 + 5 and nothing + 8: a gradient (6, 8) of length 10, clipped to 5; a weight that nobody has a gradient of stays."""
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    context = multiprocessing.get_context("spawn")
    found = context.Queue()
    ranks = [context.Process(target=_rank, args=(rank, port, found)) for rank in range(2)]
    for rank in ranks:
        rank.start()
    results = sorted(found.get(timeout=120) for _ in ranks)
    for rank in ranks:
        rank.join(30)
    half = torch.tensor(-0.4, dtype=torch.bfloat16).item()
    for rank, norm, both, one, none in results:
        assert norm == 10.0 and both == pytest.approx(-0.3, rel=1e-4) and one == pytest.approx(half) and none == 5.0, rank
